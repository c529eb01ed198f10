"""Every API that the data port speaks, against an engine that speaks it: relayed as it is, measured as it means."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tests.gateway.test_form import KIND, form, part
from tests.silence import wave
from tests.wire.client import Reply, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, Script, event, finish, token, usage
from tests.wire.stand import Stand, run, stand

MS = 1_000_000
GAP_S = 0.02


def named(kind: str, **data: Any) -> bytes:
    """An event with a name, as Anthropic's and OpenAI's responses have them."""
    return b"event: %b\n" % kind.encode() + event({"type": kind, **data})


def streaming(*events: bytes, end: bool = True) -> Script:
    """Answers a streamed request with these events, `GAP_S` apart; then ends its message, or hangs up."""

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for data in events:
            await asyncio.sleep(GAP_S)
            await incoming.chunks(data)
        if end:
            await incoming.end()
        else:
            incoming.abort()

    return script


def answering(value: object, status: int = 200) -> Script:
    async def script(incoming: Incoming) -> None:
        await incoming.reply(value, status)

    return script


def ask(path: str, **body: object) -> bytes:
    return request(json.dumps(body).encode(), path=path)


def measured(record: RequestRecord, events: int) -> None:
    """A stream whose first token and gaps were seen."""
    assert record.stream
    assert record.ttft_ns is not None
    assert record.ttft_upstream_ns is not None
    assert record.ttft_ns >= record.ttft_upstream_ns >= GAP_S * 1e9 * 0.9
    assert record.chunk_gap_count == events - 1
    assert record.chunk_gap_p50_ns is not None
    assert record.chunk_gap_p50_ns > 10 * MS
    assert record.decode_ns is not None
    assert record.decode_ns > 10 * MS


def counts(record: RequestRecord) -> tuple[int | None, str, int | None]:
    return record.output_tokens, record.output_tokens_source, record.prompt_tokens


async def one(s: Stand, data: bytes) -> tuple[Reply, RequestRecord]:
    reply = await s.ask(data)
    return reply, await s.record()


# -- OpenAI: text


def test_chat_completions() -> None:
    body = token("a") + token("b") + token("c") + finish("length") + usage(9, 3) + DONE

    async def test() -> None:
        script = streaming(token("a"), token("b"), token("c"), finish("length") + usage(9, 3) + DONE)
        async with stand(script) as s:
            options = {"include_usage": True}
            reply, record = await one(
                s, ask("/v1/chat/completions", model="m", messages=[], stream=True, stream_options=options)
            )
            assert reply.body == body
            measured(record, 3)
            assert counts(record) == (3, "usage", 9)
            assert (record.outcome, record.finish_reason) == (OutcomeKind.COMPLETED, "length")
            assert record.endpoint == "/v1/chat/completions"

    run(test())


def _completion(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return event({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


def test_completions_streamed() -> None:
    async def test() -> None:
        last = event({"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}})
        async with stand(streaming(_completion("a"), _completion("bc"), _completion("d", "stop"), last, DONE)) as s:
            reply, record = await one(s, ask("/v1/completions", model="m", prompt="once upon", stream=True))
            assert [json.loads(d)["choices"][0]["text"] for d in reply.events[:-1]] == ["a", "bc", "d"]
            measured(record, 3)
            assert counts(record) == (4, "usage", 5)
            assert record.finish_reason == "stop"

    run(test())


def test_completions_whole() -> None:
    answer = {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": "and then", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }

    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, ask("/v1/completions", model="m", prompt=["a", "b"], max_tokens=2))
            assert reply.json == answer
            assert counts(record) == (2, "usage", 5)
            assert (record.finish_reason, record.ttft_ns, record.stream) == ("length", None, False)

    run(test())


def _response(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "model": "m", "output": [], **more}


def _text(delta: str, number: int) -> bytes:
    return named(
        "response.output_text.delta",
        sequence_number=number,
        item_id="msg_1",
        output_index=0,
        content_index=0,
        delta=delta,
    )


BEGUN = named("response.created", sequence_number=0, response=_response("in_progress")) + named(
    "response.output_item.added",
    sequence_number=1,
    output_index=0,
    item={"id": "msg_1", "type": "message", "role": "assistant", "content": []},
)
COUNTS = {
    "input_tokens": 11,
    "output_tokens": 3,
    "total_tokens": 14,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens_details": {"reasoning_tokens": 1},
}


def test_responses_streamed() -> None:
    done = named("response.completed", sequence_number=4, response=_response("completed", usage=COUNTS))

    async def test() -> None:
        async with stand(streaming(BEGUN, _text("so", 2), _text(" it goes", 3), done)) as s:
            reply, record = await one(s, ask("/v1/responses", model="m", input="tell me", stream=True))
            assert reply.body == BEGUN + _text("so", 2) + _text(" it goes", 3) + done
            measured(record, 2)
            assert counts(record) == (3, "usage", 11)
            assert (record.cached_tokens, record.reasoning_tokens) == (8, 1)
            assert (record.outcome, record.finish_reason) == (OutcomeKind.COMPLETED, "stop")

    run(test())


def test_responses_that_fail_inside_their_stream() -> None:
    failed = named(
        "response.failed",
        sequence_number=3,
        response=_response("failed", error={"code": "server_error", "message": "the model died"}),
    )

    async def test() -> None:
        async with stand(streaming(BEGUN, _text("so", 2), failed)) as s:
            reply, record = await one(s, ask("/v1/responses", model="m", input="x", stream=True))
            assert reply.body.endswith(failed)
            assert (record.outcome, record.died_in, record.error) == (OutcomeKind.FAILED, "decode", "the model died")

    run(test())


def test_responses_whose_engine_dies_end_with_a_numbered_error_event() -> None:
    async def test() -> None:
        async with stand(streaming(BEGUN, _text("so", 2), end=False)) as s:
            reply, record = await one(s, ask("/v1/responses", model="m", input="x", stream=True))
            last = json.loads(reply.events[-1])
            assert (last["type"], last["code"], last["sequence_number"]) == ("error", "stream_cut", 3)
            assert record.reason is Reason.STREAM_CUT

    run(test())


def test_responses_whole() -> None:
    content = [{"type": "output_text", "text": "so it goes", "annotations": []}]
    answer = _response("completed", usage=COUNTS) | {
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "content": content}]
    }

    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, ask("/v1/responses", model="m", input="x", max_output_tokens=9))
            assert reply.json == answer
            assert counts(record) == (3, "usage", 11)
            assert (record.finish_reason, record.max_tokens) == ("stop", 9)

    run(test())


def test_a_stored_response_is_relayed_and_timed() -> None:
    async def test() -> None:
        async with stand(answering(_response("completed"))) as s:
            reply, record = await one(s, request(path="/v1/responses/resp_1?include=x", method="GET"))
            assert reply.json["id"] == "resp_1"
            assert s.engine.requests[0].target == "/v1/responses/resp_1?include=x"
            assert (record.endpoint, record.lane) == ("/v1/responses/{id}", "passthrough")

    run(test())


def test_embeddings() -> None:
    answer = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
        "model": "e",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }

    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, ask("/v1/embeddings", model="e", input=["some words", "more"]))
            assert reply.json == answer
            assert (record.outcome, record.model) == (OutcomeKind.COMPLETED, "e")
            assert (record.prompt_tokens, record.prompt_tokens_source) == (6, "usage")
            assert (record.output_tokens, record.ttft_ns, record.lane) == (None, None, "default")

    run(test())


def test_models() -> None:
    answer = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 2048}]}

    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, request(path="/v1/models", method="GET"))
            assert reply.json == answer
            assert (record.endpoint, record.lane, record.outcome) == (
                "/v1/models",
                "passthrough",
                OutcomeKind.COMPLETED,
            )

    run(test())


def test_errors_of_openai_apis_pass_as_the_engine_worded_them() -> None:
    said = {
        "error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    }

    async def test() -> None:
        async with stand(answering(said, 404)) as s:
            for count, path in enumerate(
                ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"), 1
            ):
                reply = await s.ask(ask(path, model="x"))
                assert (reply.status, reply.json) == (404, said)
                record = await s.record(count)
                assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.UNKNOWN_MODEL)

    run(test())


# -- Anthropic


def _block(delta: dict[str, Any], index: int = 0) -> bytes:
    return named("content_block_delta", index=index, delta=delta)


STARTED = named(
    "message_start",
    message={
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "usage": {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 20},
    },
) + named("content_block_start", index=0, content_block={"type": "text", "text": ""})
STOPPED = (
    named("content_block_stop", index=0)
    + named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 6})
    + named("message_stop")
)


def test_messages_streamed() -> None:
    events = (
        STARTED,
        named("ping"),
        _block({"type": "text_delta", "text": "so"}),
        _block({"type": "text_delta", "text": " it"}),
        STOPPED,
    )

    async def test() -> None:
        async with stand(streaming(*events)) as s:
            reply, record = await one(s, ask("/v1/messages", model="m", max_tokens=50, messages=[], stream=True))
            assert reply.body == b"".join(events)
            measured(record, 2)
            assert counts(record) == (6, "usage", 25)
            assert (record.cached_tokens, record.finish_reason, record.max_tokens) == (20, "end_turn", 50)

    run(test())


def test_messages_whole() -> None:
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "so it goes"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 5, "output_tokens": 6},
    }

    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, ask("/v1/messages", model="m", max_tokens=6, messages=[]))
            assert reply.json == answer
            assert counts(record) == (6, "usage", 5)
            assert record.finish_reason == "max_tokens"

    run(test())


def test_messages_errors_in_a_first_frame_in_the_middle_and_of_our_own() -> None:
    overloaded = named("error", error={"type": "overloaded_error", "message": "Overloaded"})
    broken = named("error", error={"type": "api_error", "message": "Internal server error"})

    async def test() -> None:
        body = ask("/v1/messages", model="m", max_tokens=6, messages=[], stream=True)
        async with stand(streaming(STARTED, _block({"type": "text_delta", "text": "so"}), broken)) as s:
            reply, record = await one(s, body)
            assert reply.body.endswith(broken)
            assert (record.outcome, record.error) == (OutcomeKind.FAILED, "Internal server error")
        async with stand(streaming(overloaded)) as s:
            reply, record = await one(s, body)
            assert reply.status >= 500
            assert (reply.json["type"], reply.json["error"]["message"]) == ("error", "Overloaded")
        async with stand(streaming(STARTED, _block({"type": "text_delta", "text": "so"}), end=False)) as s:
            reply, record = await one(s, body)
            assert b"event: error\ndata: " in reply.body
            last = json.loads(reply.events[-1])
            assert (last["type"], last["error"]["type"]) == ("error", "api_error")
            assert record.reason is Reason.STREAM_CUT

    run(test())


# -- speech


def speak(path: str, *, stream: bool, seconds: float = 1.5) -> bytes:
    fields = [part("model", b"whisper"), part("response_format", b"json")]
    body = form(*fields, part("file", wave(seconds), filename="a.wav"), part("stream", b"true" if stream else b"false"))
    return request(body, path=path).replace(b"application/json", KIND, 1)


SPEECH = pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])


@SPEECH
def test_transcriptions_streamed_as_openai_does(path: str) -> None:
    events = (
        event({"type": "transcript.text.delta", "delta": "so", "logprobs": []}),
        event({"type": "transcript.text.delta", "delta": " it"}),
        event({"type": "transcript.text.delta", "delta": " goes"}),
        event(
            {
                "type": "transcript.text.done",
                "text": "so it goes",
                "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 5, "total_tokens": 19},
            }
        ),
    )

    async def test() -> None:
        async with stand(streaming(*events)) as s:
            reply, record = await one(s, speak(path, stream=True))
            assert reply.body == b"".join(events)
            assert b'name="file"; filename="a.wav"' in s.engine.requests[0].body
            measured(record, 3)
            assert counts(record) == (5, "usage", 14)
            assert (record.outcome, record.finish_reason) == (OutcomeKind.COMPLETED, "stop")
            assert (record.model, record.audio_seconds) == ("whisper", pytest.approx(1.5))
            assert record.endpoint == path

    run(test())


def _speech_chunk(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"delta": {"content": text}, "finish_reason": finish_reason, "stop_reason": None}
    whole = {"id": "trsc-1", "object": "transcription.chunk", "created": 1, "model": "whisper", "choices": [choice]}
    return event(whole)


@SPEECH
def test_transcriptions_streamed_as_vllm_does(path: str) -> None:
    last = event({"id": "trsc-1", "object": "transcription.chunk", "choices": [], "usage": {"prompt_tokens": 3,
                  "completion_tokens": 7, "total_tokens": 10}})  # fmt: skip
    events = (_speech_chunk("so"), _speech_chunk(" it"), _speech_chunk(" goes", "stop"), last, DONE)

    async def test() -> None:
        async with stand(streaming(*events)) as s:
            reply, record = await one(s, speak(path, stream=True))
            assert reply.body == b"".join(events)
            measured(record, 3)
            assert counts(record) == (7, "usage", 3)
            assert record.finish_reason == "stop"

    run(test())


def test_a_transcription_without_counts_counts_its_events() -> None:
    async def test() -> None:
        async with stand(streaming(_speech_chunk("so"), _speech_chunk(" it"), _speech_chunk("", "stop"), DONE)) as s:
            _, record = await one(s, speak("/v1/audio/transcriptions", stream=True))
            assert counts(record)[:2] == (2, "chunks")

    run(test())


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (
            {"text": "so it goes", "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 5}},
            (5, "usage", 14),
        ),
        ({"text": "so it goes", "usage": {"type": "duration", "seconds": 2}}, (None, "", None)),
        ({"task": "transcribe", "language": "en", "duration": 1.5, "text": "so", "segments": []}, (None, "", None)),
    ],
)
def test_transcriptions_whole(answer: dict[str, Any], tokens: tuple[Any, ...]) -> None:
    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, speak("/v1/audio/transcriptions", stream=False))
            assert reply.json == answer
            assert counts(record) == tokens
            assert (record.outcome, record.stream, record.ttft_ns) == (OutcomeKind.COMPLETED, False, None)

    run(test())


def test_a_transcription_as_subtitles_is_relayed_and_timed() -> None:
    srt = b"1\n00:00:00,000 --> 00:00:01,500\nso it goes\n"

    async def script(incoming: Incoming) -> None:
        await incoming.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(srt) + srt
        )

    async def test() -> None:
        async with stand(script) as s:
            reply, record = await one(s, speak("/v1/audio/transcriptions", stream=False))
            assert reply.body == srt
            assert (record.outcome, record.output_tokens) == (OutcomeKind.COMPLETED, None)

    run(test())


@pytest.mark.parametrize("events", [(), (event({"type": "transcript.text.delta", "delta": "so"}),)])
def test_a_transcription_that_stops_short_is_cut(events: tuple[bytes, ...]) -> None:
    async def test() -> None:
        async with stand(streaming(*events)) as s:
            reply, record = await one(s, speak("/v1/audio/transcriptions", stream=True))
            assert record.reason is Reason.STREAM_CUT
            error = reply.error if events else reply.json["error"]
            assert error is not None
            assert error["reason"] == "stream_cut"

    run(test())


def test_an_error_in_a_transcriptions_first_frame_is_its_status() -> None:
    async def test() -> None:
        said = event({"error": {"message": "Audio too long", "type": "BadRequestError", "param": None, "code": 400}})
        async with stand(streaming(said, DONE)) as s:
            reply, record = await one(s, speak("/v1/audio/transcriptions", stream=True))
            assert (reply.status, reply.json["error"]["message"]) == (400, "Audio too long")
            assert record.outcome is OutcomeKind.REJECTED

    run(test())


# -- Triton and KServe


TRITON = pytest.mark.parametrize("version", ["", "/versions/1"])


@TRITON
def test_triton_infer(version: str) -> None:
    answer = {
        "id": "req-42",
        "model_name": "echo",
        "model_version": "1",
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1, 4], "data": [2.0, 4.0, 6.0, 8.0]}],
    }
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}

    async def test() -> None:
        async with stand(answering(answer)) as s:
            path = f"/v2/models/echo{version}/infer"
            reply, record = await one(s, ask(path, id="req-42", inputs=[tensor]))
            assert reply.json == answer
            assert s.engine.requests[0].target == path
            assert (record.endpoint, record.model) == ("/v2/models/{model}/infer", "echo")
            assert (record.outcome, record.output_tokens, record.lane) == (OutcomeKind.COMPLETED, None, "default")

    run(test())


@pytest.mark.parametrize("kind", ["", "application/octet-stream"])
def test_triton_infer_with_binary_tensors(kind: str) -> None:
    head = b'{"inputs":[{"name":"IN","shape":[4],"datatype":"FP32","parameters":{"binary_data_size":16}}]}'
    body = head + b"\0\xff" * 8

    async def script(incoming: Incoming) -> None:
        assert incoming.body == body
        extra = b"Inference-Header-Content-Length: 2\r\n"
        answer = b"{}" + b"\xff\0" * 8
        await incoming.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n%bContent-Length: %d\r\n\r\n%b"
            % (extra, len(answer), answer)
        )

    async def test() -> None:
        async with stand(script) as s:
            data = request(
                body, path="/v2/models/echo/infer", headers={"Inference-Header-Content-Length": str(len(head))}
            )
            line = b"Content-Type: application/json\r\n"
            data = data.replace(line, b"Content-Type: %b\r\n" % kind.encode() if kind else b"", 1)
            reply, record = await one(s, data)
            assert reply.body == b"{}" + b"\xff\0" * 8
            assert reply.headers["inference-header-content-length"] == "2"
            assert (record.outcome, record.model) == (OutcomeKind.COMPLETED, "echo")

    run(test())


def test_triton_infer_with_large_binary_tensors_streams_up() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"outputs": [], "size": len(incoming.body)})

    async def test() -> None:
        async with stand(script) as s:
            data = request(
                bytes(1_000_000), path="/v2/models/echo/infer", headers={"Inference-Header-Content-Length": "2"}
            )
            reply, record = await one(s, data)
            assert reply.json["size"] == 1_000_000
            assert (record.model, record.prompt_bytes, record.stream) == ("echo", 1_000_000, False)

    run(test())


@TRITON
def test_triton_generate(version: str) -> None:
    answer = {"model_name": "stream_tok", "model_version": "1", "text_output": "a0 "}

    async def test() -> None:
        async with stand(answering(answer)) as s:
            reply, record = await one(s, ask(f"/v2/models/stream_tok{version}/generate", text_input="x", max_tokens=1))
            assert reply.json == answer
            assert (record.endpoint, record.model, record.stream) == (
                "/v2/models/{model}/generate",
                "stream_tok",
                False,
            )
            assert record.outcome is OutcomeKind.COMPLETED

    run(test())


def _triton(text: str) -> bytes:
    return event({"id": "req-43", "model_name": "stream_tok", "model_version": "1", "text_output": text})


@TRITON
@pytest.mark.parametrize("engine", ["auto", "triton"])
def test_triton_generate_stream(engine: str, version: str) -> None:
    events = tuple(_triton(f"tok{n} ") for n in range(4))

    async def test() -> None:
        async with stand(streaming(*events)) as s:
            await _triton_stream(s, version, b"".join(events))

    async def test_configured() -> None:
        async with stand(streaming(*events)) as probe:
            url = probe.engine.url
            backend = {"url": url, "engine": "triton", "metrics_url": url + "/metrics"}
            async with stand(backends=[backend]) as s:
                await _triton_stream(s, version, b"".join(events))

    run(test() if engine == "auto" else test_configured())


async def _triton_stream(s: Stand, version: str, body: bytes) -> None:
    data = ask(f"/v2/models/stream_tok{version}/generate_stream", text_input="x", id="req-43")
    reply, record = await one(s, data)
    assert (reply.body, reply.end) == (body, "chunked")
    measured(record, 4)
    assert counts(record)[:2] == (4, "chunks")
    # Its streams have no end marker and no finish reason: the end of the body is the end.
    assert (record.outcome, record.finish_reason) == (OutcomeKind.COMPLETED, "")
    assert (record.endpoint, record.model) == ("/v2/models/{model}/generate_stream", "stream_tok")


def test_a_triton_stream_that_is_cut_says_so_in_tritons_shape() -> None:
    async def test() -> None:
        async with stand(streaming(_triton("tok0 "), end=False)) as s:
            reply, record = await one(s, ask("/v2/models/stream_tok/generate_stream", text_input="x"))
            last = json.loads(reply.events[-1])
            assert isinstance(last["error"], str)
            assert last["code"] == "stream_cut"
            assert record.reason is Reason.STREAM_CUT

    run(test())


def test_triton_errors() -> None:
    several = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"  # noqa: E501
    cases: list[tuple[str, int, dict[str, str], OutcomeKind, Reason]] = [
        ("generate", 200, {"error": several}, OutcomeKind.FAILED, Reason.ENGINE_ERROR),
        (
            "infer",
            503,
            {"error": "[request id: r] Exceeds maximum queue size"},
            OutcomeKind.REJECTED,
            Reason.QUEUE_FULL,
        ),
        (
            "infer",
            503,
            {"error": "[request id: r] Request timeout expired"},
            OutcomeKind.TIMED_OUT,
            Reason.ENGINE_QUEUE_TIMEOUT,
        ),
        (
            "infer",
            400,
            {"error": "unexpected shape for input 'IN' for model 'echo'"},
            OutcomeKind.REJECTED,
            Reason.BAD_REQUEST,
        ),
    ]

    async def test() -> None:
        for call, status, said, outcome, reason in cases:
            async with stand(answering(said, status)) as s:
                reply, record = await one(s, ask(f"/v2/models/m/{call}", inputs=[]))
                assert (reply.status, reply.json) == (status, said)
                assert (record.outcome, record.reason) == (outcome, reason)

    run(test())


def test_our_own_refusals_of_triton_calls_are_texts() -> None:
    async def test() -> None:
        lanes = [{"name": "default", "running": 1, "queued": 0}]
        async with stand(lanes=lanes) as s:
            for data, status in (
                (request(b"{", path="/v2/models/m/infer"), 400),
                (request(path="/v2/models/m/infer", method="GET"), 405),
                (request(b"{}", path="/v2/repository/index"), 403),
                (request(b"{}", path="/v2/models/m/versions/1/trace/setting"), 403),
                (request(b"{}", path="/V2/Models/m/Trace/Setting/"), 403),
            ):
                reply = await s.ask(data)
                assert reply.status == status
                assert isinstance(reply.json["error"], str)
                assert reply.json["reason"] == "bad_request"
            assert s.engine.requests == []

    run(test())


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v2/health/live", "/v2/health/live"),
        ("/v2/health/ready", "/v2/health/ready"),
        ("/v2/models/m/ready", "/v2/models/{model}/ready"),
        ("/v2/models/m/versions/2/ready", "/v2/models/{model}/ready"),
        ("/v2/models/m", "/v2/models/{model}"),
        ("/v2/models/m/config", "/v2/models/{model}/config"),
        ("/v2", "/v2"),
    ],
)
def test_kserve_health_and_metadata(path: str, endpoint: str) -> None:
    async def script(incoming: Incoming) -> None:
        ready = incoming.method in ("GET", "HEAD")
        await incoming.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (200 if ready else 400))

    async def test() -> None:
        lanes = [{"name": "default", "running": 1, "queued": 0}]
        async with stand(script, lanes=lanes) as s:
            reply, record = await one(s, request(path=path, method="GET"))
            assert (reply.status, reply.body) == (200, b"")
            assert (record.endpoint, record.lane, record.outcome) == (endpoint, "passthrough", OutcomeKind.COMPLETED)
            head = await s.ask(request(path=path, method="HEAD"), head_only=True)
            assert head.status == 200

    run(test())


def test_kserve_that_is_not_ready_passes_as_it_is() -> None:
    async def test() -> None:
        async with stand(answering(b"", 503)) as s:
            reply, record = await one(s, request(path="/v2/health/ready", method="GET"))
            assert (reply.status, record.http_status) == (503, 503)

    run(test())


# -- SGLang


def _sglang(text: str, tokens: int, finish_reason: dict[str, Any] | None = None) -> bytes:
    meta = {
        "id": "r1",
        "finish_reason": finish_reason,
        "prompt_tokens": 6,
        "weight_version": "default",
        "completion_tokens": tokens,
        "cached_tokens": 4,
    }
    return event({"text": text, "output_ids": [], "meta_info": meta})


@pytest.mark.parametrize("stream", [True, False])
def test_sglang_generate(stream: bool) -> None:
    end = {"type": "length", "length": 3}
    events = (_sglang("so", 1), _sglang("so it", 2), _sglang("so it goes", 3, end), DONE)

    async def script(incoming: Incoming) -> None:
        if stream:
            await streaming(*events)(incoming)
        else:
            await incoming.reply(events[2][len(b"data: ") :].strip())

    async def test() -> None:
        async with stand(script) as s:
            sampling = {"max_new_tokens": 3, "temperature": 0}
            reply, record = await one(s, ask("/generate", text="tell", sampling_params=sampling, stream=stream))
            assert reply.status == 200
            if stream:
                assert reply.body == b"".join(events)
                measured(record, 3)
            assert counts(record) == (3, "usage", 6)
            assert (record.finish_reason, record.cached_tokens) == ("length", 4)
            assert (record.endpoint, record.stream) == ("/generate", stream)

    run(test())


def test_sglang_aborts() -> None:
    full = {"type": "abort", "message": "The request queue is full.", "status_code": 503}

    async def test() -> None:
        async with stand(streaming(_sglang("", 0, full), DONE)) as s:
            reply, record = await one(s, ask("/generate", text="x", stream=True))
            assert (reply.status, reply.json["error"]["message"]) == (503, "The request queue is full.")
            assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.QUEUE_FULL)
        late = {"type": "abort", "message": "Request running timeout reached.", "status_code": 503}
        async with stand(streaming(_sglang("so", 1), _sglang("so", 1, late), DONE)) as s:
            reply, record = await one(s, ask("/generate", text="x", stream=True))
            assert reply.events[-1] == "[DONE]"
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.ENGINE_RUN_TIMEOUT)
        flat = {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400}
        async with stand(answering(flat, 400)) as s:
            reply, record = await one(s, ask("/v1/chat/completions", model="m", messages=[]))
            assert reply.json == flat
            assert (record.outcome, record.error) == (OutcomeKind.REJECTED, "too long")

    run(test())


# -- the rest


def test_an_event_stream_behind_passthrough_is_relayed_and_not_read() -> None:
    async def test() -> None:
        async with stand(streaming(token("a"), token("b"), DONE), passthrough=["/v1/rerank", "/v1/score", "/x/*"]) as s:
            reply, record = await one(s, ask("/x/y", stream=True))
            assert reply.body == token("a") + token("b") + DONE
            assert (record.endpoint, record.lane, record.output_tokens, record.ttft_ns) == (
                "/x/*",
                "passthrough",
                None,
                None,
            )

    run(test())


@pytest.mark.parametrize(
    "path", ["/v1/rerank", "/v1/score", "/tokenize", "/v1/messages/count_tokens", "/v1/audio/speech"]
)
def test_what_is_not_listed_is_404_until_it_is_passed_through(path: str) -> None:
    async def test() -> None:
        async with stand(answering({"ok": 1})) as s:
            assert (await s.ask(ask(path))).status == 404
            assert s.engine.requests == []
        async with stand(answering({"ok": 1}), passthrough=[path]) as s:
            assert (await s.ask(ask(path))).json == {"ok": 1}

    run(test())


def test_methods_other_than_post_do_not_reach_an_inference_call() -> None:
    async def test() -> None:
        async with stand() as s:
            for path in ("/v1/audio/transcriptions", "/v1/messages", "/v2/models/m/infer", "/generate"):
                assert (await s.ask(request(path=path, method="GET"))).status == 405
            assert s.engine.requests == []

    run(test())


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_json_is_read_whatever_its_sender_calls_it(kind: str) -> None:
    """`curl -d` calls every body a form; engines read it as JSON, so lanes, aliases and budgets have to as well."""

    async def test() -> None:
        lanes = [{"name": "mine", "match": {"model": "m"}, "running": 4, "queued": 4}]
        async with stand(lanes=lanes) as s:
            body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n"
            reply = await s.ask(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            assert reply.status == 200
            record = await s.record()
            assert (record.lane, record.model, record.stream) == ("mine", "m", True)

    run(test())
