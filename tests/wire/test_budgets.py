"""Every wait has a budget; a request that exceeds one ends with the stage and the budget in its record."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, deaf_listener, event, finish, token, usage
from tests.wire.stand import run, stand

MS = 0.001


def _budgets(**changes: str) -> dict[str, str]:
    return {"queue": "5s", "first_token": "5s", "idle": "5s", "total": "9s", "unstreamed_total": "9s", **changes}


def test_no_first_token() -> None:
    async def script(incoming: Incoming) -> None:
        assert await incoming.until_gone() < 0.6

    async def test() -> None:
        async with stand(script, budgets=_budgets(first_token="300ms")) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 504
            error = reply.json["error"]
            assert (error["reason"], error["stage"]) == ("first_token_timeout", "prefill")
            record = await s.record()
            assert record.outcome is OutcomeKind.TIMED_OUT
            assert (record.reason, record.budget) == (Reason.FIRST_TOKEN_TIMEOUT, "first_token")
            assert record.http_status == 504
            assert 300e6 <= record.e2e_ns < 600e6

    run(test())


def test_comments_role_frames_and_empty_frames_do_not_feed_the_first_token_budget() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        with_role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for _ in range(40):
            await incoming.chunks(b": keep-alive\n\n", with_role)
            await asyncio.sleep(0.02)

    async def test() -> None:
        async with stand(script, budgets=_budgets(first_token="300ms")) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.status == 200
            assert reply.end == "chunked"
            assert reply.error is not None
            assert reply.error["reason"] == "first_token_timeout"
            assert b": keep-alive" in reply.body
            assert b"[DONE]" not in reply.body
            record = await s.record()
            assert record.reason is Reason.FIRST_TOKEN_TIMEOUT
            assert record.ttft_ns is None
            assert record.e2e_ns < 600e6

    run(test())


def test_the_engine_says_that_it_is_still_queued() -> None:
    metrics = b"vllm:num_requests_running 8\nvllm:num_requests_waiting 4\n"

    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        side = {"/metrics": metrics}
        async with stand(script, side=side, budgets=_budgets(first_token="200ms"), scrape={"period": "50ms"}) as s:
            await s.until(lambda: s.gateway.backends.first.engine.name == "vllm")
            reply = await s.ask(request(chat_body()))
            assert reply.json["error"]["stage"] == "queue"
            assert (await s.record()).died_in == "queue"

    run(test())


def test_llamacpp_before_and_after_its_status_line() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["late"]:
            await incoming.send(SSE_HEAD)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets=_budgets(first_token="200ms")) as s:
            s.gateway.backends.first.engine.recognise({"server": "llama.cpp"})
            await s.ask(request(chat_body(late=False)))
            assert (await s.record(1)).died_in == "queue"
            await s.ask(request(chat_body(late=True)))
            assert (await s.record(2)).died_in == "prefill"

    run(test())


def test_idle_in_mid_stream() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        for _ in range(50):
            await incoming.chunks(b": ping\n\n")
            await asyncio.sleep(0.02)

    async def test() -> None:
        async with stand(script, budgets=_budgets(idle="300ms")) as s:
            began = time.monotonic()
            reply = await s.ask(request(chat_body()))
            assert time.monotonic() - began < 0.8
            assert reply.tokens == 2
            assert reply.end == "chunked"
            assert reply.error is not None
            assert (reply.error["reason"], reply.error["stage"]) == ("idle_timeout", "decode")
            assert b"[DONE]" not in reply.body
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.IDLE_TIMEOUT)
            assert (record.died_in, record.budget, record.output_tokens) == ("decode", "idle", 2)

    run(test())


def test_progress_keeps_an_idle_stream_alive() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(6):
            await incoming.chunks(token())
            await asyncio.sleep(0.15)
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, budgets=_budgets(idle="300ms")) as s:
            assert (await s.ask(request(chat_body()))).body.endswith(DONE)
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_a_finished_stream_that_the_engine_does_not_end_is_ended_for_the_client() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish(), DONE)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets=_budgets(idle="200ms")) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.end == "chunked"
            assert reply.error is None
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_total_of_a_stream_that_trickles() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(100):
            await incoming.chunks(token())
            await asyncio.sleep(0.03)

    async def test() -> None:
        async with stand(script, budgets=_budgets(total="400ms")) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.tokens > 5
            assert reply.error is not None
            assert reply.error["reason"] == "total_timeout"
            record = await s.record()
            assert (record.reason, record.budget, record.died_in) == (Reason.TOTAL_TIMEOUT, "total", "decode")

    run(test())


def test_total_of_an_answer_in_one_piece() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        budgets = _budgets(unstreamed_total="300ms", first_token="100ms", idle="100ms")
        async with stand(script, budgets=budgets) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert reply.status == 504
            assert reply.json["error"]["reason"] == "total_timeout"
            record = await s.record()
            assert (record.reason, record.budget) == (Reason.TOTAL_TIMEOUT, "unstreamed_total")

    run(test())


def test_a_plain_body_that_stops_half_way_is_no_whole_answer() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets=_budgets(unstreamed_total="400ms")) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, reply.end) == (200, "cut")
            assert (await s.record()).reason is Reason.TOTAL_TIMEOUT

    run(test())


def test_a_deadline_only_shortens() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets=_budgets(first_token="600ms")) as s:
            reply = await s.ask(request(chat_body(), headers={"X-Deadline-Ms": "200"}))
            assert (reply.status, reply.json["error"]["reason"]) == (504, "deadline")
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.DEADLINE)
            assert record.e2e_ns < 450e6
            await s.ask(request(chat_body(), headers={"X-Deadline-Ms": "60000"}))
            assert (await s.record(2)).reason is Reason.FIRST_TOKEN_TIMEOUT
            await s.ask(request(chat_body(), headers={"X-Deadline-Ms": "soon"}))
            assert (await s.record(3)).reason is Reason.FIRST_TOKEN_TIMEOUT

    run(test())


def test_the_status_line_waits_for_the_first_event_but_not_long() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await asyncio.sleep(0.6)
        await incoming.chunks(token(), finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            began = time.monotonic()
            await client.send(request(chat_body()))
            await client.head()
            waited = time.monotonic() - began
            assert 0.1 < waited < 0.35
            assert (await client.next_chunk() or b"").startswith(token())

    run(test())


def test_connecting_has_a_budget() -> None:
    async def test() -> None:
        with deaf_listener() as url:
            async with stand(backends=[{"url": url}], connect_timeout="200ms") as s:
                reply = await s.ask(request(chat_body()))
                assert reply.status == 503
                assert reply.headers["retry-after"] == "1"
                record = await s.record()
                assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE)
                assert "200 ms" in record.error

    run(test())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_a_timeout_speaks_the_apis_own_dialect(path: str) -> None:
    def part(text: str) -> bytes:
        if path == "/v1/messages":
            return (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
                b'"delta":{"type":"text_delta","text":"%b"}}\n\n' % text.encode()
            )
        return (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%b"}\n\n'
            % text.encode()
        )

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD + chunk(part("a")))
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets=_budgets(idle="200ms")) as s:
            reply = await s.ask(request(chat_body(), path=path))
            assert b"event: error\ndata: " in reply.body
            assert b'"type":"error"' in reply.body
            assert b"idle_timeout" in reply.body
            assert (await s.record()).output_tokens == 1

    run(test())


def test_usage_that_comes_late_is_no_timeout() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish())
        await asyncio.sleep(0.15)
        await incoming.chunks(usage(7, 1), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, budgets=_budgets(idle="400ms")) as s:
            await s.ask(request(chat_body()))
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.postprocess_ns is not None
            assert record.postprocess_ns > 100e6

    run(test())
