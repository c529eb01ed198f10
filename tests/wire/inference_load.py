"""Streams through a gateway that is not told what its engine knows: what does it infer, and what was true?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.record import RequestRecord
from tests.wire.stand import Records


class Told(NamedTuple):
    """One request: its record, and the last event in which the engine told its client how it went."""

    record: RequestRecord
    event: dict[str, Any]


class Outcome(NamedTuple):
    told: list[Told]
    view: dict[str, Any]


async def load(
    engine_url: str,
    asked: Sequence[tuple[float, dict[str, Any]]],
    *,
    tells: str,
    engine: str = "openai",
    at_once: int = 1000,
    **more: Any,
) -> Outcome:
    """Send each body so many seconds after the one before, with at most `at_once` on their way.

    `tells` is the key of the event that tells the client the truth.

    With `engine: openai` the gateway's adapter reads nothing of what the engine says of its stages.
    """
    records = Records()
    raw = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [{"url": engine_url, "engine": engine}],
        "budgets": {"queue": "100s", "first_token": "100s", "idle": "100s"},
        **more,
    }
    gateway = Gateway(config_from(raw, where="test"), records)
    await gateway.start()
    events: dict[str, dict[str, Any]] = {}
    places = asyncio.Semaphore(at_once)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(body: dict[str, Any]) -> None:
                async with places, session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    name, last = answer.headers["x-request-id"], {}
                    async for line in answer.content:
                        if tells.encode() in line:
                            last = json.loads(line.removeprefix(b"data:"))
                    events[name] = last

            async with asyncio.TaskGroup() as group:
                for pause, body in asked:
                    await asyncio.sleep(pause)
                    group.create_task(one(body))
            gateway.flush_records()
            view = gateway.live()["inference"]
    finally:
        await gateway.close(0)
    return Outcome([Told(record, events.get(record.request_id, {})) for record in records.all], view)


def stated_ns(record: RequestRecord, stage: str) -> int:
    """The error that a stage's source states."""
    return int(record.stage_sources[stage].rpartition("±")[2].removesuffix(" ms)")) * 1_000_000
