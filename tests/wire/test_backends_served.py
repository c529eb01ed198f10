"""The set of engines of a serving process, and of a fleet of workers: changed by signals, shown as one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.wire.client import chat_body, request
from tests.wire.fleet_stand import Fleet, fleet
from tests.wire.scripted import Incoming, ScriptedEngine, token
from tests.wire.stand import run

pytestmark = pytest.mark.long(reason="starts the gateway's command", timeout=90)

ENOUGH = 40


async def _serves(incoming: Incoming) -> None:
    await incoming.completion()


async def _fails(incoming: Incoming) -> None:
    await incoming.reply({"error": {"message": "no"}}, 500)


def _entries(engines: list[ScriptedEngine], **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "url": engine.url, **more} for name, engine in zip("abc", engines, strict=False)]


@asynccontextmanager
async def serving(directory: Path, *, workers: int, **config: Any) -> AsyncIterator[tuple[Fleet, list[ScriptedEngine]]]:
    """A gateway's command in front of the first two of three engines."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(_serves)) for _ in range(3)]
        backends = _entries(engines[:2])
        yield (
            await stack.enter_async_context(fleet(directory, engines[0], workers=workers, backends=backends, **config)),
            engines,
        )


async def _names(served: Fleet) -> list[str]:
    return [backend["name"] for backend in (await served.get("/backends"))["backends"]]


def test_sighup_takes_a_backend_in_and_lets_one_go_without_dropping_a_stream(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def long(incoming: Incoming) -> None:
        await incoming.sse(token())
        await go.wait()
        await incoming.chunks(token(), b"data: [DONE]\n\n")
        await incoming.end()

    async def test() -> None:
        async with serving(tmp_path, workers=1, balance={"slow_start": "10ms"}) as (served, engines):
            try:
                engines[0].script = engines[1].script = long
                streams = [await served.connect() for _ in range(2)]
                for client in streams:
                    await client.send(request(chat_body()))
                    await client.head()
                assert [len(engine.requests) for engine in engines] == [1, 1, 0]
                served.rewrite(backends=_entries(engines)[1:])
                served.signal(signal.SIGHUP)

                async def changed() -> bool:
                    return await _names(served) == ["b", "c"]

                await served.until(changed)
                engines[1].script = _serves
                for _ in range(ENOUGH):
                    assert (await served.ask(request(chat_body(stream=False)))).status == 200
                assert len(engines[0].requests) == 1
                assert len(engines[2].requests) > 0
                assert await served.metric("tailrace_backend_up", backend="a") == 0
                go.set()
                for client in streams:
                    body = b""
                    while (data := await client.next_chunk()) is not None:
                        body += data
                    assert body.count(b'"content"') == 2
                await served.until(lambda: _gone(engines[0]))
            finally:
                go.set()

    async def _gone(engine: ScriptedEngine) -> bool:
        return engine.open == 0

    run(test(), within=60)


@pytest.mark.tier("ci")
def test_workers_are_shown_as_one_and_take_another_set_when_they_are_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, workers=2, balance={"slow_start": "10ms"}) as (served, engines):
            engines[0].script = _fails
            statuses = [(await served.ask(request(chat_body(stream=False)))).status for _ in range(ENOUGH)]
            assert statuses.count(200) > ENOUGH / 2
            view = await served.get("/backends")
            standing = {backend["name"]: backend for backend in view["backends"]}
            assert standing["a"]["breaker"]["opened_total"] >= 1
            assert standing["b"]["breaker"]["opened_total"] == 0
            assert standing["a"]["outstanding_requests"] == standing["b"]["outstanding_requests"] == 0
            assert view["balance"]["retries_total"] == standing["a"]["retries_total"] > 0
            assert await served.metric("tailrace_backend_retries_total", backend="a") == standing["a"]["retries_total"]
            assert await served.metric("tailrace_retries_total") == standing["a"]["retries_total"]
            served.rewrite(backends=_entries(engines[:2], weight=2.0))
            served.signal(signal.SIGHUP)

            async def heavier() -> bool:
                backends = (await served.get("/config"))["backends"]
                return [backend.get("weight") for backend in backends] == [2.0, 2.0]

            await served.until(heavier)
            served.rewrite(backends=_entries(engines)[1:])
            served.signal(signal.SIGHUP)
            assert "SIGUSR2" in await served.heard("backends")
            assert await _names(served) == ["a", "b"]
            served.signal(signal.SIGUSR2)

            async def replaced() -> bool:
                serving = {worker["pid"] for worker in (await served.get("/healthz"))["workers"]}
                return len(serving) == 2 and not serving & set(served.workers)

            await served.until(replaced)
            assert await _names(served) == ["b", "c"]
            for _ in range(ENOUGH):
                assert (await served.ask(request(chat_body(stream=False)))).status == 200
            assert len(engines[2].requests) > 0

    run(test(), within=80)
