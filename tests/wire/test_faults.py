"""What goes wrong behind the gateway reaches the client as what it is, and nothing that came is lost."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tailrace.gateway.exchange import GatewayExchange
from tailrace.gateway.transit import Transit
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, event, finish, token, usage
from tests.wire.stand import run, stand

BUSY = {
    "message": "The engine is currently busy and cannot accept new requests.",
    "type": "Service Unavailable",
    "param": None,
    "code": 503,
}
DEAD = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}


@pytest.mark.parametrize("how", ["abort", "close", "no_last_chunk"])
def test_an_engine_that_hangs_up_in_mid_stream(how: str) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token(), token())
        await asyncio.sleep(0.02)
        if how == "abort":
            incoming.abort()
        else:
            incoming.writer.close()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 200
            assert reply.tokens == 3
            assert reply.end == "chunked"
            assert reply.error is not None
            assert (reply.error["reason"], reply.error["stage"], reply.error["code"]) == ("stream_cut", "decode", 502)
            assert b"[DONE]" not in reply.body
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.FAILED,
                Reason.STREAM_CUT,
                "decode",
            )
            assert record.output_tokens == 3

    run(test())


def test_a_fragment_of_an_event_is_not_glued_to_the_error_event() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token()[:30])
        await asyncio.sleep(0.02)
        incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.tokens == 1
            assert reply.error is not None
            assert reply.body.startswith(token() + b'data: {"error"')

    run(test())


def test_a_clean_end_without_an_end_marker_is_no_success() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.tokens == 2
            assert reply.error is not None
            assert reply.error["reason"] == "stream_cut"
            assert (await s.record()).reason is Reason.STREAM_CUT

    run(test())


def test_a_finish_reason_without_done_is_whole() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish("length"))
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body == token() + finish("length")
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_done_without_its_blank_line_is_whole_and_delivered() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), b"data: [DONE]")
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body == token() + b"data: [DONE]"
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_an_engine_that_hangs_up_after_done_has_answered() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish(), DONE)
        await asyncio.sleep(0.02)
        incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.end == "chunked"
            assert reply.error is None
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


@pytest.mark.parametrize("ending", [[DONE], []])
def test_an_error_in_the_first_frame_becomes_the_real_status(ending: list[bytes]) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await asyncio.sleep(0.05)
        await incoming.chunks(event({"error": BUSY}), *ending)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.end) == (503, "length")
            assert "currently busy" in reply.json["error"]["message"]
            assert reply.headers["content-type"] == "application/json"
            assert reply.headers["retry-after"] == "1"
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.QUEUE_FULL)
            assert record.http_status == 503

    run(test())


def test_an_error_frame_after_tokens_is_relayed_and_fails_the_request() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), event({"error": DEAD}), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 200
            assert reply.body == token() + event({"error": DEAD}) + DONE
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.FAILED,
                Reason.ENGINE_CRASH,
                "decode",
            )
            assert "EngineCore" in record.error

    run(test())


def test_a_finish_reason_abort_that_nobody_asked_for_fails() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish("abort"), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body.endswith(DONE)
            assert (await s.record()).reason is Reason.ENGINE_ABORT_UNKNOWN

    run(test())


def test_a_stream_that_ends_before_its_first_event_is_a_502() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 502
            assert reply.json["error"]["reason"] == "stream_cut"
            record = await s.record()
            assert (record.reason, record.died_in) == (Reason.STREAM_CUT, "prefill")

    run(test())


def test_a_200_whose_body_is_an_error_failed() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"error": "model execution failed"})

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert reply.status == 200
            assert (await s.record()).outcome is OutcomeKind.FAILED

    run(test())


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (500, Reason.ENGINE_ERROR),
        (503, Reason.QUEUE_FULL),
        (429, Reason.RATE_LIMITED),
        (404, Reason.UNKNOWN_MODEL),
        (401, Reason.UNAUTHORIZED),
    ],
)
def test_an_error_status_passes_with_its_headers(status: int, reason: Reason) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply(
            {"error": {"message": "The model `x` does not exist."}}, status, extra=b"Retry-After: 7\r\n"
        )

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            reply = await client.ask(request(chat_body()))
            assert (reply.status, reply.headers["retry-after"]) == (status, "7")
            assert len(s.engine.requests) == 1
            assert (await s.record()).reason is reason
            # The connections on both sides stay usable.
            await client.ask(request(chat_body()))
            assert s.engine.requests[1].connection == s.engine.requests[0].connection

    run(test())


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"\x00" * 50]
)
def test_an_engine_that_speaks_no_http(garbage: bytes) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(garbage)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 502
            record = await s.record()
            assert record.outcome is OutcomeKind.FAILED

    run(test())


def test_an_endless_head_is_not_kept() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\n")
        for _ in range(2000):
            await incoming.send(b"X-Pad: " + b"x" * 1000 + b"\r\n")

    async def test() -> None:
        async with stand(script) as s:
            assert (await s.ask(request(chat_body()))).status == 502

    run(test())


def test_nobody_at_the_engines_address() -> None:
    async def test() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with stand(backends=[{"url": f"http://127.0.0.1:{port}"}]) as s:
            client = await s.client()
            for count in (1, 2):
                reply = await client.ask(request(chat_body()))
                assert reply.status == 503
                assert reply.json["error"]["code"] == "engine_unreachable"
                assert (await s.record(count)).reason is Reason.ENGINE_UNREACHABLE
            ready, why = s.gateway.ready()
            assert not ready
            assert str(port) in why

    run(test())


def test_a_plain_answer_that_is_cut_is_not_made_whole() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
        await incoming.send(b"x" * 80_000)
        await asyncio.sleep(0.02)
        incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, reply.end) == (200, "cut")
            assert (await s.record()).reason is Reason.STREAM_CUT

    run(test())


def test_a_plain_answer_that_is_cut_before_anything_left_is_a_502() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await asyncio.sleep(0.01)
        incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            assert (await s.ask(request(chat_body(stream=False)))).status == 502

    run(test())


def test_tokens_and_an_error_in_one_read_are_both_delivered() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD + chunk(token() + token() + event({"error": DEAD}) + DONE) + b"0\r\n\r\n")

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 200
            assert reply.tokens == 2
            assert (await s.record()).output_tokens == 2

    run(test())


def test_an_answer_to_nobody_is_not_given_to_the_next() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion("first" if len(engine_requests) == 1 else "second")
        if len(engine_requests) == 1:
            await incoming.reply({"evil": True})

    engine_requests: list[Incoming] = []

    async def test() -> None:
        async with stand(script) as s:
            engine_requests[:] = []
            s.engine.requests = engine_requests
            client = await s.client()
            first = await client.ask(request(chat_body(stream=False)))
            await asyncio.sleep(0.02)
            second = await client.ask(request(chat_body(stream=False)))
            assert first.json["choices"][0]["message"]["content"] == "first"
            assert second.json["choices"][0]["message"]["content"] == "second"
            assert usage() not in second.body

    run(test())


NESTED = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: " + NESTED + b"\n\n",
        b'data: {"choices":[{"index":0,"delta":{"content":' + NESTED + b"}}]}\n\n",
        b'data: {"choices":[{"index":0,"delta":{"content":' + b"[" * 700 + b"]" * 700 + b"}}]}\n\n",
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":{"type":' + b"[" * 900 + b"]" * 900 + b"}}]}\n\n",
    ],
)
def test_json_nested_without_end_does_not_cut_a_stream(nonsense: bytes) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), nonsense, token(), finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body.endswith(DONE)
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert not s.gateway.in_flight

    run(test())


@pytest.mark.parametrize("status", [200, 500])
def test_an_unstreamed_answer_that_cannot_be_decoded_ends_at_once(status: int) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply(NESTED, status)

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, reply.body) == (status, NESTED)
            record = await s.record()
            assert record.outcome is (OutcomeKind.COMPLETED if status == 200 else OutcomeKind.FAILED)

    run(test())


def test_a_request_nested_without_end_is_refused_as_what_it_is() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(NESTED))
            assert reply.status == 400
            assert (await s.record()).reason is Reason.BAD_REQUEST

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_web_page_is_no_answer(*, stream: bool) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream=stream)))
            assert (reply.status, reply.body) == (200, b"<html>")
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.ENGINE_ERROR)
            assert "web page" in record.error

    run(test())


def test_a_fault_of_ours_ends_the_request_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    async def test() -> None:
        async with stand(script) as s:
            monkeypatch.setattr(Transit, "_plain_complete", fails)
            with pytest.raises(asyncio.IncompleteReadError):
                await s.ask(request(chat_body(stream=False)))
            record = await s.record()
            assert record.outcome is OutcomeKind.FAILED
            assert not s.gateway.in_flight
            assert s.gateway.lanes.snapshot(0)["default"]["running"] == 0

    run(test())


def test_the_sweeper_survives_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    async def test() -> None:
        async with stand(script, budgets={"first_token": "100ms"}) as s:
            with monkeypatch.context() as patch:
                patch.setattr(GatewayExchange, "sweep", fails)
                with pytest.raises(asyncio.IncompleteReadError):
                    await s.ask(request(chat_body()))
                assert (await s.record()).outcome is OutcomeKind.FAILED
            reply = await s.ask(request(chat_body()))
            assert reply.status == 504

    run(test())


ABSURD = [2**53 + 1, 2**63, 2**64 - 1, 10**30, -1, -(2**63), True, 1.5]


@pytest.mark.parametrize("absurd", ABSURD)
def test_absurd_counts_reach_no_record(absurd: float) -> None:
    async def script(incoming: Incoming) -> None:
        counts = {
            "prompt_tokens": absurd,
            "completion_tokens": absurd,
            "prompt_tokens_details": {"cached_tokens": absurd},
            "completion_tokens_details": {"reasoning_tokens": absurd},
        }
        await incoming.sse(token(usage=counts), token(), finish(), event({"choices": [], "usage": counts}), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            await s.ask(request(chat_body(max_tokens=absurd, n=absurd, best_of=absurd, use_beam_search=True)))
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.max_tokens is None
            assert (record.n, record.best_of, record.beam) == (1, 1, 1)
            assert record.prompt_tokens_source == "estimate"
            assert (record.output_tokens, record.output_tokens_source) == (2, "chunks")
            assert (record.cached_tokens, record.reasoning_tokens) == (None, None)

    run(test())
