"""A canary that is 1.3 times slower: how soon it is rolled back, and whether a stream is cut by that."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import aiohttp
import scene
import sockets
import visitors

from tailrace.govern.route_share import place
from tailrace.simulate.clients import Call

SLOWER = 1.3
RATE = 20.0
WITHIN_S = 120.0
"""The promise."""
LONGEST_ANSWER = 16
SHARE = 0.1
LONG_ANSWER = 400
"""Of the streams that are in flight at any time, one of each route, so that there is one to be cut."""
_NAME = "canary"
_ROLLED_BACK = "rolled_back"


class Verdict(NamedTuple):
    """What became of the canary."""

    state: str
    seconds: float
    """From the first request until it was rolled back, or until we gave up."""
    decision: str
    stable: int
    """Requests that ended by then ..."""
    canary: int
    in_flight: int
    """The canary's streams at that moment."""
    cut: int
    """Streams of either route that did not end as they should."""
    after: int
    """Requests that went to the canary once it was rolled back."""


def run() -> list[str]:
    """Print the figures; what is broken of the promise."""
    seen = asyncio.run(play())
    gone = seen.state == _ROLLED_BACK
    what = f"rolled back after {seen.seconds:.0f} s" if gone else f"{seen.state} after {seen.seconds:.0f} s"
    print(
        f"canary: {SLOWER:g} times slower, {100 * SHARE:g} % of {RATE:g} requests/s: {what} "
        f"({seen.canary} of its requests, {seen.stable} others); {seen.in_flight} of its streams in flight, "
        f"{seen.cut} cut, {seen.after} sent to it later\n"
        f"canary: {seen.decision or 'no decision'}",
        flush=True,
    )
    broken = []
    if not gone:
        broken.append(f"canary: not rolled back within {WITHIN_S:g} s")
    if seen.cut:
        broken.append(f"canary: {seen.cut} streams were cut")
    if seen.after:
        broken.append(f"canary: {seen.after} requests went to it after it was rolled back")
    return broken


async def play() -> Verdict:
    """One load until the verdict, and two seconds more."""
    with sockets.engine() as today, sockets.engine(time_scale=1 / SLOWER) as new:
        config = {
            "backends": sockets.backends(today=today.url, new=new.url),
            "canary": {"name": _NAME, "backends": ["new"], "steps": [SHARE, 1.0], "requests_per_s": RATE},
        }
        with sockets.serving(config) as (url, admin):
            calls = scene.short_calls(RATE, WITHIN_S + 10, longest=LONGEST_ANSWER)
            stop = asyncio.Event()
            load = asyncio.ensure_future(visitors.visits(url, today.model, calls, stop=stop))
            began = time.monotonic()
            async with aiohttp.ClientSession() as session:
                long = [
                    asyncio.ensure_future(_long_streams(session, url, today.model, name, stop))
                    for name in _one_session_of_each()
                ]
                view = await _view(session, admin)
                while view["state"] != _ROLLED_BACK and time.monotonic() - began < WITHIN_S and not load.done():
                    await asyncio.sleep(0.25)
                    view = await _view(session, admin)
                seconds, ended = time.monotonic() - began, time.time_ns()
                await asyncio.sleep(2.0)
                stop.set()
                visited = await load
                for one in long:
                    visited += await one
            records = sockets.records_of(admin)
    new_ones = [one for one in records if one.route == "canary"]
    return Verdict(
        state=view["state"],
        seconds=seconds,
        decision=view["decision"],
        stable=view["finished"]["stable"],
        canary=view["finished"]["canary"],
        in_flight=sum(one.start_unix_ns <= ended < one.start_unix_ns + one.e2e_ns for one in new_ones),
        cut=sum(not one.ended_well for one in visited),
        after=sum(one.start_unix_ns > ended for one in new_ones) if view["state"] == _ROLLED_BACK else 0,
    )


def _one_session_of_each() -> tuple[str, str]:
    """Names of a session of the canary and of one of the others."""
    names = [f"long-{at}" for at in range(1000)]
    mine = next(name for name in names if place(name, _NAME) < SHARE)
    return mine, next(name for name in names if place(name, _NAME) >= SHARE)


async def _long_streams(
    session: aiohttp.ClientSession, url: str, model: str, name: str, stop: asyncio.Event
) -> list[visitors.Visit]:
    """One long stream after another, of one session."""
    seen: list[visitors.Visit] = []
    while not stop.is_set():
        call = Call(
            name=f"{name}-{len(seen)}",
            at_ns=0,
            prompt_tokens=80,
            output_tokens=LONG_ANSWER,
            headers={"x-session-id": name},
        )
        seen.append(await visitors.visit(session, url, model, call, {}))
    return seen


async def _view(session: aiohttp.ClientSession, admin: str) -> dict[str, Any]:
    async with session.get(f"{admin}/canary") as answer:
        view: dict[str, Any] = (await answer.json())["canary"]
    return view
