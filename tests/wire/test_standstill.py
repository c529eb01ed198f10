"""A stream that stands still is marked while it does, within one sweep; a hang burns its budget before it ends."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any

from tailrace.gateway.gateway import SWEEP_NS
from tests.wire.client import chat_body, request
from tests.wire.scripted import finish, token
from tests.wire.stand import run, stand


def test_a_stall_is_marked_within_one_sweep_and_gone_with_the_next_token() -> None:
    go_on = asyncio.Event()

    async def stall(incoming: Any) -> None:
        await incoming.sse(token("t"))
        for number in range(6):
            await asyncio.sleep(0.02)
            await incoming.chunks(token(f"t{number}"))
        await go_on.wait()
        await incoming.chunks(token("on"))
        await asyncio.sleep(0.3)
        await incoming.chunks(finish(), b"data: [DONE]\n\n")
        await incoming.end()

    async def scenario() -> None:
        async with stand(stall) as s:
            client = await s.client()
            asking = asyncio.ensure_future(client.ask(request(chat_body())))
            await s.until(lambda: bool(s.gateway.standstill.marked))
            seen = s.gateway.standstill._recent[-1]
            # The rule is one gap above 500 ms; the sweep that comes next must have seen it.
            assert seen.gap_ns > 500e6
            late = seen.gap_ns - 500e6 - max(0, s.gateway.loop_lag_max_ns)
            assert late <= 2 * SWEEP_NS
            assert 10e6 < seen.usual_ns < 100e6
            (stream,) = s.gateway.streams()
            assert stream["stalled_ms"] is not None
            assert stream["idle_ms"] > 500
            assert 10 < stream["mean_gap_ms"] < 100
            assert s.gateway.degradation_view()["stalls"]["total"] == {"default": 1}
            go_on.set()
            await s.until(lambda: s.gateway.streams()[0]["stalled_ms"] is None)
            await asking
            assert s.gateway.standstill.counts == {"default": 1}, "one stall, however many sweeps saw it"

    run(scenario())


def test_a_steady_stream_is_never_marked() -> None:
    async def steady(incoming: Any) -> None:
        await incoming.stream(20, gap=0.03)

    async def scenario() -> None:
        async with stand(steady) as s:
            await s.ask(request(chat_body()))
            assert not s.gateway.standstill.counts

    run(scenario())


def test_a_hang_counts_before_it_ends() -> None:
    async def hang(incoming: Any) -> None:
        await asyncio.sleep(4)

    async def scenario() -> None:
        async with stand(hang, objectives={"ttft_p99": "100ms"}) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            account = s.gateway.lanes.account("default")
            assert account is not None

            def missed() -> int:
                view = account.view(monotonic_ns())
                return view["missed"]["ttft_p99"]["5m"]["missed"]

            await s.until(lambda: missed() == 1)
            assert not s.records.all, "it has not ended"
            client.abort()
            await s.until(lambda: len(s.records.all) == 1)
            assert account.view(monotonic_ns())["missed"]["ttft_p99"]["5m"] == {"requests": 1, "missed": 1}

    run(scenario())
