"""The ladder with several workers: each has its own, all are shown, and a pin holds in every one."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.wire.client import chat_body, request
from tests.wire.fleet_stand import Engine, fleet
from tests.wire.scripted import ScriptedEngine
from tests.wire.stand import run

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.long(reason="starts three processes, several seconds on a busy machine"),
]


def test_a_pin_holds_in_every_worker(tmp_path: Path) -> None:
    lanes = [
        {"name": "low", "match": {"header": {"x-kind": "low"}}, "priority": "low"},
        {"name": "default", "gap": {"limit": "300ms"}},
    ]

    async def test() -> None:
        engine = Engine()
        engine.go.set()
        async with (
            ScriptedEngine(engine.answer) as upstream,
            fleet(tmp_path, upstream, lanes=lanes, degradation={"enabled": True, "rungs": ["refuse"]}) as served,
        ):
            shown = (await served.get("/degradation"))["degradation"]
            assert {one["pid"] for one in shown} == set(served.workers)
            assert [one["step"] for one in shown] == [0, 0]
            low = request(chat_body(stream=False), headers={"X-Kind": "low"})
            assert (await served.ask(low)).status == 200

            status, body = await served.post("/degradation", {"pin": 1})
            assert status == 200
            assert [(one["step"], one["pinned"]) for one in body["degradation"]] == [(1, True), (1, True)]
            assert await served.metric("tailrace_degradation_step") == 1
            assert await served.metric("tailrace_degradation_steps_total", direction="up") == 2
            # Whichever worker takes the connection.
            replies = await asyncio.gather(*(served.ask(low) for _ in range(10)))
            assert Counter(reply.status for reply in replies) == {429: 10}
            assert {reply.json["error"]["reason"] for reply in replies} == {"degraded"}
            assert (await served.ask(request(chat_body(stream=False)))).status == 200

            await served.post("/config", {"degradation": {"enabled": False}})
            assert [one["enabled"] for one in (await served.get("/degradation"))["degradation"]] == [False, False]
            assert (await served.ask(low)).status == 200

    run(test())
