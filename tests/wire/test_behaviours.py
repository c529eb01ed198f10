"""Behaviour under cancel, errors, refusal, stall and drop that other gateways get wrong, one named test a probe.

The names and the bounds are those of the published probes; `test_cancel.py`, `test_faults.py` and `test_budgets.py`
look at the same ground more closely.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, event, finish, token
from tests.wire.stand import Stand, run, stand

NOTICED_S = 0.05
TOKENS = 5


class Noticing:
    """Runs `begin`, then waits for its client to leave, and knows when it did."""

    def __init__(self, begin: Callable[[Incoming], Awaitable[None]]) -> None:
        self.begin = begin
        self.gone: list[float] = []

    async def __call__(self, incoming: Incoming) -> None:
        await self.begin(incoming)
        await incoming.until_gone(10)
        self.gone.append(time.monotonic())


async def _leaves(s: Stand, engine: Noticing, *, stream: bool, after_tokens: int = 0) -> None:
    client = await s.client()
    await client.send(request(chat_body(stream=stream)))
    await s.until(lambda: bool(s.engine.requests))
    seen = b""
    if after_tokens:
        await client.head()
        while seen.count(b'"content"') < after_tokens:
            seen += await client.next_chunk() or b""
    else:
        await asyncio.sleep(0.3)  # longer than the head is held
    left = time.monotonic()
    client.abort()
    await s.until(lambda: bool(engine.gone))
    assert engine.gone[0] - left <= NOTICED_S
    record = await s.record()
    assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
    assert record.cancel_upstream_ns is not None
    assert record.cancel_upstream_ns <= NOTICED_S * 1e9


async def _five(incoming: Incoming) -> None:
    await incoming.sse(*[token()] * TOKENS)


async def _nothing(incoming: Incoming) -> None:
    pass


async def _head(incoming: Incoming) -> None:
    await incoming.send(SSE_HEAD)


def test_cancel_stream() -> None:
    engine = Noticing(_five)

    async def test() -> None:
        async with stand(engine) as s:
            await _leaves(s, engine, stream=True, after_tokens=TOKENS)

    run(test())


@pytest.mark.parametrize("begin", [_nothing, _head], ids=["before_head", "after_head"])
def test_cancel_before_first_token(begin: Callable[[Incoming], Awaitable[None]]) -> None:
    engine = Noticing(begin)

    async def test() -> None:
        async with stand(engine) as s:
            await _leaves(s, engine, stream=True)

    run(test())


def test_cancel_single() -> None:
    engine = Noticing(_nothing)

    async def test() -> None:
        async with stand(engine) as s:
            await _leaves(s, engine, stream=False)

    run(test())


def _failing(status: int, *, first: int = 1 << 30, extra: bytes = b"") -> Callable[[Incoming], Awaitable[None]]:
    served = 0

    async def script(incoming: Incoming) -> None:
        nonlocal served
        served += 1
        if served <= first:
            await incoming.reply({"error": {"message": "no"}}, status, extra=extra)
        else:
            await incoming.completion()

    return script


def test_one_503() -> None:
    """200 after two attempts, or 503 after one."""

    async def test() -> None:
        async with stand(_failing(503, first=1)) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, len(s.engine.requests)) in {(200, 2), (503, 1)}

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_all_500(*, stream: bool) -> None:
    """At most three attempts, within two seconds."""

    async def test() -> None:
        async with stand(_failing(500)) as s:
            began = time.monotonic()
            reply = await s.ask(request(chat_body(stream=stream)))
            assert reply.status == 500
            assert time.monotonic() - began <= 2
            assert len(s.engine.requests) <= 3
            assert (await s.record()).outcome is OutcomeKind.FAILED

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_all_429(*, stream: bool) -> None:
    """`Retry-After` reaches the client, and nobody asks again before it has elapsed."""

    async def test() -> None:
        async with stand(_failing(429, extra=b"Retry-After: 7\r\n")) as s:
            reply = await s.ask(request(chat_body(stream=stream)))
            assert (reply.status, reply.headers["retry-after"]) == (429, "7")
            assert len(s.engine.requests) == 1
            assert (await s.record()).outcome is OutcomeKind.REJECTED

    run(test())


def test_stall() -> None:
    """Silence after five tokens ends with the idle budget: an error event, no `[DONE]`, all five tokens."""

    async def script(incoming: Incoming) -> None:
        await incoming.sse(*[token()] * TOKENS)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets={"idle": "300ms"}) as s:
            began = time.monotonic()
            reply = await s.ask(request(chat_body()))
            assert time.monotonic() - began < 1.5
            assert (reply.tokens, reply.end) == (TOKENS, "chunked")
            assert reply.error is not None
            assert (reply.error["reason"], reply.error["stage"]) == ("idle_timeout", "decode")
            assert b"[DONE]" not in reply.body

    run(test())


def test_drop() -> None:
    """All that came is delivered; the end is an error event, never a clean one."""

    async def script(incoming: Incoming) -> None:
        await incoming.sse(*[token()] * TOKENS)
        incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.tokens == TOKENS
            assert reply.error is not None
            assert (reply.error["reason"], reply.error["stage"]) == ("stream_cut", "decode")
            assert b"[DONE]" not in reply.body
            assert (await s.record()).output_tokens == TOKENS

    run(test())


def test_error_event() -> None:
    """An error event inside a 200 is relayed as it is, and recorded as a failure with the engine's own words."""

    async def script(incoming: Incoming) -> None:
        await incoming.sse(*[token()] * TOKENS, event({"error": {"message": "out of luck", "code": 500}}))
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.tokens == TOKENS
            assert reply.error == {"message": "out of luck", "code": 500}
            record = await s.record()
            assert (record.outcome, record.error) == (OutcomeKind.FAILED, "out of luck")

    run(test())


def test_breaker() -> None:
    """Thirty failing requests cost at most 33 attempts, and the first after the engine has healed is served.

    There is no breaker: a single engine is never shut out, least of all for a minute after it has healed.
    """

    async def test() -> None:
        async with stand(_failing(500, first=30)) as s:
            for _ in range(3):
                replies = await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(10)))
                assert {reply.status for reply in replies} == {500}
            assert len(s.engine.requests) == 30
            assert s.gateway.ready() == (True, "")
            began = time.monotonic()
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
            assert time.monotonic() - began < 1

    run(test())


@pytest.mark.parametrize("status", [400, 429, 503])
def test_breaker_is_not_opened_by_refusals(status: int) -> None:
    async def test() -> None:
        async with stand(_failing(status, first=20)) as s:
            client = await s.client()
            for _ in range(20):
                assert (await client.ask(request(chat_body(stream=False)))).status == status
            assert (await client.ask(request(chat_body(stream=False)))).status == 200
            assert len(s.engine.requests) == 21

    run(test())


def test_warm_ttft() -> None:
    """The first token on a warm keep-alive connection is not delayed."""

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await asyncio.sleep(0.002)
        for _ in range(25):
            await incoming.chunks(token())
            await asyncio.sleep(0.001)
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test() -> None:
        # Nagle with delayed acknowledgement shows as 40 ms, and only on a connection that has been used a while.
        async with stand(script, header_hold="0ms") as s:
            client = await s.client()
            waits = []
            for _ in range(6):
                await client.send(request(chat_body()))
                await client.head()
                began = time.monotonic()
                await client.next_chunk()
                waits.append(time.monotonic() - began)
                while await client.next_chunk() is not None:
                    pass
            client.close()
            assert min(waits[2:]) < 0.02, waits

    run(test())
