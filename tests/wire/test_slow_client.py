"""A client that reads slowly: the engine is paused, memory stays bounded, and the time is the client's own."""

from __future__ import annotations

import asyncio
import time

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, finish, token
from tests.wire.stand import run, stand

PIECE = token("x" * 4000)


def test_backpressure_reaches_the_engine_and_is_booked_as_response() -> None:
    sent = 0
    total = 1500

    async def script(incoming: Incoming) -> None:
        nonlocal sent
        incoming.writer.transport.set_write_buffer_limits(high=16_384)
        await incoming.send(SSE_HEAD)
        for _ in range(total):
            await incoming.send(chunk(PIECE))
            sent += 1
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test() -> None:
        nonlocal sent
        async with stand(script, budgets={"idle": "300ms"}) as s:
            client = await s.client(receive_buffer=8192)
            await client.send(request(chat_body()))
            exchange_seen = False
            held = 0
            paused_at = 0
            for _ in range(60):
                await asyncio.sleep(0.02)
                for connection in s.gateway.connections:
                    assert connection.transport is not None
                    held = max(held, connection.transport.get_write_buffer_size())
                exchange_seen = exchange_seen or any(view["client_blocked"] for view in s.gateway.streams())
                if sent == paused_at:
                    break
                paused_at = sent
            assert exchange_seen
            # The engine stands still although it has more to say; what waits here is bounded.
            assert sent < total
            assert held <= s.gateway.client_buffer_bytes + 256 * 1024 + len(PIECE)
            await asyncio.sleep(0.5)  # longer than the idle budget: that is not the engine's silence
            assert s.gateway.in_flight
            body = b""
            await client.head()
            while (data := await client.next_chunk()) is not None:
                body += data
            assert body == PIECE * total + finish() + DONE
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.client_blocked_ns > 400e6
            assert record.response_ns is not None
            assert record.response_ns > 400e6
            assert (
                "client blocked" in record.stage_sources["response"] or record.stage_sources["response"] == "measured"
            )

    run(test())


def test_a_client_that_never_takes_the_rest_is_dropped_at_the_total_budget() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await incoming.send(b"".join(chunk(PIECE) for _ in range(60)))
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, budgets={"total": "700ms"}) as s:
            client = await s.client(receive_buffer=8192)
            began = time.monotonic()
            await client.send(request(chat_body()))
            record = await s.record()
            assert 0.6 < time.monotonic() - began < 1.5
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT)
            assert record.died_in == "response"
            # The engine was done long before: its lane place must not wait for the client.
            assert record.client_blocked_ns > 400e6

    run(test())


def test_a_fast_reader_is_never_called_blocked() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(50, gap=0.002)

    async def test() -> None:
        async with stand(script) as s:
            await s.ask(request(chat_body()))
            assert (await s.record()).client_blocked_ns == 0

    run(test())


def test_a_slow_client_that_leaves_is_cancelled_with_what_it_held_up() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(1000):
            await incoming.send(chunk(PIECE))

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client(receive_buffer=8192)
            await client.send(request(chat_body()))
            await s.until(lambda: any(view["client_blocked"] for view in s.gateway.streams()))
            await asyncio.sleep(0.2)
            client.abort()
            record = await s.record()
            assert record.outcome is OutcomeKind.CANCELLED
            assert record.client_blocked_ns > 150e6

    run(test())
