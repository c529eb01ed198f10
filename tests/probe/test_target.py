"""The look before the run: every mistake that would make all requests fail is one sentence with its remedy."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import InputError, TargetError
from tailrace.probe.target import Target, find_target
from tailrace.probe.url import parse_url
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, error, last, serving, token, whole
from tests.probe.running import run, spec_for


def look(server: RawServer, path: str = "", **more) -> Target:
    given_ = {"chars_per_token": None} | more
    return uvloop.run(find_target(spec_for(server.url + path, **given_)))


# -- URLs


@pytest.mark.parametrize(
    ("text", "origin", "paths"),
    [
        ("localhost:8000", "http://localhost:8000", ("/v1/chat/completions", "/chat/completions")),
        ("http://h", "http://h", ("/v1/chat/completions", "/chat/completions")),
        ("https://h:443/v1/", "https://h", ("/v1/chat/completions",)),
        ("http://h:8/api/v1", "http://h:8", ("/api/v1/chat/completions",)),
        ("http://h/llm", "http://h", ("/llm/v1/chat/completions", "/llm/chat/completions")),
        ("http://h/v1/completions", "http://h", ("/v1/completions",)),
        ("http://h/v1/responses", "http://h", ("/v1/responses",)),
        ("http://h/v1/messages", "http://h", ("/v1/messages",)),
        ("http://h/openai/chat/completions?api-version=2", "http://h", ("/openai/chat/completions?api-version=2",)),
        ("http://[::1]:80/v1", "http://[::1]", ("/v1/chat/completions",)),
    ],
)
def test_a_url_may_be_a_base_with_or_without_v1_or_an_endpoint(text: str, origin: str, paths: tuple[str, ...]):
    url = parse_url(text)
    assert (url.origin, url.paths) == (origin, paths)


@pytest.mark.parametrize(
    "text", ["", "ftp://h", "http://", "http://h:99999", "http://u:p@h", "http://h/a b", "http://h:x"]
)
def test_what_is_no_url_is_refused(text: str):
    with pytest.raises(InputError):
        parse_url(text)


@given(st.text(max_size=40))
def test_any_text_is_a_url_or_an_input_error(text: str):
    try:
        url = parse_url(text)
    except InputError:
        return
    assert url.host
    assert all(path.startswith("/") for path in url.paths)
    assert "\r" not in "".join(url.paths) + url.host_header


# -- sound targets


def test_the_base_url_finds_the_endpoint_and_the_model():
    with serving(RawServer(Call.answer, models=("first", "second"))) as server:
        target = look(server, model=None)
    assert (target.path, target.options.model) == ("/v1/chat/completions", "first")
    assert any("first of 2" in note for note in target.notes)
    assert {call.body["model"] for call in server.looks} == {"first"}
    assert all(call.body["max_tokens"] == 1 for call in server.looks)


def test_an_endpoint_without_v1_is_found():
    async def script(call: Call) -> None:
        await (call.answer() if call.path == "/chat/completions" else call.send(whole(404, b"nope", "text/plain")))

    with serving(RawServer(Call.answer, look=script)) as server:
        assert look(server).path == "/chat/completions"


@pytest.mark.parametrize(
    ("path", "field", "bound"),
    [
        ("/v1/chat/completions", "messages", "max_tokens"),
        ("/v1/completions", "prompt", "max_tokens"),
        ("/v1/responses", "input", "max_output_tokens"),
        ("/v1/messages", "messages", "max_tokens"),
    ],
)
def test_each_api_is_asked_in_its_own_words(path: str, field: str, bound: str):
    async def script(call: Call) -> None:
        if call.path.endswith("/messages"):
            event = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        elif call.path.endswith("/responses"):
            event = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n'
        else:
            event = token() + last(1)
        await call.send(HEAD, chunk(event), END)

    with serving(RawServer(Call.answer, look=script)) as server:
        target = look(server, path, api_key="k")
    first = server.looks[0]
    assert target.path == path
    assert field in first.body
    assert first.body[bound] == 1
    assert first.headers["authorization"] == "Bearer k"
    assert ("x-api-key" in first.headers) == path.endswith("/messages")


def test_prompts_are_calibrated_by_what_the_server_counts(tmp_path: Path):
    async def count(call: Call) -> None:
        characters = len(call.body["messages"][0]["content"])
        await call.send(HEAD, chunk(token()), chunk(last(1, prompt=round(characters / 5) + 12)), END)

    with serving(RawServer(count, look=count)) as server:
        target = look(server)
        result = run(spec_for(server.url, chars_per_token=None, mix="a=500/1"), tmp_path)
    assert target.calibrated
    assert target.calibration == pytest.approx((5.0, 12.0), abs=0.6)
    assert all(record.prompt_tokens == pytest.approx(500, abs=3) for record in result.records)
    assert result.counters["counted_prompt_tokens"] == pytest.approx(result.counters["planned_prompt_tokens"], rel=0.01)


def test_optional_fields_that_the_server_refuses_are_dropped(tmp_path: Path):
    async def strict(call: Call) -> None:
        if "ignore_eos" in call.body:
            await call.send(error(400, "Unrecognized request argument supplied: ignore_eos"))
        else:
            await call.answer()

    with serving(RawServer(strict, look=strict)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert any("ignore_eos" in note for note in result.run.header.notes)


def test_a_simulated_engine_is_told_the_prompt_length():
    async def simulated(call: Call) -> None:
        await call.send(HEAD.replace(b"\r\n\r\n", b"\r\nserver: tailrace-simulated-engine/1\r\n\r\n"))
        await call.send(chunk(token()), chunk(last(1)), END)

    with serving(RawServer(Call.answer, look=simulated)) as server:
        assert look(server).options.state_prompt_tokens


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_a_target_all_the_same(status: int, tmp_path: Path):
    async def busy(call: Call) -> None:
        await call.send(error(status, "not now"))

    with serving(RawServer(Call.answer, look=busy)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert any(f"{status} (not now)" in note for note in result.run.header.notes)


def test_a_look_that_is_cut_is_a_note(tmp_path: Path):
    async def cut(call: Call) -> None:
        await call.send(HEAD, chunk(token()))
        await asyncio.sleep(0.05)
        call.close()

    with serving(RawServer(Call.answer, look=cut)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}


def test_headers_and_extra_body_go_with_every_request(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        run(spec_for(server.url, headers=[("X-Lane", "batch")], extra_body={"temperature": 0}), tmp_path)
    for call in server.looks + server.calls:
        assert call.headers["x-lane"] == "batch"
        assert call.body["temperature"] == 0
        assert call.body["stream_options"] == {"include_usage": True}
    assert len({call.headers["x-request-id"] for call in server.calls}) == 3
    assert len({call.body["messages"][0]["content"][:20] for call in server.calls}) == 3


def test_a_class_that_does_not_fit_the_model_is_told_before(tmp_path: Path):
    async def models(call: Call) -> None:
        await call.send(
            whole(200, {"data": [{"id": "m", "max_model_len": 2048}]})
            if call.path.endswith("models")
            else error(404, "no")
        )

    with serving(RawServer(Call.answer, on_get=models)) as server:
        notes = run(spec_for(server.url, model=None, mix="a=100/5,b=2000/100"), tmp_path).run.header.notes
    assert [note for note in notes if "2048" in note] == [
        "class b reaches beyond the model's 2048 tokens; the server will refuse such requests"
    ]


# -- what is no target


def page(status: int):
    async def script(call: Call) -> None:
        await call.send(whole(status, b"<!DOCTYPE html><html><body>Welcome</body></html>", "text/html"))

    return script


async def silent_json(call: Call) -> None:
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
    await call.send(whole(200, {"choices": [choice]}))


async def other_json(call: Call) -> None:
    await call.send(whole(200, {"hello": "world"}))


async def other_events(call: Call) -> None:
    await call.send(HEAD, chunk(b"data: tick\n\n"), END)


async def plain_text(call: Call) -> None:
    await call.send(whole(200, b"OK", "text/plain"))


async def moved(call: Call) -> None:
    await call.send(whole(301, b"", more="location: https://other/\r\n"))


async def no_key(call: Call) -> None:
    await call.send(error(401, "missing key"))


async def unknown_model(call: Call) -> None:
    if call.method == "GET":
        await call.send(whole(200, {"data": [{"id": "llama"}, {"id": "qwen"}]}))
    else:
        await call.send(error(404, "The model `m` does not exist.", type="NotFoundError"))


async def bad_request(call: Call) -> None:
    await call.send(error(422, "field required: tools"))


async def not_found(call: Call) -> None:
    await call.send(whole(404, {"detail": "Not Found"}))


async def closes(call: Call) -> None:
    call.close()


async def talks_ssh(call: Call) -> None:
    await call.send(b"SSH-2.0-OpenSSH_9.2\r\n")


@pytest.mark.parametrize(
    ("script", "said", "remedy", "more"),
    [
        (page(200), "web page", "base URL", {}),
        (page(200), "web page", "base URL", {"model": None}),
        (page(404), "has no /v1/chat/completions and no /chat/completions", "base URL", {}),
        (silent_json, "does not stream", "--no-stream", {}),
        (other_json, "answers stream=true with application/json", "OpenAI-compatible", {}),
        (other_json, "does not answer as", "OpenAI-compatible", {"stream": False}),
        (other_json, "does not say which models", "--model", {"model": None}),
        (other_events, "no event of /chat/completions", "OpenAI-compatible", {}),
        (plain_text, "no event of /chat/completions", "OpenAI-compatible", {}),
        (moved, "redirects to 'https://other/'", "that URL", {}),
        (no_key, "refuses the key (401: missing key)", "--api-key", {}),
        (no_key, "refuses the key", "--api-key", {"model": None}),
        (unknown_model, "does not know the model 'm'", "llama, qwen", {}),
        (bad_request, "422: field required: tools", "--extra-body", {}),
        (not_found, "has no /v1/chat/completions", "base URL", {}),
        (closes, "no answer from", "Is the server running", {}),
        (talks_ssh, "no HTTP", "Is the server running", {}),
    ],
)
def test_what_is_no_target_is_one_sentence_with_its_remedy(script, said: str, remedy: str, more: dict, tmp_path: Path):
    out = tmp_path / "probe.run"
    with serving(RawServer(Call.answer, look=script)) as server, pytest.raises(TargetError) as caught:
        run(spec_for(server.url, **more), tmp_path)
    assert said in caught.value.message
    assert remedy in caught.value.remedy
    assert "\n" not in str(caught.value)
    assert server.calls == []
    assert not out.exists()


def test_nobody_there(free_port: int, tmp_path: Path):
    with pytest.raises(TargetError, match=r"no answer from .*refused"):
        run(spec_for(f"http://127.0.0.1:{free_port}"), tmp_path)


def test_a_name_that_does_not_resolve(tmp_path: Path):
    with pytest.raises(TargetError, match="does not resolve"):
        run(spec_for("http://nobody.invalid"), tmp_path)


def test_a_listener_that_says_nothing_is_given_up(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TargetError, match=r"no answer within 0\.3 s"):
            run(spec_for(url, total_ms=300), tmp_path)


@pytest.mark.parametrize(("lane", "asked"), [(b"", True), (b"x-tailrace-lane: default\r\n", False)])
def test_metrics_are_not_asked_of_a_gateway(lane: bytes, asked: bool):
    """Its data port has none; the question would be a failure on its dashboards."""

    async def answering(call: Call) -> None:
        await call.send(HEAD.replace(b"\r\n\r\n", b"\r\n" + lane + b"\r\n"), chunk(token()), chunk(last(1)), END)

    async def models(call: Call) -> None:
        await call.send(whole(200, {"data": [{"id": "m"}]}) if call.path == "/v1/models" else whole(404, {}))

    with serving(RawServer(Call.answer, look=answering, on_get=models)) as server:
        look(server)
        assert ("/metrics" in server.gets) is asked
