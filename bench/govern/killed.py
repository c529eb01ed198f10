"""One of three engines dies under load by `kill -9` and comes back: whose streams fail, and when it has work again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import msgspec
import scene
import sockets
import visitors

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord

RATE = 12.0
"""Streams a second."""
SECONDS = 15.0
KILLED_AFTER_S, BACK_AFTER_S = 5.0, 9.0
ANSWER = 120
"""Tokens, a second and a half: a dozen streams are in flight at any time."""
AGAIN_WITHIN_S = 5.0
"""From when the engine serves again until it has a request: a probe of its health, and a breaker's."""
_VICTIM = "second"


class Killed(NamedTuple):
    """What the death of one engine cost."""

    asked: int
    in_flight: int
    """Streams that any engine had when the victim died."""
    its_own: int
    """Of them, the victim's."""
    failed: int
    """By their clients."""
    failed_of_others: int
    """Requests that failed though another engine had them, or though they came after the death."""
    retried: int
    """Requests that another engine served after the victim had not."""
    silent: int
    """Failures of which the client was told nothing."""
    down_s: float
    """From the death until the new process was ready."""
    again_s: float | None
    """From then until it was sent its first request."""
    after: int
    """Requests that it served once it was back."""


def run() -> list[str]:
    """Print the figures; what is broken of the promise."""
    seen = play()
    again = "never" if seen.again_s is None else f"after {seen.again_s:.2f} s"
    print(
        f"killed: kill -9 of one of three engines, {seen.asked} streams at {RATE:g}/s: {seen.in_flight} in flight, "
        f"{seen.its_own} its own; {seen.failed} failed ({seen.failed_of_others} not its own, {seen.silent} without "
        f"an error event), {seen.retried} sent on to another engine\n"
        f"killed: down for {seen.down_s:.1f} s; ready again, it got its first request {again} and served {seen.after} "
        f"until the load ended",
        flush=True,
    )
    broken = []
    if not seen.its_own:
        broken.append("killed: the engine had no stream when it died: nothing was shown")
    if seen.failed_of_others:
        broken.append(f"killed: {seen.failed_of_others} requests failed that the killed engine did not have")
    if seen.silent:
        broken.append(f"killed: {seen.silent} failures came without an error event")
    if seen.again_s is None or seen.again_s > AGAIN_WITHIN_S or not seen.after:
        broken.append(f"killed: traffic did not return to the engine within {AGAIN_WITHIN_S:g} s")
    return broken


def play() -> Killed:
    """Load in a thread of its own; this one kills the engine, and starts it again on its port."""
    calls = [
        msgspec.structs.replace(call, output_tokens=ANSWER) for call in scene.short_calls(RATE, SECONDS, longest=ANSWER)
    ]
    with ExitStack() as stack:
        engines = {name: stack.enter_context(sockets.engine()) for name in ("first", _VICTIM, "third")}
        config = {"backends": sockets.backends(**{name: one.url for name, one in engines.items()})}
        url, admin = stack.enter_context(sockets.serving(config))
        victim = engines[_VICTIM]
        pool = stack.enter_context(ThreadPoolExecutor(1))
        began = time.monotonic()
        seen = pool.submit(asyncio.run, visitors.visits(url, victim.model, calls))
        time.sleep(KILLED_AFTER_S)
        died = time.time_ns()
        os.kill(victim.pid, signal.SIGKILL)
        time.sleep(max(0.0, began + BACK_AFTER_S - time.monotonic()))
        stack.enter_context(sockets.engine(port=int(victim.url.rpartition(":")[2])))
        back = time.time_ns()
        visited = seen.result()
        records = sockets.records_of(admin)
    return _judged(visited, records, died, back)


def _judged(visited: list[visitors.Visit], records: list[RequestRecord], died: int, back: int) -> Killed:
    had = [one for one in records if _sent(one) <= died < one.start_unix_ns + one.e2e_ns]
    its_own = {one.request_id for one in had if one.backend == _VICTIM}
    again = sorted(_sent(one) for one in records if one.backend == _VICTIM and _sent(one) >= back)
    lost = [one for one in visited if not one.ended_well]
    return Killed(
        asked=len(visited),
        in_flight=len(had),
        its_own=len(its_own),
        failed=len(lost),
        failed_of_others=sum(one.request_id not in its_own for one in lost),
        retried=sum(one.outcome is OutcomeKind.COMPLETED and one.attempts > 1 for one in records),
        silent=sum(not one.error_event for one in lost),
        down_s=(back - died) / 1e9,
        again_s=(again[0] - back) / 1e9 if again else None,
        after=sum(
            one.backend == _VICTIM and _sent(one) >= back and one.outcome is OutcomeKind.COMPLETED for one in records
        ),
    )


def _sent(record: RequestRecord) -> int:
    """When it left for the engine that answered last."""
    return record.start_unix_ns + (record.ingress_ns or 0) + (record.queue_ns or 0)
