"""Servers that misbehave: each fault has its outcome and reason, and the run goes on."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tailrace.model.errors import TargetError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import MS
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, error, last, serving, token, whole
from tests.probe.running import run, spec_for

TLS = Path(__file__).parent / "tls"


async def cut_after_two(call: Call) -> None:
    await call.send(HEAD, chunk(token()))
    await asyncio.sleep(0.05)
    await call.send(chunk(token()))
    await asyncio.sleep(0.05)
    call.close()


async def cut_at_once(call: Call) -> None:
    call.close()


async def garbage(call: Call) -> None:
    await call.send(b"\x16\x03\x01 this is no HTTP \r\n\r\n")


async def web_page(call: Call) -> None:
    await call.send(whole(200, b"<!doctype html><html>Login</html>", "text/html"))


async def plain_json(call: Call) -> None:
    await call.send(whole(200, {"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}]}))


async def error_in_json(call: Call) -> None:
    await call.send(whole(200, {"error": {"message": "broken inside", "code": 500}}))


async def server_error(call: Call) -> None:
    await call.send(error(500, "it broke"))


async def bare_502(call: Call) -> None:
    await call.send(whole(502, b"<html>Bad Gateway</html>", "text/html"))


async def busy(call: Call) -> None:
    await call.send(error(503, "The server is currently busy and cannot accept more requests"))


async def too_many(call: Call) -> None:
    await call.send(error(429, "slow down"))


async def too_long(call: Call) -> None:
    await call.send(error(400, "This model's maximum context length is 2048 tokens"))


async def error_frame(call: Call) -> None:
    frame = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
    await call.send(HEAD, chunk(token()), chunk(frame), chunk(b"data: [DONE]\n\n"), END)


async def no_end_marker(call: Call) -> None:
    await call.send(HEAD, chunk(token()), chunk(token()), END)


async def empty_stream(call: Call) -> None:
    await call.send(HEAD, END)


async def nonsense_events(call: Call) -> None:
    await call.send(HEAD, chunk(b"data: hello\n\n"), chunk(b"data: {]\n\n"), END)


async def huge_head(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %b\r\n" % (i, b"y" * 1000) for i in range(100)) + b"\r\n")


async def wrong_chunk(call: Call) -> None:
    await call.send(HEAD, chunk(token()), b"zz\r\nnot a chunk\r\n")


async def redirect(call: Call) -> None:
    await call.send(whole(307, b"", more="location: /elsewhere\r\n"))


@pytest.mark.parametrize(
    ("script", "outcome", "reason", "tokens", "words"),
    [
        (cut_after_two, OutcomeKind.FAILED, Reason.STREAM_CUT, 2, ""),
        (cut_at_once, OutcomeKind.FAILED, Reason.STREAM_CUT, None, "closed|broke|reset"),
        (garbage, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, "no HTTP"),
        (web_page, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, "text/html"),
        (plain_json, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, "application/json"),
        (error_in_json, OutcomeKind.FAILED, Reason.ENGINE_CRASH, None, "broken inside"),
        (server_error, OutcomeKind.FAILED, Reason.ENGINE_ERROR, None, "it broke"),
        (bare_502, OutcomeKind.FAILED, Reason.ENGINE_ERROR, None, "Bad Gateway"),
        (busy, OutcomeKind.REJECTED, Reason.QUEUE_FULL, None, "currently busy"),
        (too_many, OutcomeKind.REJECTED, Reason.RATE_LIMITED, None, "slow down"),
        (too_long, OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG, None, "maximum context"),
        (error_frame, OutcomeKind.FAILED, Reason.ENGINE_CRASH, 1, "EngineCore died"),
        (no_end_marker, OutcomeKind.FAILED, Reason.STREAM_CUT, 2, "without an end marker"),
        (empty_stream, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, "without an event"),
        (nonsense_events, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, "could be read"),
        (huge_head, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, "headers"),
        (wrong_chunk, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, 1, "no HTTP"),
        (redirect, OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, None, ""),
    ],
)
def test_a_fault_has_its_outcome(script, outcome, reason, tokens, words, tmp_path: Path):
    async def every_other(call: Call) -> None:
        # By its id: a request that is tried again on a new connection gets the same treatment.
        await (script(call) if int(call.headers["x-request-id"].rpartition("-")[2]) % 2 == 0 else call.answer())

    with serving(RawServer(every_other)) as server:
        result = run(spec_for(server.url, requests=4, total_ms=5000), tmp_path)
    bad, good = result.records[0::2], result.records[1::2]
    assert [r.outcome for r in good] == [OutcomeKind.COMPLETED] * 2
    for record in bad:
        assert (record.outcome, record.reason) == (outcome, reason)
        assert record.output_tokens == tokens
        assert any(word in record.error for word in words.split("|"))
        assert record.died_in
    assert result.summary.errors == {reason.value: 2}
    # Only what completed is in a latency percentile.
    assert result.summary.metrics["ttft_ms"].n == 2


async def hang_before_head(call: Call) -> None:
    await asyncio.sleep(30)


async def hang_before_token(call: Call) -> None:
    await call.send(HEAD, chunk(b": ping\n\n"))
    for _ in range(300):
        await asyncio.sleep(0.1)
        await call.send(chunk(b": ping\n\n"))


async def hang_after_token(call: Call) -> None:
    await call.send(HEAD, chunk(token()))
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("script", "limits", "reason", "died_in"),
    [
        (hang_before_head, {"total_ms": 300}, Reason.TOTAL_TIMEOUT, "prefill"),
        (hang_before_head, {"first_token_ms": 300}, Reason.FIRST_TOKEN_TIMEOUT, "prefill"),
        (hang_before_token, {"first_token_ms": 300}, Reason.FIRST_TOKEN_TIMEOUT, "prefill"),
        (hang_after_token, {"first_token_ms": 300, "idle_ms": 300}, Reason.IDLE_TIMEOUT, "decode"),
        (hang_after_token, {"idle_ms": 5000, "total_ms": 300}, Reason.TOTAL_TIMEOUT, "decode"),
    ],
)
def test_a_hang_ends_at_its_bound(script, limits, reason, died_in, tmp_path: Path):
    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=2, concurrency=2, **limits), tmp_path)
    for record in result.records:
        assert record.outcome is OutcomeKind.TIMED_OUT
        assert (record.reason, record.died_in) == (reason, died_in)
        assert record.budget == reason.value.removesuffix("_timeout")
        assert 300 * MS <= record.e2e_ns < 1500 * MS
    assert result.summary.errors == {reason.value: 2}


def test_slow_headers_are_in_the_ttft(tmp_path: Path):
    async def script(call: Call) -> None:
        await asyncio.sleep(0.2)
        await call.answer(first_s=0.1)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    for record in result.records:
        assert record.headers_ns is not None
        assert 200 * MS <= record.headers_ns < 290 * MS
        assert record.ttft_ns is not None
        assert 300 * MS <= record.ttft_ns < 500 * MS


def test_a_reply_may_come_a_byte_at_a_time(tmp_path: Path):
    async def script(call: Call) -> None:
        for byte in HEAD + chunk(token()) + chunk(token()) + chunk(last(2)) + END:
            await call.send(bytes([byte]))
            await asyncio.sleep(0)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
        assert len({call.connection for call in server.calls}) == 1
    for record in result.records:
        assert record.outcome is OutcomeKind.COMPLETED
        assert (record.output_tokens, record.output_tokens_source, record.chunk_gap_count) == (2, "usage", 1)


def test_a_reply_may_come_in_one_read_and_the_connection_is_kept(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(token()) + chunk(token()) + chunk(last(2)) + END)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=20), tmp_path)
        assert len({call.connection for call in server.calls}) == 1
    assert result.summary.client.connections_opened == 1
    assert [r.connection_reused for r in result.records] == [False] + [True] * 19
    assert all(r.chunk_gap_max_ns == 0 for r in result.records)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n"]
)
def test_a_body_may_end_with_the_connection(head: bytes, tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(head + b"content-type: text/event-stream\r\n\r\n" + token() + last(1))
        call.writer.close()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert [r.outcome for r in result.records] == [OutcomeKind.COMPLETED] * 3
    assert result.summary.client.connections_opened == 3


def test_a_body_may_have_a_length(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(whole(200, token() + last(1), "text/event-stream; charset=utf-8"))

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert result.summary.client.connections_opened == 1


def test_a_stream_under_another_content_type_is_read(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(whole(200, token() + last(1), "application/octet-stream"))

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}


def test_interim_answers_are_passed_over(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await call.answer()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert {r.http_status for r in result.records} == {200}
    assert result.summary.client.connections_opened == 1


@pytest.mark.parametrize("rubbish", [b"rubbish", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"])
def test_bytes_after_a_reply_cost_the_connection_only(rubbish: bytes, tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(token()) + chunk(last(1)) + END + rubbish)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert result.summary.client.connections_opened == 3


def test_a_kept_connection_that_was_closed_meanwhile_is_tried_again_on_a_new_one(tmp_path: Path):
    async def script(call: Call) -> None:
        if call.number == 1:  # the second request comes on the first one's connection
            call.close()
        else:
            await call.answer()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert [r.attempts for r in result.records] == [1, 2, 1]
    assert result.records[1].retries == 1


def test_a_stream_whose_http_end_never_comes_is_whole_at_its_end_marker(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD, chunk(token()), chunk(last(1)))
        await asyncio.sleep(30)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=1, done_grace_ms=200), tmp_path)
    (record,) = result.records
    assert record.outcome is OutcomeKind.COMPLETED
    assert record.e2e_last_token_ns is not None
    assert record.e2e_last_token_ns < 100 * MS


def test_a_server_that_goes_away_is_recorded_as_unreachable(tmp_path: Path):
    async def script(call: Call) -> None:
        server.stop_listening()
        await call.answer()
        call.close()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert [r.reason for r in result.records][1:] == [Reason.ENGINE_UNREACHABLE] * 2
    assert all(r.ttft_ns is None and r.died_in == "ingress" for r in result.records[1:])


def test_whole_answers(tmp_path: Path):
    async def script(call: Call) -> None:
        assert call.body["stream"] is False
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        choice = {"index": 0, "message": {"role": "assistant", "content": "a b c"}, "finish_reason": "stop"}
        await call.send(whole(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}))

    with serving(RawServer(script, look=script)) as server:
        result = run(spec_for(server.url, stream=False), tmp_path)
    assert result.summary.errors == {}
    assert {(r.output_tokens, r.ttft_ns) for r in result.records} == {(3, None)}
    ttft = result.summary.metrics["ttft_ms"]
    assert ttft.n == 0
    assert ttft.reason


def test_tls(tmp_path: Path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    with serving(RawServer(Call.answer), tls=context) as server:
        with pytest.raises(TargetError, match="TLS failed"):
            run(spec_for(server.url), tmp_path)
        result = run(spec_for(server.url, verify_tls=False, mix="a=4000/3"), tmp_path)
    assert result.summary.errors == {}
    assert result.summary.client.connections_opened == 1
