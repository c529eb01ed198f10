"""Two tenants with weights 3 : 1 that both ask for more than there is: what each gets of the tokens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import count
from typing import NamedTuple

import aiohttp
import msgspec
import scene
import sockets
import visitors

from tailrace.model.record import RequestRecord
from tailrace.simulate.clients import Call

WEIGHTS = {"three": 3.0, "one": 1.0}
SEATS = {"three": 24, "one": 12}
"""Clients that ask again as soon as they are answered: of each tenant always more than the lane has places."""
RUNNING = 4
SECONDS = 15.0
SETTLE_S = 1.0
"""Until everybody stands in the queue."""
LONGEST_ANSWER = 24
WITHIN = 0.05
TIME_SCALE = 2.0
"""A fast engine makes more requests of the same seconds."""


class Shares(NamedTuple):
    """What was let in while both waited."""

    requests: dict[str, int]
    tokens: dict[str, int]
    """Prompt and answer."""
    one_more: float
    """By how much of its share one request more or less changes what the smaller tenant got."""

    @property
    def deviation(self) -> dict[str, float]:
        """By tenant, how far its share of the tokens is from that of its weight, as a share of the latter."""
        tokens, weights = sum(self.tokens.values()), sum(WEIGHTS.values())
        return {
            name: self.tokens[name] / tokens / (weight / weights) - 1 if tokens else float("nan")
            for name, weight in WEIGHTS.items()
        }


def run(seconds: float = SECONDS) -> list[str]:
    """Print the figures; what is broken of the promise."""
    seen = play(seconds)
    got = ", ".join(
        f"{name} (weight {weight:g}) {seen.tokens[name]} tokens in {seen.requests[name]} requests, "
        f"{100 * seen.deviation[name]:+.1f} %"
        for name, weight in WEIGHTS.items()
    )
    print(f"shares: {RUNNING} places for {seconds:g} s: {got}; one request more or less: {100 * seen.one_more:.1f} %")
    if not all(seen.requests[name] for name in WEIGHTS):
        return ["shares: a tenant got nothing"]
    worst = max(abs(value) for value in seen.deviation.values())
    if worst <= WITHIN:
        return []
    beyond = "" if worst > WITHIN + seen.one_more else ", within what one request more or less would change"
    return [f"shares: a tenant's share of the tokens is {100 * worst:.1f} % off its weight{beyond}"]


def play(seconds: float = SECONDS) -> Shares:
    """The lane's tenants by a header, as a proxy would write it."""
    config = {
        "tenant_header": "x-tenant",
        "tenants": {name: {"weight": weight} for name, weight in WEIGHTS.items()},
        "lanes": [{"name": "all", "running": RUNNING, "queued": 200, "budgets": {"queue": "30s"}}],
    }
    with (
        sockets.engine(time_scale=TIME_SCALE) as engine,
        sockets.serving({**config, "backends": sockets.backends(gpu=engine.url)}) as (url, admin),
    ):
        began = time.time_ns()
        asyncio.run(_seats(url, engine.model, seconds))
        records = sockets.records_of(admin)
    from_ns, to_ns = began + round(SETTLE_S * 1e9), began + round(seconds * 1e9)
    let_in = [one for one in records if from_ns <= _let_in(one) < to_ns]
    tokens: Counter[str] = Counter()
    for record in let_in:
        tokens[record.tenant] += _work(record)
    requests = Counter(record.tenant for record in let_in)
    smaller = min(WEIGHTS, key=lambda name: WEIGHTS[name])
    return Shares(dict(requests), dict(tokens), 1 / max(1, requests[smaller]))


async def _seats(url: str, model: str, seconds: float) -> None:
    """Every client asks until the time is over, and stays for its last answer."""
    until = time.monotonic() + seconds
    asked = scene.short_calls(50.0, 60.0, longest=LONGEST_ANSWER)
    numbers = count()

    async def seat(session: aiohttp.ClientSession, tenant: str) -> None:
        while time.monotonic() < until:
            number = next(numbers)
            call: Call = msgspec.structs.replace(
                asked[number % len(asked)], name=f"{tenant}-{number}", headers={"x-tenant": tenant}
            )
            await visitors.visit(session, url, model, call, {})

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for tenant, seats in SEATS.items():
            for _ in range(seats):
                group.create_task(seat(session, tenant))


def _let_in(record: RequestRecord) -> int:
    return record.start_unix_ns + (record.ingress_ns or 0) + (record.queue_gateway_ns or 0)


def _work(record: RequestRecord) -> int:
    return (record.prompt_tokens or 0) + (record.output_tokens or 0)
