"""What the admin port says of lanes, engines and the cache, in one process and in several."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.wire.client import chat_body, request
from tests.wire.fleet_stand import Engine, fleet
from tests.wire.scripted import ScriptedEngine
from tests.wire.stand import run, stand
from tests.wire.test_admin import admin_of

LANE = {
    "name": "chat",
    "match": {"model": "m"},
    "running": 2,
    "queued": 3,
    "order": "shortest_first",
    "priority": "high",
    "budgets": {"queue": "9s"},
    "objectives": {"ttft_p99": "300ms"},
}
CACHED = {"routes": [{"paths": ["/v1/chat/completions"]}]}


def ask(text: str = "hello") -> bytes:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0}
    return request(chat_body(stream=False, **body))


def test_a_lane_says_what_it_is_and_who_is_in_it() -> None:
    engine = Engine()

    async def test() -> None:
        async with stand(engine.answer, lanes=[LANE]) as s, admin_of(s.gateway) as admin:
            asking = [asyncio.ensure_future(s.ask(request(chat_body(stream=False)))) for _ in range(4)]
            await s.until(lambda: engine.inside == 2)
            await s.until(lambda: s.gateway.lanes.snapshot(0)["chat"]["queued"] == 2)
            lane = (await admin.get("/lanes"))[1]["lanes"]["chat"]
            assert (lane["running"], lane["running_limit"], lane["queued"], lane["queued_limit"]) == (2, 2, 2, 3)
            assert (lane["order"], lane["priority"]) == ("shortest_first", -10)
            assert lane["match"] == {"model": "m"}
            assert lane["budgets_ms"]["queue"] == 9000
            assert lane["objectives_ms"] == {"ttft_p99": 300}
            assert lane["oldest_wait_ms"] >= 0
            assert "predicted_wait_ms" in lane
            backend = (await admin.get("/backends"))[1]["backends"][0]
            assert backend["outstanding_requests"] == 2
            assert backend["outstanding_tokens"] > 0
            engine.go.set()
            await asyncio.gather(*asking)
            lane = (await admin.get("/lanes"))[1]["lanes"]["chat"]
            assert (lane["running"], lane["queued"]) == (0, 0)
            backend = (await admin.get("/backends"))[1]["backends"][0]
            assert (backend["outstanding_requests"], backend["outstanding_tokens"]) == (0, 0)

    run(test())


def test_the_cache_is_shown_and_emptied() -> None:
    async def test() -> None:
        engine = Engine()
        engine.go.set()
        async with stand(engine.answer, cache=CACHED) as s, admin_of(s.gateway) as admin:
            for _ in range(2):
                await s.ask(ask())
            cache = (await admin.get("/cache"))[1]["cache"]
            assert (cache["hits"], cache["misses"], cache["entries"], cache["in_flight"]) == (1, 1, 1, 0)
            async with admin.session.delete(admin.url + "/cache") as answer:
                assert await answer.json() == {"forgotten": 1}
            assert (await s.ask(ask())).headers["x-tailrace-cache"] == "miss"
        async with stand(engine.answer) as s, admin_of(s.gateway) as admin:
            assert (await admin.get("/cache"))[1] == {"cache": None}

    run(test())


@pytest.mark.long(reason="starts three processes")
def test_several_workers_caches_are_one_view(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        engine.go.set()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream, cache=CACHED) as served:
            # A connection each: both workers get some.
            replies = [await served.ask(ask()) for _ in range(12)]
            said = [reply.headers["x-tailrace-cache"].split(";")[0] for reply in replies]
            assert set(said) == {"miss", "hit"}
            assert said.count("miss") == engine.begun <= 2
            cache: dict[str, Any] = (await served.get("/cache"))["cache"]
            assert (cache["hits"], cache["misses"], cache["entries"]) == (12 - engine.begun, engine.begun, engine.begun)
            assert await served.metric("tailrace_cache_requests_total", result="hit") == cache["hits"]
            assert await served.metric("tailrace_requests_total") == 12
            assert await served.metric("tailrace_e2e_seconds_count") == engine.begun

    run(test())
