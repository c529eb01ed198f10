"""An engine that is frozen (SIGSTOP) or killed (SIGKILL), as a process: no client hangs, and all of them are told."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.children import Child, tailrace_command
from tests.wire.client import RawClient, Reply, chat_body, request
from tests.wire.stand import Stand, run, stand

pytestmark = pytest.mark.long(reason="starts engines as processes", timeout=60)

BUDGETS = {"queue": "1s", "first_token": "600ms", "idle": "600ms", "total": "3s", "unstreamed_total": "800ms"}
LATE_S = 0.6
"""A budget is noticed within one sweep (50 ms); the rest is for a busy machine."""
LONG = {"max_tokens": 5000, "ignore_eos": True}


@pytest.fixture
def engine() -> Iterator[Child]:
    child = Child(tailrace_command("engine", "--port", "0", "--json"))
    try:
        yield child.wait_ready(30)
    finally:
        child.kill()


@asynccontextmanager
async def before(engine: Child, **config: Any) -> AsyncIterator[Stand]:
    async with stand(backends=[{"url": engine.url}], budgets=BUDGETS, **config) as s:
        await s.until(lambda: s.gateway.backends.first.engine.reachable is True)
        yield s


async def _begun(s: Stand, engine: Child, **more: Any) -> RawClient:
    """A stream whose first tokens are here."""
    client = await s.client()
    await client.send(request(chat_body(model=engine.ready["model"], **LONG, **more)))
    assert (await client.head()).status == 200
    for _ in range(3):
        await client.next_chunk()
    return client


async def _rest(client: RawClient) -> Reply:
    out = Reply(200, {})
    while (data := await client.next_chunk()) is not None:
        out.body += data
    return out


@pytest.mark.parametrize("stream", [True, False])
def test_frozen_before_the_first_token(engine: Child, *, stream: bool) -> None:
    async def test() -> None:
        async with before(engine) as s:
            engine.signal(signal.SIGSTOP)
            began = time.monotonic()
            reply = await s.ask(request(chat_body(model=engine.ready["model"], stream=stream)))
            took = time.monotonic() - began
            assert reply.status == 504
            budget, reason = (0.6, Reason.FIRST_TOKEN_TIMEOUT) if stream else (0.8, Reason.TOTAL_TIMEOUT)
            assert budget <= took < budget + LATE_S
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, reason)

    run(test())


def test_frozen_in_mid_stream(engine: Child) -> None:
    async def test() -> None:
        async with before(engine) as s:
            clients = [await _begun(s, engine) for _ in range(3)]
            engine.signal(signal.SIGSTOP)
            began = time.monotonic()
            for reply in await asyncio.gather(*map(_rest, clients)):
                assert reply.error is not None
                assert (reply.error["reason"], reply.error["stage"]) == ("idle_timeout", "decode")
                assert b"[DONE]" not in reply.body
            assert 0.4 < time.monotonic() - began < 0.6 + LATE_S
            await s.record(3)
            assert {record.reason for record in s.records.all} == {Reason.IDLE_TIMEOUT}

    run(test())


def test_frozen_and_then_awake_again_serves_the_next(engine: Child) -> None:
    async def test() -> None:
        async with before(engine) as s:
            engine.signal(signal.SIGSTOP)
            assert (await s.ask(request(chat_body(model=engine.ready["model"])))).status == 504
            engine.signal(signal.SIGCONT)
            reply = await s.ask(request(chat_body(model=engine.ready["model"], max_tokens=4)))
            assert reply.status == 200
            assert reply.body.endswith(b"data: [DONE]\n\n")

    run(test())


def test_a_client_that_leaves_a_frozen_engine_is_let_go_at_once(engine: Child) -> None:
    async def test() -> None:
        async with before(engine) as s:
            client = await _begun(s, engine)
            engine.signal(signal.SIGSTOP)
            await asyncio.sleep(0.1)
            left = time.monotonic()
            client.abort()
            await s.until(lambda: not s.gateway.in_flight)
            assert time.monotonic() - left < 0.05
            record = await s.record()
            assert record.reason is Reason.CLIENT_DISCONNECT
            # Its slot is not free, and nobody says that it is.
            await s.until(lambda: bool(s.gateway.backends.first.cancels.recent[0].unseen), within=6)
            assert s.gateway.backends.first.cancels.recent[0].slot_ns is None

    run(test())


def test_killed_in_mid_stream(engine: Child) -> None:
    async def test() -> None:
        async with before(engine) as s:
            clients = [await _begun(s, engine) for _ in range(3)]
            began = time.monotonic()
            engine.signal(signal.SIGKILL)
            for reply in await asyncio.gather(*map(_rest, clients)):
                assert reply.error is not None
                assert (reply.error["reason"], reply.error["stage"]) == ("stream_cut", "decode")
                assert b"[DONE]" not in reply.body
            assert time.monotonic() - began < LATE_S
            await s.record(3)
            assert {record.reason for record in s.records.all} == {Reason.STREAM_CUT}
            await asyncio.to_thread(engine.popen.wait, 5)  # its port may outlive its connections for a moment
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.json["error"]["reason"]) == (503, "engine_unreachable")

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_killed_before_the_first_token(engine: Child, *, stream: bool) -> None:
    async def test() -> None:
        async with before(engine) as s:
            engine.signal(signal.SIGSTOP)
            client = await s.client()
            await client.send(request(chat_body(stream=stream)))
            await asyncio.sleep(0.1)
            began = time.monotonic()
            engine.signal(signal.SIGKILL)
            reply = await client.reply()
            assert reply.status == 502
            assert reply.json["error"]["reason"] == "stream_cut"
            assert time.monotonic() - began < LATE_S

    run(test())


def test_the_simulated_engines_keep_alive_does_not_feed_the_first_token_budget() -> None:
    # A hundred times slower than the preset: the prefill takes many seconds.
    command = tailrace_command(
        "engine", "--port", "0", "--json", "--time-scale", "0.01", "--sse-keep-alive-interval", "0.05"
    )
    child = Child(command)

    async def test() -> None:
        async with before(child) as s:
            began = time.monotonic()
            reply = await s.ask(request(chat_body(tailrace_prompt_tokens=4000, model=child.ready["model"])))
            assert 0.6 <= time.monotonic() - began < 0.6 + LATE_S
            assert reply.status == 200  # the head's hold was over long before
            assert reply.body.count(b": keep-alive") >= 3
            assert reply.error is not None
            assert reply.error["reason"] == "first_token_timeout"
            assert (await s.record()).ttft_ns is None

    try:
        child.wait_ready(30)
        run(test())
    finally:
        child.kill()
