"""The OpenAI Python SDK, unmodified, with nothing but its base URL changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.silence import wave
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, event, finish, token, usage
from tests.wire.stand import Stand, run, stand

MESSAGES: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def _with_sdk(
    script: Callable[[Incoming], Coroutine[Any, Any, None]],
    test: Callable[[Stand, openai.AsyncOpenAI], Coroutine[Any, Any, None]],
    *,
    retries: int = 0,
    timeout_s: float = 10.0,
    **config: Any,
) -> None:
    async def both() -> None:
        async with stand(script, **config) as s:
            base = s.gateway.url + "/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=retries, timeout=timeout_s) as sdk:
                await test(s, sdk)

    run(both())


def test_a_whole_answer() -> None:
    async def script(incoming: Incoming) -> None:
        assert incoming.headers["authorization"] == "Bearer k"
        await incoming.completion("hello back")

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        answer = await sdk.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == "hello back"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 9
        record = await s.record()
        assert (record.outcome, record.output_tokens) == (OutcomeKind.COMPLETED, 2)

    _with_sdk(script, test)


def test_a_stream() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(5, gap=0.005)

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        chunks = [piece async for piece in stream]
        text = "".join(piece.choices[0].delta.content or "" for piece in chunks)
        assert text == "hi" * 5
        assert all(piece.choices for piece in chunks)  # nobody asked for a usage frame
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert (await s.record()).output_tokens == 5

    _with_sdk(script, test)


def test_a_stream_with_usage() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(5)

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        last = [piece async for piece in stream][-1]
        assert last.usage is not None
        assert last.usage.completion_tokens == 5

    _with_sdk(script, test)


def test_tool_calls() -> None:
    def call(**function: str) -> bytes:
        part = {"index": 0, "id": "c1", "type": "function", "function": function}
        return event({"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]})

    async def script(incoming: Incoming) -> None:
        assert incoming.json["tools"] == TOOLS
        await incoming.sse(call(name="weather", arguments=""), call(arguments='{"city":'), call(arguments='"Ulm"}'))
        await incoming.chunks(finish("tool_calls"), usage(7, 9), DONE)
        await incoming.end()

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, stream=True)
        arguments, reason = "", None
        async for piece in stream:
            choice = piece.choices[0]
            for tool in choice.delta.tool_calls or ():
                assert tool.function is not None
                arguments += tool.function.arguments or ""
            reason = choice.finish_reason or reason
        assert (arguments, reason) == ('{"city":"Ulm"}', "tool_calls")
        record = await s.record()
        assert record.finish_reason == "tool_calls"
        assert record.ttft_ns is not None

    _with_sdk(script, test)


def test_completions_models_and_embeddings() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.target == "/v1/models":
            await incoming.reply(
                {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]}
            )
        elif incoming.target == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
            counts = {"prompt_tokens": 2, "total_tokens": 2}
            await incoming.reply({"object": "list", "model": "m", "data": data, "usage": counts})
        else:
            choice = {"index": 0, "text": "once", "finish_reason": "stop", "logprobs": None}
            await incoming.reply(
                {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
            )

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        assert (await sdk.models.list()).data[0].id == "m"
        vectors = await sdk.embeddings.create(model="m", input="hello", encoding_format="float")
        assert vectors.data[0].embedding == [0.5, 1.0]
        assert (await sdk.completions.create(model="m", prompt="tell")).choices[0].text == "once"
        await s.record(3)
        assert [record.outcome for record in s.records.all] == [OutcomeKind.COMPLETED] * 3

    _with_sdk(script, test)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_the_engines_errors_raise_what_they_would_without_us(status: int, kind: type[openai.APIStatusError]) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"error": {"message": "no", "type": "x", "code": status}}, status)

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        with pytest.raises(kind, match="no"):
            await sdk.chat.completions.create(model="m", messages=MESSAGES)

    _with_sdk(script, test)


def test_an_error_in_mid_stream_raises() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        await asyncio.sleep(0.02)
        incoming.abort()

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        got = 0
        with pytest.raises(openai.APIError, match="closed the connection"):  # noqa: PT012
            async for _ in stream:
                got += 1
        assert got == 2
        assert (await s.record()).reason is Reason.STREAM_CUT

    _with_sdk(script, test)


def test_a_refused_burst_inside_a_200_raises_at_the_call() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(event({"error": {"message": "currently busy and cannot accept", "code": 503}}), DONE)
        await incoming.end()

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.InternalServerError, match="busy") as caught:
            await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        assert caught.value.status_code == 503

    _with_sdk(script, test)


def test_the_sdks_own_retry_works_through_a_refusal() -> None:
    first = True

    async def script(incoming: Incoming) -> None:
        nonlocal first
        if first:
            first = False
            await incoming.reply({"error": {"message": "busy"}}, 503, extra=b"Retry-After-Ms: 10\r\n")
        else:
            await incoming.completion()

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        answer = await sdk.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == "hello"
        await s.record(2)

    _with_sdk(script, test, retries=2)


def test_a_client_timeout_cancels_the_engine() -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        gone.append(await incoming.until_gone())

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        began = time.monotonic()
        with pytest.raises(openai.APITimeoutError):
            await sdk.chat.completions.create(model="m", messages=MESSAGES)
        await s.until(lambda: bool(gone))
        assert time.monotonic() - began < 2
        assert (await s.record()).outcome is OutcomeKind.CANCELLED

    _with_sdk(script, test, timeout_s=0.3)


def test_a_stream_that_is_closed_early_cancels_the_engine() -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        try:
            for _ in range(200):
                await incoming.chunks(token())
                await asyncio.sleep(0.01)
        except ConnectionError:
            gone.append(time.monotonic())
            raise

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await s.until(lambda: bool(gone))
        assert (await s.record()).outcome is OutcomeKind.CANCELLED

    _with_sdk(script, test)


def test_the_gateways_own_refusal_is_a_rate_limit_error() -> None:
    free = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        await free.wait()
        await incoming.completion()

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sdk.chat.completions.create(model="m", messages=MESSAGES))
            await s.until(lambda: len(s.engine.requests) == 1)
            with pytest.raises(openai.RateLimitError) as caught:
                await sdk.chat.completions.create(model="m", messages=MESSAGES)
            free.set()
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"]

    _with_sdk(script, test, lanes=[{"name": "default", "running": 1, "queued": 0}])


def test_an_upload_that_the_sdk_sends_as_a_form() -> None:
    async def script(incoming: Incoming) -> None:
        assert incoming.headers["content-type"].startswith("multipart/form-data")
        assert b"RIFF" in incoming.body
        await incoming.reply({"text": "hello"})

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        answer = await sdk.audio.transcriptions.create(model="m", file=("a.wav", b"RIFF" + b"\0" * 2000))
        assert answer.text == "hello"
        record = await s.record()
        assert (record.endpoint, record.outcome) == ("/v1/audio/transcriptions", OutcomeKind.COMPLETED)

    _with_sdk(script, test)


def test_a_transcription_streams_up_and_down() -> None:
    async def script(incoming: Incoming) -> None:
        assert b'name="model"\r\n\r\nwhisper' in incoming.body
        await incoming.sse(
            event({"type": "transcript.text.delta", "delta": "so it"}),
            event({"type": "transcript.text.delta", "delta": " goes"}),
            event({"type": "transcript.text.done", "text": "so it goes"}),
        )
        await incoming.end()

    async def test(s: Stand, sdk: openai.AsyncOpenAI) -> None:
        audio = ("a.wav", wave(60.0))
        events = await sdk.audio.transcriptions.create(model="whisper", file=audio, stream=True)
        assert [each.type async for each in events] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]
        record = await s.record()
        assert (record.outcome, record.output_tokens, record.stream) == (OutcomeKind.COMPLETED, 2, True)
        assert record.audio_seconds == pytest.approx(60.0)
        assert record.lane == "live"  # its fields come before its file

    _with_sdk(script, test, lanes=[{"name": "live", "match": {"stream": True}}])


def test_an_upload_that_is_too_large_raises_its_status() -> None:
    async def script(incoming: Incoming) -> None:
        raise AssertionError

    async def test(_: Stand, sdk: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError) as caught:
            await sdk.audio.transcriptions.create(model="whisper", file=("a.wav", wave(60.0)))
        assert caught.value.status_code == 413

    _with_sdk(script, test, limits={"upload_bytes": 1_000_000})


def test_an_engines_early_refusal_of_an_upload_raises_its_status() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reader.readexactly(100_000)
        await incoming.reply({"error": {"message": "no key"}}, 401, extra=b"Connection: close\r\n")
        incoming.writer.close()

    async def test(_: Stand, sdk: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError, match="no key"):
            await sdk.audio.transcriptions.create(model="whisper", file=("a.wav", wave(200.0)))

    _with_sdk(script, test, gathers=False)


def test_a_response_stream_that_is_cut_raises() -> None:
    async def script(incoming: Incoming) -> None:
        delta = {"type": "response.output_text.delta", "sequence_number": 0, "delta": "so", "item_id": "i",
                 "output_index": 0, "content_index": 0, "logprobs": []}  # fmt: skip
        await incoming.sse(b"event: response.output_text.delta\n" + event(delta))
        incoming.abort()

    async def test(_: Stand, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.responses.create(model="m", input="x", stream=True)
        seen = []
        with pytest.raises(openai.APIError, match="closed the connection"):  # noqa: PT012  (a stream raises in its loop)
            async for each in stream:
                seen.append(each.type)  # noqa: PERF401  (what came before the error counts)
        assert seen == ["response.output_text.delta"]

    _with_sdk(script, test)
