"""The collector of one request: which stages ran when, and how long each took.

A collector belongs to a context (`contextvars`), so concurrent requests of one process never see each other's stages;
tasks and `asyncio.to_thread` calls started inside a request inherit its collector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tailrace.stages.server_timing import render_server_timing

SPAN_LIMIT: Final = 4096
"""Spans kept a request. A stage in a loop over tokens would grow without bound; what is above is counted."""

Interval = tuple[int, int]


class Collector:
    """Spans of one request; `durations` reduces them to one number a stage (ns).

    Stages of different names never overlap in the result: a stage entered inside an unrelated one is taken off it.
    Parallel spans of one stage count once (the time in which at least one of them ran), so no stage can exceed the
    request.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self.dropped = 0
        """Spans that came after `SPAN_LIMIT`; above 0 the durations are too short."""
        self._spans: dict[str, list[Interval]] = {}
        self._count = 0

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record that `name` ran from `start_ns` to `end_ns` of the collector's clock."""
        if self._count >= SPAN_LIMIT:
            self.dropped += 1
            return
        self._count += 1
        self._spans.setdefault(name, []).append((start_ns, end_ns))

    def durations(self) -> dict[str, int]:
        """Stage or part -> nanoseconds, in the order of first end; a stage contains its parts."""
        spans: dict[str, list[Interval]] = {}
        for name, intervals in list(self._spans.items()):
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                spans.setdefault(".".join(parts[:depth]), []).extend(intervals)
        return {name: _covered(intervals) for name, intervals in spans.items()}

    def server_timing(self) -> str:
        """The value of a `Server-Timing` response header with every stage so far; empty where there is none."""
        return render_server_timing(self.durations())


CURRENT: ContextVar[Collector | None] = ContextVar("tailrace_stages_collector", default=None)


@contextmanager
def collect(clock: Callable[[], int] = time.monotonic_ns) -> Iterator[Collector]:
    """Collect the stages of the request handled inside the block. Blocks may nest; the innermost collects."""
    collector = Collector(clock)
    token = CURRENT.set(collector)
    try:
        yield collector
    finally:
        CURRENT.reset(token)


def subtract(whole: Interval, holes: list[Interval]) -> list[Interval]:
    """The pieces of `whole` outside all `holes`; empty pieces are left out."""
    pieces = []
    at, end = whole
    for start, stop in sorted(holes):
        if start > at:
            pieces.append((at, min(start, end)))
        at = max(at, stop)
        if at >= end:
            break
    if at < end:
        pieces.append((at, end))
    return pieces


def _covered(intervals: list[Interval]) -> int:
    """Length of the union of intervals (ns)."""
    total = 0
    reached: int | None = None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        if end > begin:
            total += end - begin
        reached = end if reached is None else max(reached, end)
    return total
