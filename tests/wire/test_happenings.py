"""What a gateway remembers of its own changes, at its admin port: one process, several, and the breakers of engines."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from time import monotonic_ns, time
from typing import Any

from tests.wire.client import RawClient, chat_body, request
from tests.wire.fleet_stand import Engine, Fleet, fleet
from tests.wire.scripted import Incoming, ScriptedEngine
from tests.wire.stand import run
from tests.wire.test_backends import several

LANES = [{"name": "chat", "running": 8}]


async def _texts(served: Fleet) -> list[str]:
    return [one["text"] for one in (await served.get("/happenings"))["happenings"]]


def _seen(served: Fleet, words: str) -> Any:
    async def look() -> bool:
        return any(words in text for text in await _texts(served))

    return look


def test_configuration_and_drains_of_one_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            ScriptedEngine(Engine().answer) as engine,
            fleet(tmp_path, engine, workers=1, lanes=LANES, backends=[{"name": "a", "url": engine.url}]) as served,
        ):
            assert await _texts(served) == []
            assert (await served.post("/lanes", {"name": "chat", "running": 2}))[0] == 200
            served.rewrite(lanes=[{"name": "chat", "running": 3}])
            served.signal(signal.SIGHUP)
            await served.until(_seen(served, "lanes.chat.running 2 -> 3"))
            assert (await served.post("/backends/a", {"drain": True}))[0] == 200
            await served.until(_seen(served, "backend a: an operator keeps new requests away"))
            first, *_, last = (await served.get("/happenings"))["happenings"]
            assert first["kind"] == "configuration"
            assert first["text"] == "the configuration changed: lanes.chat.running 8 -> 2"
            assert first["by"] == "the admin port, POST /lanes from 127.0.0.1"
            second = (await served.get("/happenings"))["happenings"][1]
            assert (second["text"][-6:], second["by"]) == ("2 -> 3", "SIGHUP")
            assert last["kind"] == "drain"
            assert 0 <= last["at_monotonic_ms"] - first["at_monotonic_ms"] < 60_000
            assert abs(first["at_unix_ms"] / 1e3 - time()) < 60

    run(scenario())


def test_a_fleet_tells_a_change_once_and_which_worker_died(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ScriptedEngine(Engine().answer) as engine, fleet(tmp_path, engine, lanes=LANES) as served:
            assert (await served.post("/lanes", {"name": "chat", "running": 2}))[0] == 200
            assert await _texts(served) == ["the configuration changed: lanes.chat.running 8 -> 2"]
            os.kill(served.workers[1], signal.SIGKILL)
            await served.until(_seen(served, f"worker {served.workers[1]} was ended by SIGKILL"))
            kinds = [one["kind"] for one in (await served.get("/happenings"))["happenings"]]
            assert kinds == ["configuration", "worker"]

    run(scenario())


async def _fails(incoming: Incoming) -> None:
    await incoming.reply({"error": "no"}, 500)


def test_a_breaker_that_opens_and_closes() -> None:
    async def scenario() -> None:
        broken = True

        async def script(incoming: Incoming) -> None:
            await (_fails(incoming) if broken else incoming.stream())

        async with several(2, script, retry={"attempts": 1}, breaker={"failures": 3}) as (s, _):
            gateway = s.gateway
            client = await RawClient.connect(gateway.url)
            try:
                for _ in range(8):
                    await client.ask(request(chat_body()))
                gateway.look_around(monotonic_ns())
                said = [one["text"] for one in gateway.happenings.view()]
                assert any("its breaker opened" in text for text in said)
                broken = False
                async with asyncio.timeout(15):
                    while not any("its breaker closed" in one["text"] for one in gateway.happenings.view()):
                        await client.ask(request(chat_body()))
                        await asyncio.sleep(0.1)
                        gateway.look_around(monotonic_ns())
            finally:
                client.close()
            assert {one["kind"] for one in gateway.happenings.view()} <= {"breaker", "engine"}

    run(scenario())
