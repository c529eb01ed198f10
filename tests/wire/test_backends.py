"""Several engines behind one gateway: requests go where the least work is, and whoever is gone gets none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.errors import ConfigError
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import ScriptedEngine
from tests.wire.stand import Records, Stand, run


@asynccontextmanager
async def several(count: int, script: Any, **config: Any) -> AsyncIterator[tuple[Stand, list[ScriptedEngine]]]:
    """A gateway in front of so many scripted engines, named `a`, `b`, ..."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(script)) for _ in range(count)]
        plain = {
            "listen": "127.0.0.1:0",
            "backends": [
                {"name": chr(ord("a") + at), "url": engine.url, "metrics_url": engine.url + "/metrics"}
                for at, engine in enumerate(engines)
            ],
            "scrape": {"period": "60s"},
            "records": {"sample": 1.0},
            **config,
        }
        records = Records()
        gateway = Gateway(config_from(plain), records)
        await gateway.start()
        try:
            yield Stand(gateway, engines[0], records), engines
        finally:
            await gateway.close(0.2)
        assert not gateway.in_flight
        for backend in gateway.backends:
            assert not backend.pool.open
            assert (backend.requests, backend.tokens) == (0, 0)


async def _slow(incoming: Any) -> None:
    await asyncio.sleep(0.2)
    await incoming.stream()


async def _ask(s: Stand, count: int) -> None:
    clients = [await RawClient.connect(s.gateway.url) for _ in range(count)]
    try:
        await asyncio.gather(*(client.ask(request(chat_body())) for client in clients))
    finally:
        for client in clients:
            client.close()


def test_work_is_spread_and_each_record_names_its_engine() -> None:
    async def scenario() -> None:
        async with several(3, _slow) as (s, engines):
            await _ask(s, 9)
            await s.until(lambda: len(s.records.all) == 9)
            assert Counter(record.backend for record in s.records.all) == {"a": 3, "b": 3, "c": 3}
            assert [len(engine.requests) for engine in engines] == [3, 3, 3]

    run(scenario())


def test_a_drained_engine_gets_nothing() -> None:
    async def scenario() -> None:
        async with several(2, _slow) as (s, _):
            backend = s.gateway.backends.named("a")
            assert backend is not None
            backend.engine.drain(on=True)
            await _ask(s, 4)
            await s.until(lambda: len(s.records.all) == 4)
            assert {record.backend for record in s.records.all} == {"b"}
            assert s.gateway.ready() == (True, "")

    run(scenario())


def test_names_must_differ() -> None:
    with pytest.raises(ConfigError, match="two backends are named"):
        config_from({"backends": [{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}]})
