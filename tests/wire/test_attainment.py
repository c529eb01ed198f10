"""A lane's objectives, met and missed, as the admin port and the metrics tell it."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any

from tests.wire.client import chat_body, request
from tests.wire.stand import run, stand

LANES = [{"name": "chat", "objectives": {"ttft_p99": "100ms"}}]


async def _slow_or_quick(incoming: Any) -> None:
    if b"slow" in incoming.body:
        await asyncio.sleep(0.25)
    await incoming.stream()


def test_slow_and_refused_requests_burn_the_budget_of_their_lane() -> None:
    async def scenario() -> None:
        async with stand(_slow_or_quick, lanes=LANES) as s:
            for word in ("quick", "quick", "quick", "slow"):
                await s.ask(request(chat_body(messages=[{"role": "user", "content": word}])))
            await s.until(lambda: len(s.records.all) == 4)
            lane = s.gateway.lanes.snapshot(monotonic_ns())["chat"]
            assert lane["attainment"]["5m"] == {"requests": 4, "met": 3}
            assert lane["burn_rate"] == {"ttft_p99": {"5m": 25.0, "1h": 25.0}}
            assert s.gateway.lanes.attainment["chat"].met == 3

    run(scenario())
