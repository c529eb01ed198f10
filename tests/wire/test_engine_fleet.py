"""The engine's window, drain and stand-still with several workers: one process asks, all of them know."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.wire.client import chat_body, request
from tests.wire.fleet_stand import Engine, fleet
from tests.wire.scripted import ScriptedEngine
from tests.wire.stand import run
from tests.wire.test_engine_state import Metrics

pytestmark = [
    pytest.mark.long(reason="starts a supervisor and two workers, seconds on a busy machine"),
    pytest.mark.tier("ci"),
]


def test_drained_counted_and_frozen_as_one(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        engine.go.set()
        side: Any = Metrics()
        side.moves = True
        scrape = {"period": "50ms", "frozen": "500ms"}
        async with (
            ScriptedEngine(engine.answer, side=side) as upstream,
            fleet(tmp_path, upstream, scrape=scrape) as served,
        ):
            asked = request(chat_body(stream=False))
            replies = await asyncio.gather(*(served.ask(asked) for _ in range(12)))
            assert Counter(reply.status for reply in replies) == {200: 12}

            async def counted() -> bool:
                (backend,) = (await served.get("/backends"))["backends"]
                return backend["window"] is not None and backend["counts"]["gateway"]["completed"] == 12

            def answers(status: int) -> Any:
                async def asks() -> bool:
                    return (await served.ask(asked)).status == status

                return asks

            # The workers tell their counts once a second.
            await served.until(counted, within=10)
            (backend,) = (await served.get("/backends?window=30"))["backends"]
            assert backend["counts"]["gateway"]["sent"] == 12
            assert backend["window"]["signals"]["generation_tokens"]["n"] > 0
            assert await served.metric("tailrace_engine_sent_total") == 12
            assert await served.metric("tailrace_engine_tokens_total", kind="generation") > 0

            assert (await served.post("/backends/default", {"drain": True}))[0] == 200
            # The order reaches the workers beside the requests: once it has, all of them refuse.
            await served.until(answers(503))
            before = engine.begun
            replies = await asyncio.gather(*(served.ask(asked) for _ in range(12)))
            assert Counter(reply.status for reply in replies) == {503: 12}
            assert engine.begun == before
            assert (await served.get("/readyz"))["ready"] is False
            assert "an operator drains" in (await served.get("/page/live"))["engine_trouble"]
            assert await served.metric("tailrace_engine_draining") == 1
            assert (await served.post("/backends/default", {"drain": False}))[0] == 200
            await served.until(answers(200))

            side.running, side.moves = 2, False

            async def frozen() -> bool:
                return await served.metric("tailrace_engine_frozen") == 1

            await served.until(frozen, within=10)
            assert "is frozen" in (await served.get("/readyz"))["why"]
            assert "is frozen" in await served.heard("is frozen")

    run(test(), within=60)
