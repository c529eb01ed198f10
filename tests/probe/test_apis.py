"""Every API that the load generator speaks, against a server that says what it got."""

from __future__ import annotations

import json
import wave
from io import BytesIO
from pathlib import Path

import pytest

from tailrace.model.errors import InputError, TargetError
from tailrace.model.outcome import OutcomeKind
from tailrace.workload.call import Call as ClassCall
from tailrace.workload.length import Fixed
from tailrace.workload.mix import TrafficClass
from tailrace.workload.plan import Workload
from tailrace.workload.traits import Traits
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, error, serving, whole
from tests.probe.running import run, spec_for


def events(*items: dict | str) -> bytes:
    return b"".join(
        b"data: " + (one.encode() if isinstance(one, str) else json.dumps(one).encode()) + b"\n\n" for one in items
    )


def named(*items: dict) -> bytes:
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in items)


async def chat(call: Call) -> None:
    await call.answer()


async def completions(call: Call) -> None:
    count = call.body["max_tokens"]
    await call.send(HEAD)
    for _ in range(count):
        await call.send(chunk(events({"id": "t", "choices": [{"index": 0, "text": " a", "finish_reason": None}]})))
    usage = {"prompt_tokens": 10, "completion_tokens": count}
    done = {"id": "t", "choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
    await call.send(chunk(events(done, "[DONE]")), END)


async def responses(call: Call) -> None:
    count = call.body["max_output_tokens"]
    await call.send(HEAD)
    for i in range(count):
        delta = {"type": "response.output_text.delta", "delta": " a", "sequence_number": i}
        await call.send(chunk(named(delta)))
    usage = {"input_tokens": 10, "output_tokens": count}
    done = {"type": "response.completed", "response": {"id": "r", "status": "completed", "usage": usage}}
    await call.send(chunk(named(done)), END)


async def messages(call: Call) -> None:
    count = call.body["max_tokens"]
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10, "output_tokens": 1}}}
    await call.send(HEAD, chunk(named(start)))
    for _ in range(count):
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " a"}}
        await call.send(chunk(named(delta)))
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": count}}
    await call.send(chunk(named(end, {"type": "message_stop"})), END)


async def embeddings(call: Call) -> None:
    inputs = call.body["input"]
    many = len(inputs) if isinstance(inputs, list) else 1
    data = [{"object": "embedding", "index": i, "embedding": [0.1] * 64} for i in range(many)]
    usage = {"prompt_tokens": 10 * many, "total_tokens": 10 * many}
    await call.send(whole(200, {"object": "list", "data": data, "model": "m", "usage": usage}))


async def transcription(call: Call) -> None:
    if b'name="stream"' not in call.content:
        await call.send(whole(200, {"text": "some words", "usage": {"type": "duration", "seconds": 2}}))
        return
    await call.send(HEAD)
    for _ in range(3):
        await call.send(chunk(events({"type": "transcript.text.delta", "delta": " word"})))
    done = {"type": "transcript.text.done", "text": " word word word"}
    await call.send(chunk(events(done)), END)


STREAMING = {
    "chat": ("/v1/chat/completions", chat),
    "completions": ("/v1/completions", completions),
    "responses": ("/v1/responses", responses),
    "messages": ("/v1/messages", messages),
}


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("how", ["name", "url"])
def test_each_streaming_api_by_its_name_and_by_its_whole_url(name: str, how: str, tmp_path: Path):
    path, script = STREAMING[name]
    with serving(RawServer(script, look=script)) as server:
        url, endpoint = (server.url, name) if how == "name" else (server.url + path, "")
        result = run(spec_for(url, endpoint=endpoint, mix="a=10/4"), tmp_path)
    assert {call.path for call in server.calls} == {path}
    for record in result.records:
        assert (record.outcome, record.output_tokens, record.prompt_tokens) == (OutcomeKind.COMPLETED, 4, 10)
        assert record.ttft_ns is not None
        assert record.endpoint == path


def test_a_path_that_the_endpoint_names(tmp_path: Path):
    with serving(RawServer(chat)) as server:
        run(spec_for(server.url, endpoint="/api/chat/completions"), tmp_path)
    assert {call.path for call in server.calls} == {"/api/chat/completions"}
    with pytest.raises(InputError, match="no path of a known API"):
        run(spec_for(server.url, endpoint="/api/chat"), tmp_path)
    with pytest.raises(InputError, match="no endpoint 'speech'"):
        run(spec_for(server.url, endpoint="speech"), tmp_path)


def test_embeddings_have_a_latency_and_no_tokens(tmp_path: Path):
    work = [TrafficClass(name="e", prompt=Fixed(10), output=Fixed(1), traits=Traits(batch=4))]
    spec = spec_for("", requests=5)
    spec = spec_for("x", requests=5, workload=Workload(arrivals=spec.workload.arrivals, mix=work))
    with serving(RawServer(embeddings, look=embeddings)) as server:
        result = run(spec_for(server.url + "/v1/embeddings", requests=5, workload=spec.workload), tmp_path)
    bodies = [call.body for call in server.calls]
    assert all(len(body["input"]) == 4 and len(set(body["input"])) == 4 for body in bodies)
    assert all("max_tokens" not in body and "stream" not in body for body in bodies)
    assert len({one for body in bodies for one in body["input"]}) == 20, "no cache can answer"
    summary = result.summary
    assert (summary.n, summary.errors) == (5, {})
    assert summary.metrics["e2e_ms"].n == 5
    for absent in ("ttft_ms", "tpot_ms", "chunk_gap_ms", "e2e_last_token_ms"):
        assert summary.metrics[absent].n == 0
        assert summary.metrics[absent].reason
    assert all(r.prompt_tokens == 40 and r.output_tokens is None and not r.stream for r in result.records)
    assert all(r.max_tokens is None for r in result.records)


def test_a_server_that_answers_embeddings_with_an_error(tmp_path: Path):
    async def refuse(call: Call) -> None:
        await call.send(error(429, "too many"))

    with serving(RawServer(refuse, look=embeddings)) as server:
        result = run(spec_for(server.url, endpoint="embeddings"), tmp_path)
    assert result.summary.errors == {"rate_limited": 3}


def parts_of(call: Call) -> dict[str, bytes]:
    """The fields of a multipart body, read as the standard says."""
    boundary = call.headers["content-type"].partition("boundary=")[2].encode()
    out = {}
    pieces = call.content.split(b"--" + boundary)
    assert pieces[0] == b""
    assert pieces[-1] == b"--\r\n"
    for piece in pieces[1:-1]:
        head, _, value = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = head.decode().partition('name="')[2].partition('"')[0]
        out[name] = value.removesuffix(b"\r\n")
    return out


def spoken(ms: int):
    return [TrafficClass(name="speech", prompt=Fixed(1), output=Fixed(1), traits=Traits(audio=Fixed(ms)))]


@pytest.mark.parametrize("stream", [True, False])
def test_recordings_are_uploaded_and_have_a_real_time_factor(stream: bool, tmp_path: Path):
    workload = Workload(arrivals=spec_for("x").workload.arrivals, mix=spoken(2500))
    with serving(RawServer(transcription, look=transcription)) as server:
        spec = spec_for(server.url, endpoint="transcriptions", stream=stream, workload=workload, requests=6)
        result = run(spec, tmp_path)
    assert {call.path for call in server.calls} == {"/v1/audio/transcriptions"}
    sounds = set()
    for call in server.calls:
        fields = parts_of(call)
        assert fields["model"] == b"m"
        assert ("stream" in fields) == stream
        with wave.open(BytesIO(fields["file"])) as sound:
            assert (sound.getframerate(), sound.getnchannels(), sound.getnframes()) == (16_000, 1, 40_000)
        sounds.add(fields["file"])
    assert len(sounds) == 6, "each its own"
    assert all(r.audio_seconds == 2.5 and r.prompt_tokens is None for r in result.records)
    assert all((r.ttft_ns is not None) == stream for r in result.records)
    rtf = result.summary.metrics["rtf"]
    assert rtf.n == 6
    assert rtf.mean == pytest.approx(sum(r.e2e_ns / 2.5e9 for r in result.records) / 6)
    assert result.summary.work is not None
    assert result.summary.work.audio is not None
    assert result.summary.work.audio.audio_seconds == 15


def test_given_recordings_are_sent_in_turn(tmp_path: Path):
    for i, seconds in enumerate((1, 3)):
        with wave.open(str(tmp_path / f"{i}.wav"), "wb") as sound:
            sound.setnchannels(2)
            sound.setsampwidth(2)
            sound.setframerate(8000)
            sound.writeframes(bytes(seconds * 8000 * 4))
    with serving(RawServer(transcription, look=transcription)) as server:
        spec = spec_for(server.url, endpoint="transcriptions", audio_files=[str(tmp_path)], requests=4)
        result = run(spec, tmp_path)
    assert [r.audio_seconds for r in result.records] == [1, 3, 1, 3]
    assert parts_of(server.calls[1])["file"] == (tmp_path / "1.wav").read_bytes()
    (tmp_path / "0.wav").write_bytes(b"not sound")
    with serving(RawServer(transcription)) as server, pytest.raises(InputError, match="no WAV file"):
        run(spec_for(server.url, endpoint="transcriptions", audio_files=[str(tmp_path)]), tmp_path)


TEMPLATE = """{
  "inputs": "Q: {{prompt}}", "parameters": {"max_new_tokens": {{max_tokens}}}, "id": "{{request_id}}", "m": {{messages}}
}"""


def test_a_template_goes_to_any_url_and_is_read_as_named(tmp_path: Path):
    async def tgi(call: Call) -> None:
        await call.send(HEAD)
        count = call.body["parameters"]["max_new_tokens"]
        for i in range(count):
            token = {"index": i, "token": {"id": i, "text": " a", "special": False}, "generated_text": None}
            if i == count - 1:
                token |= {
                    "generated_text": " a" * count,
                    "details": {"finish_reason": "length", "generated_tokens": count},
                }
            await call.send(chunk(events(token)))
        await call.send(END)

    async def unknown(call: Call) -> None:
        await call.send(whole(404, {"error": "no such path"}))

    # No model is named in the template, so it does not matter that the server lists none.
    with serving(RawServer(tgi, look=tgi, on_get=unknown)) as server:
        spec = spec_for(server.url + "/custom/path?x=1", model=None, template=TEMPLATE, dialect="tgi", mix="a=10/4")
        result = run(spec, tmp_path)
    assert {call.path for call in server.calls} == {"/custom/path?x=1"}
    assert all(call.body["inputs"].startswith("Q: ") for call in server.calls)
    assert [call.body["id"] for call in server.calls] == [r.request_id for r in result.records]
    assert server.calls[0].body["m"] == [{"role": "user", "content": server.calls[0].body["inputs"][3:]}]
    assert all((r.outcome, r.output_tokens) == (OutcomeKind.COMPLETED, 4) for r in result.records)


def test_a_shape_that_nobody_knows_is_timed_all_the_same(tmp_path: Path):
    async def odd(call: Call) -> None:
        await call.send(HEAD)
        for _ in range(5):
            await call.send(chunk(b"data: <word>\n\n"))
        await call.send(END)

    with serving(RawServer(odd, look=odd)) as server:
        result = run(spec_for(server.url + "/say", template='{"q": "{{prompt}}"}'), tmp_path)
    assert result.summary.errors == {}
    assert all(r.ttft_ns is not None and r.output_tokens == 5 for r in result.records)
    assert {r.output_tokens_source for r in result.records} == {"chunks"}


def test_a_template_whose_answers_do_not_stream(tmp_path: Path):
    async def body(call: Call) -> None:
        await call.send(whole(200, {"answer": "yes"}))

    with serving(RawServer(body, look=body)) as server:
        template = '{"q": "{{prompt}}"}'
        with pytest.raises(TargetError, match="does not stream"):
            run(spec_for(server.url + "/say", template=template), tmp_path)
        result = run(spec_for(server.url + "/say", template=template, stream=False), tmp_path)
    assert (result.summary.n, result.summary.errors) == (3, {})


def test_classes_may_be_asked_in_their_own_ways(tmp_path: Path):
    async def either(call: Call) -> None:
        await (embeddings(call) if call.path.endswith("/embeddings") else call.answer())

    mix = [
        TrafficClass(name="chat", prompt=Fixed(10), output=Fixed(3)),
        TrafficClass(
            name="embed",
            prompt=Fixed(20),
            output=Fixed(1),
            traits=Traits(batch=2, call=ClassCall(endpoint="embeddings", model="e", extra_body={"dimensions": 8})),
        ),
    ]
    workload = Workload(arrivals=spec_for("x").workload.arrivals, mix=mix)
    with serving(RawServer(either, look=either)) as server:
        result = run(spec_for(server.url, workload=workload, requests=20), tmp_path)
    by_class = {name: [r for r in result.records if r.lane == name] for name in ("chat", "embed")}
    assert min(map(len, by_class.values())) > 2
    assert {r.endpoint for r in by_class["embed"]} == {"/v1/embeddings"}
    assert {(r.model, r.stream) for r in by_class["embed"]} == {("e", False)}
    assert {(r.model, r.stream) for r in by_class["chat"]} == {("m", True)}
    asked = next(call.body for call in server.calls if call.path.endswith("/embeddings"))
    assert (len(asked["input"]), asked["dimensions"]) == (2, 8)
    assert result.summary.errors == {}


def test_fixed_lengths_fall_back_to_min_tokens_where_ignore_eos_is_refused(tmp_path: Path):
    async def strict(call: Call) -> None:
        await (call.send(error(400, "unknown field ignore_eos")) if "ignore_eos" in call.body else call.answer())

    with serving(RawServer(strict, look=strict)) as server:
        result = run(spec_for(server.url, mix="a=10/5"), tmp_path)
    assert all(call.body["min_tokens"] == 5 for call in server.calls)
    assert any("ignore_eos" in note for note in result.run.header.notes)


def test_answers_that_end_early_are_counted(tmp_path: Path):
    async def short(call: Call) -> None:
        await call.answer(tokens=2 if call.number % 2 else 5)

    with serving(RawServer(short)) as server:
        result = run(spec_for(server.url, mix="a=10/5", requests=6, ignore_eos=False), tmp_path)
    assert all("ignore_eos" not in call.body and "min_tokens" not in call.body for call in server.calls)
    assert result.summary.work is not None
    answers = result.summary.work.answers
    assert answers is not None
    assert (answers.n, answers.ended_early, answers.planned_tokens, answers.counted_tokens) == (6, 3, 30, 21)
