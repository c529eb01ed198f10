"""Whatever becomes of requests, in whatever state, nothing of them stays: every gauge is back where it began."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tailrace.model.outcome import OutcomeKind
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, finish, token
from tests.wire.stand import Stand, run, stand

AT_ONCE = 24
LANES = [
    {"name": "narrow", "match": {"header": {"x-class": "narrow"}}, "running": 2, "queued": 4},
    {"name": "cached", "match": {"model": "cached"}, "running": 4, "queued": 100},
    {"name": "default", "running": 16, "queued": 100},
]
FATES = [
    "leaves queued",
    "leaves waiting",
    "leaves streaming",
    "leaves draining",
    "fails",
    "is cut",
    "errs in a stream",
]


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def engine(incoming: Incoming) -> None:
    """Does what the request's `user` says."""
    fate = incoming.json.get("user", "")
    if fate == "fails":
        await incoming.reply({"error": {"message": "no"}}, 500)
    elif fate == "is cut":
        await incoming.sse(token())
        incoming.abort()
    elif fate == "errs in a stream":
        await incoming.sse(token(), b'data: {"error": {"message": "m", "code": 500}}\n\n')
        await incoming.end()
    elif fate == "leaves waiting":
        await incoming.until_gone()
    elif fate == "leaves streaming":
        await incoming.sse(token())
        await incoming.until_gone()
    elif fate == "leaves draining":
        await incoming.send(SSE_HEAD)
        for _ in range(4):
            await incoming.chunks(token("x" * 60_000))
        await incoming.chunks(finish(), DONE)
        await incoming.end()
    elif not incoming.json.get("stream"):
        await incoming.completion()
    else:
        await incoming.sse(token(), token(), finish(), DONE)
        await incoming.end()


class Crowd:
    """Clients that ask, and of whom a part leaves or is failed."""

    def __init__(self, s: Stand, seed: int) -> None:
        self.s = s
        self.random = random.Random(seed)
        self.sent = 0
        self.fates: Counter[str] = Counter()
        self.kept: list[RawClient] = []

    async def one(self) -> None:
        self.sent += 1
        draw = self.random.random
        fate = self.random.choice(FATES) if draw() < 0.3 else "completes"
        self.fates[fate] += 1
        headers = {"x-class": "narrow"} if fate == "leaves queued" or draw() < 0.1 else None
        cached = fate not in ("leaves queued", "leaves draining") and draw() < 0.3
        more: dict[str, Any] = {"user": fate if fate != "completes" else ""}
        if cached:
            more |= {"model": "cached", "temperature": 0, "seed": self.random.randrange(50), "stop": [fate]}
        leaves = fate.startswith("leaves")
        data = request(
            chat_body(stream=leaves or "stream" in fate or fate == "is cut" or draw() < 0.5, **more), headers=headers
        )
        if not leaves:
            await self.ask(data)
            return
        client = await RawClient.connect(self.s.gateway.url, receive_buffer=4096 if "draining" in fate else None)
        try:
            await client.send(data)
            if fate == "leaves streaming":
                await client.head()
            await asyncio.sleep(0.05 if "draining" in fate else draw() * 0.02)
        finally:
            client.abort()

    async def ask(self, data: bytes) -> None:
        client = self.kept.pop() if self.kept else await RawClient.connect(self.s.gateway.url)
        try:
            reply = await client.ask(data)
        except (asyncio.IncompleteReadError, ConnectionError):
            client.abort()
            return
        if reply.end in ("length", "chunked") and reply.headers.get("connection") != "close":
            self.kept.append(client)
        else:
            client.abort()

    async def run(self, count: int) -> None:
        left = count

        async def some() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.one()

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(some())
        for client in self.kept:
            client.abort()
        self.kept.clear()


def gauges(s: Stand) -> dict[str, int]:
    """Everything that must be 0 when nothing is in flight."""
    live = s.gateway.live()
    cache = s.gateway.cache
    assert cache is not None
    out = {"in_flight": live["in_flight"], "flights": cache.in_flight(), "connections": live["connections"]}
    out["waiting for a connection"] = live["upstream_waiting"]
    for name, lane in live["lanes"].items():
        out[f"{name} running"], out[f"{name} queued"] = lane["running"], lane["queued"]
        for key in ("running_tokens", "queued_tokens", "running_kv_tokens", "prefill_requests", "prefill_tokens"):
            if isinstance(lane.get(key), int):
                out[f"{name} {key}"] = lane[key]
    for backend in s.gateway.backends:
        load = backend.load()
        out[f"{backend.name} requests"], out[f"{backend.name} tokens"] = (
            load["outstanding_requests"],
            load["outstanding_tokens"],
        )
        out[f"{backend.name} in use"] = load["connections"] - load["idle_connections"]
    return out


@pytest.mark.parametrize(
    "many",
    [2000, pytest.param(10_000, marks=[pytest.mark.tier("ci"), pytest.mark.timeout(90)])],
)
def test_every_gauge_is_back_at_nothing_and_memory_is_flat(many: int) -> None:
    async def test() -> None:
        async with stand(
            engine,
            lanes=LANES,
            cache={"routes": [{"models": ["cached"]}], "max_bytes": 65536, "entry_bytes": 16384},
            budgets={"queue": "500ms"},
            limits={"upstream_connections": 12},
            records={"sample": 0.0},
        ) as s:
            crowd = Crowd(s, seed=7)
            sizes, outcomes = [], Counter[tuple[OutcomeKind, str]]()
            for _ in range(2):
                await crowd.run(many // 2)
                await s.until(lambda: not any(gauges(s).values()), within=15.0)
                outcomes.update((record.outcome, record.died_in) for record in s.records.all)
                s.records.all.clear()
                s.engine.requests.clear()
                gc.collect()
                sizes.append(resident())
            assert crowd.sent == many
            assert outcomes.total() == many  # each left exactly one record
            assert outcomes[OutcomeKind.COMPLETED, ""] >= many * 0.6
            ended = {stage for outcome, stage in outcomes if outcome is OutcomeKind.CANCELLED}
            assert {"queue", "prefill", "decode", "response"} <= ended, outcomes
            assert sum(count for fate, count in crowd.fates.items() if fate != "completes") >= many * 0.25
            # A record is 2 kB and some 4,000 are held in memory; a request that stayed would be 20 kB.
            assert sizes[1] - sizes[0] < 2_500 * (many // 2) + 8_000_000

    run(test(), within=80.0 if many > 2000 else 18.0)


def test_the_page_of_metrics_says_nothing_of_the_moment_when_nothing_is_in_flight() -> None:
    from tailrace.app.cache_gauges import show_cache
    from tailrace.export.prometheus import GatewayMetrics

    async def test() -> None:
        async with stand(engine, cache={"routes": [{}]}) as s:
            body = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
            for _ in range(2):
                await s.ask(request(json.dumps({"model": "m", **body}).encode()))
            metrics = GatewayMetrics()
            assert s.gateway.cache is not None
            show_cache(metrics, s.gateway.cache.view())
            text = metrics.render()[0].decode()
            assert 'tailrace_cache_requests_total{result="hit"} 1.0' in text
            assert 'tailrace_cache_requests_total{result="miss"} 1.0' in text
            assert "tailrace_cache_flights 0.0" in text
            assert "tailrace_cache_entries 1.0" in text

    run(test())
