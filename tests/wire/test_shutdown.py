"""A stop drains, then cuts what is left, tells it so, and counts it."""

from __future__ import annotations

import asyncio
import time

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, token
from tests.wire.stand import run, stand


def test_requests_that_end_in_time_are_served_to_the_end() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(4, gap=0.05)

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            idle = await s.client()
            await s.until(lambda: len(s.gateway.connections) == 2)
            closing = asyncio.ensure_future(s.gateway.close(2.0))
            assert await idle.closed()
            reply = await client.reply()
            assert reply.end == "chunked"
            assert reply.tokens == 4
            assert await closing == 0
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_what_does_not_end_is_cut_and_told() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["begun"]:
            await incoming.sse(token())
        else:
            await incoming.send(SSE_HEAD)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            begun, waiting, uploading = [await s.client() for _ in range(3)]
            await begun.send(request(chat_body(begun=True)))
            await waiting.send(request(chat_body(begun=False)))
            await uploading.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
            await s.until(lambda: len(s.gateway.in_flight) == 3)
            await begun.head()
            began = time.monotonic()
            cut = await s.gateway.close(0.1)
            assert time.monotonic() - began < 0.6
            assert cut == s.gateway.counters.cut_at_shutdown == 3
            assert await begun.next_chunk() == token()
            last = await begun.next_chunk()
            assert last is not None
            assert b'"reason":"shutdown"' in last
            reply = await waiting.reply()
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert await uploading.closed()
            await s.record(3)
            assert {(r.outcome, r.reason) for r in s.records.all} == {(OutcomeKind.CANCELLED, Reason.SHUTDOWN)}
            assert {r.died_in for r in s.records.all} == {"decode", "prefill", "ingress"}

    run(test())


def test_a_second_signal_cuts_at_once() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: len(s.gateway.in_flight) == 1)
            began = time.monotonic()
            closing = asyncio.ensure_future(s.gateway.close(10.0))
            await asyncio.sleep(0.05)
            s.gateway.cut_now()
            assert await closing == 1
            assert time.monotonic() - began < 0.5

    run(test())


def test_no_new_request_is_taken_while_draining() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(4, gap=0.05)

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            closing = asyncio.ensure_future(s.gateway.close(2.0))
            await asyncio.sleep(0)
            await client.send(request(chat_body()))
            assert (await client.reply()).status == 200
            assert (await client.reply()).status == 503
            await closing
            assert len(s.engine.requests) == 1

    run(test())
