"""A gateway between a scripted engine and raw clients, on uvloop, with every record kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.record import RequestRecord, broken_invariants
from tests.wire.client import RawClient, Reply
from tests.wire.scripted import Script, ScriptedEngine


def run(test: Coroutine[Any, Any, None], within: float = 18.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(within):
            await test

    uvloop.run(bounded())


class Records:
    """A sink that keeps everything, and refuses an unsound record."""

    def __init__(self) -> None:
        self.all: list[RequestRecord] = []

    def put(self, record: RequestRecord) -> bool:
        self.all.append(record)
        assert not broken_invariants(record), broken_invariants(record)
        return True


class Stand:
    """Engine, gateway, records."""

    def __init__(self, gateway: Gateway, engine: ScriptedEngine, records: Records) -> None:
        self.gateway, self.engine, self._records = gateway, engine, records
        self.clients: list[RawClient] = []
        self.client_options: dict[str, Any] = {}

    @property
    def records(self) -> Records:
        """Every record, those of requests that have just ended included."""
        self.gateway.flush_records()
        return self._records

    async def client(self, **options: Any) -> RawClient:
        """A connection, closed with the stand."""
        client = await RawClient.connect(self.gateway.url, **{**self.client_options, **options})
        self.clients.append(client)
        return client

    async def ask(self, data: bytes, **options: bool) -> Reply:
        """One request on a connection of its own."""
        client = await self.client()
        try:
            return await client.ask(data, **options)
        finally:
            client.close()

    async def record(self, count: int = 1) -> RequestRecord:
        """The newest record, once there are `count`."""
        async with asyncio.timeout(5):
            while len(self.records.all) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert len(self.records.all) == count
        return self.records.all[-1]

    async def until(self, what: Callable[[], bool], within: float = 5.0) -> None:
        async with asyncio.timeout(within):
            while not what():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def stand(
    script: Script | None = None,
    *,
    side: dict[str, bytes | Script] | None = None,
    metrics_path: str | None = None,
    gathers: bool = True,
    engine_at: dict[str, Any] | None = None,
    backend: dict[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Stand]:
    """`engine_at`: where the engine listens; `backend`: keys of its entry.

    `config`: keys of the YAML file. Afterwards nothing may be left in any table of the gateway."""
    async with ScriptedEngine(script or _stream, side=side, gathers=gathers, **(engine_at or {})) as engine:
        entry: dict[str, Any] = {"url": engine.url, **(backend or {})}
        if engine.url.startswith("http") and "metrics_url" not in entry:
            entry["metrics_url"] = engine.url + (metrics_path or "/metrics")
        plain = {
            "listen": "127.0.0.1:0",
            "backends": [entry],
            "scrape": {"period": "60s"},
            "records": {"sample": 1.0},
            "traces": {"share": 0.0},  # by default one request in a hundred would be another
            **config,
        }
        records = Records()
        gateway = Gateway(config_from(plain), records)
        await gateway.start()
        out = Stand(gateway, engine, records)
        try:
            yield out
        finally:
            for client in out.clients:
                client.abort()
            await gateway.close(0.2)
        assert not gateway.in_flight
        assert not gateway.connections
        assert not gateway.backends.first.pool.open
        assert gateway.counters.record_errors == 0
        for lane in gateway.lanes.snapshot(0).values():
            kinds = ("running", "queued", "running_tokens", "running_kv_tokens", "queued_tokens", "prefill_requests")
            assert {kind: lane[kind] for kind in kinds} == dict.fromkeys(kinds, 0)


async def _stream(incoming: Any) -> None:
    await incoming.stream()
