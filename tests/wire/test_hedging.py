"""A request that is slow to answer is sent a second time, elsewhere; the first answer counts, the other is given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailrace.gateway.gateway import Gateway
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, Script, ScriptedEngine, token
from tests.wire.stand import Stand, run
from tests.wire.test_backends import several

MS = 1_000_000
LATE_S = 2.0


async def _answer(incoming: Incoming) -> None:
    await (incoming.stream() if incoming.json.get("stream") else incoming.completion())


async def _stuck(incoming: Incoming) -> None:
    await incoming.until_gone(10)


async def _stuck_after_head(incoming: Incoming) -> None:
    await incoming.send(SSE_HEAD)
    await incoming.until_gone(10)


def _first_to(gateway: Gateway, name: str) -> None:
    """The next request goes to this one: the others have work."""
    for backend in gateway.backends:
        backend.standing.tokens = 0 if backend.name == name else 1_000_000


@asynccontextmanager
async def hedged(first: Script, second: Script, **more: object) -> AsyncIterator[tuple[Stand, list[ScriptedEngine]]]:
    async with several(2, _answer, hedge={"enabled": True, "budget": 0.5, **more}) as (s, engines):
        engines[0].script, engines[1].script = first, second
        hedger = s.gateway.backends.balancing.hedger
        for _ in range(60):
            hedger.answered("default", 20 * MS, time.monotonic_ns())
        _first_to(s.gateway, "a")
        try:
            yield s, engines
        finally:
            await s.until(lambda: not s.gateway.in_flight)
            _first_to(s.gateway, "")
            for backend in s.gateway.backends:
                backend.standing.tokens -= 1_000_000  # what is left now is our own, and the stand looks at it


@pytest.mark.parametrize(("first", "stream"), [(_stuck, True), (_stuck, False), (_stuck_after_head, True)])
def test_the_second_attempt_answers_and_the_first_is_given_up(first: Script, *, stream: bool) -> None:
    async def test() -> None:
        async with hedged(first, _answer) as (s, engines):
            began = time.monotonic()
            reply = await s.ask(request(chat_body(stream=stream)))
            assert time.monotonic() - began < LATE_S
            assert (reply.status, reply.end) == (200, "chunked" if stream else "length")
            assert [len(engine.requests) for engine in engines] == [1, 1]
            await s.until(lambda: engines[0].requests[0].gone_at is not None)
            record = await s.record()
            assert (record.outcome, record.backend, record.attempts) == (OutcomeKind.COMPLETED, "b", 2)
            assert 50 * MS <= record.retry_wait_ns <= record.queue_ns
            assert s.gateway.backends.balancing.hedger.won == 1
            if stream:
                assert record.output_tokens == 2

    run(test())


def test_the_first_attempt_answers_after_all_and_the_second_is_given_up() -> None:
    async def slow(incoming: Incoming) -> None:
        await asyncio.sleep(0.4)
        await _answer(incoming)

    async def test() -> None:
        async with hedged(slow, _stuck) as (s, engines):
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.tokens) == (200, 2)
            assert [len(engine.requests) for engine in engines] == [1, 1]
            await s.until(lambda: engines[1].requests[0].gone_at is not None)
            record = await s.record()
            assert (record.backend, record.attempts, record.output_tokens) == ("a", 2, 2)
            hedger = s.gateway.backends.balancing.hedger
            assert (hedger.made, hedger.won) == (1, 0)

    run(test())


@pytest.mark.parametrize("how", ["error", "cut"])
def test_the_second_attempt_stands_in_for_one_that_fails(how: str) -> None:
    async def fails(incoming: Incoming) -> None:
        await asyncio.sleep(0.2)
        await (incoming.reply({"error": {"message": "no"}}, 500) if how == "error" else incoming.send(b""))
        incoming.abort()

    async def slow(incoming: Incoming) -> None:
        await asyncio.sleep(0.4)
        await _answer(incoming)

    async def test() -> None:
        async with hedged(fails, slow) as (s, engines):
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.tokens) == (200, 2)
            assert [len(engine.requests) for engine in engines] == [1, 1]
            assert (await s.record()).backend == "b"

    run(test())


def test_a_second_attempt_that_fails_leaves_the_first_alone() -> None:
    async def slow(incoming: Incoming) -> None:
        await asyncio.sleep(0.4)
        await _answer(incoming)

    async def fails(incoming: Incoming) -> None:
        await incoming.reply({"error": {"message": "no"}}, 500)

    async def test() -> None:
        async with hedged(slow, fails) as (s, engines):
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.tokens) == (200, 2)
            assert [len(engine.requests) for engine in engines] == [1, 1]
            assert (await s.record()).backend == "a"

    run(test())


def test_where_both_fail_each_engine_is_blamed_once_and_not_asked_again() -> None:
    async def slow(incoming: Incoming) -> None:
        await asyncio.sleep(0.4)
        await incoming.reply({"error": {"message": "no"}}, 500)

    async def fails(incoming: Incoming) -> None:
        await incoming.reply({"error": {"message": "no"}}, 500)

    async def test() -> None:
        async with hedged(slow, fails) as (s, engines):
            assert (await s.ask(request(chat_body()))).status == 500
            assert [len(engine.requests) for engine in engines] == [1, 1]
            await s.record()
            assert [backend.standing.breaker.in_a_row for backend in s.gateway.backends] == [1, 1]

    run(test())


def test_a_client_that_leaves_ends_both() -> None:
    async def test() -> None:
        async with hedged(_stuck, _stuck) as (s, engines):
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: len(engines[1].requests) == 1)
            client.abort()
            await s.until(lambda: all(engine.requests[0].gone_at is not None for engine in engines))
            assert (await s.record()).reason is Reason.CLIENT_DISCONNECT

    run(test())


def test_no_second_attempt_once_a_token_is_there_nor_beyond_the_budget() -> None:
    async def slow_end(incoming: Incoming) -> None:
        await incoming.sse(token())
        await asyncio.sleep(0.3)
        await incoming.chunks(token(), b"data: [DONE]\n\n")
        await incoming.end()

    async def test() -> None:
        async with hedged(slow_end, _answer) as (s, engines):
            assert (await s.ask(request(chat_body()))).tokens == 2
            assert len(engines[1].requests) == 0
        async with hedged(_stuck, _answer, budget=0.0) as (s, engines):
            hedger = s.gateway.backends.balancing.hedger
            assert hedger.go(time.monotonic_ns())  # the one in ten seconds
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: hedger.denied == 1)
            assert len(engines[1].requests) == 0
            client.abort()

    run(test())
