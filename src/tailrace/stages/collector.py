"""The collector of one request: which stages ran when, and how long each took.

A collector belongs to a context (`contextvars`), so concurrent requests of one process never see each other's stages;
tasks and `asyncio.to_thread` calls started inside a request inherit its collector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tailrace.stages.partition import NamedSpan, partition
from tailrace.stages.server_timing import render_server_timing

if TYPE_CHECKING:
    from tailrace.stages.budget import StageTimeout

SPAN_LIMIT: Final = 4096
"""Spans kept a request. A stage in a loop over tokens would grow without bound; what is above is counted."""


class RunningStage(Protocol):
    """What a collector knows of a stage that is running."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def parent(self) -> RunningStage | None:
        """The one around it."""
        ...


class StageSpan(NamedTuple):
    """One run of a stage, once it is over (ns of the collector's clock)."""

    name: str
    start: int
    end: int
    number: int
    """In the order of beginning, within the request."""
    parent: int
    """The number of the stage around it; -1 where there is none."""
    over_budget: bool = False
    error: str = ""
    """Name of the exception that ended it."""


class Collector:
    """Spans of one request; `durations` reduces them to one number a stage (ns).

    At each instant one stage has the time, the one that began last: a stage entered inside an unrelated one is taken
    off it, and parallel spans of one stage count once. So stages never add up to more than the request took.
    """

    __slots__ = ("clock", "deadline_ns", "dropped", "failed_in", "number", "running", "spans", "timeout")

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, *, deadline_ns: int | None = None) -> None:
        self.clock = clock
        self.deadline_ns = deadline_ns
        """When the request as a whole is over, on `clock`; `None` where nobody said."""
        self.spans: list[StageSpan] = []
        """Those that are over, in the order of their ends."""
        self.dropped = 0
        """Spans that came after `SPAN_LIMIT`; above 0 the durations are too short."""
        self.number: Callable[[], int] = count().__next__
        """Numbers stages in the order of beginning; threads may share it."""
        self.running: dict[int, RunningStage] = {}
        """Those that are not over, by number."""
        self.failed_in = ""
        """The innermost stage that the last exception came out of."""
        self.timeout: StageTimeout | None = None
        """The last budget that was over and ended its stage."""

    @property
    def innermost(self) -> str:
        """The stage that was entered last and is still running; empty outside of all."""
        running = list(self.running.values())
        return running[-1].name if running else ""

    def innermost_in(self, outer: RunningStage) -> str:
        """The stage that was entered last of those inside `outer`, or `outer` itself."""
        for one in reversed(list(self.running.values())):
            inside: RunningStage | None = one
            while inside is not None:
                if inside is outer:
                    return one.name
                inside = inside.parent
        return outer.name

    def add(self, span: StageSpan) -> None:
        """A stage is over."""
        self.running.pop(span.number, None)
        if len(self.spans) >= SPAN_LIMIT:
            self.dropped += 1
        else:
            self.spans.append(span)

    def durations(self) -> dict[str, int]:
        """Stage or part -> nanoseconds, in the order of first begin; a stage contains its parts."""
        return partition([NamedSpan(span.name, span.start, span.end, span.number) for span in list(self.spans)])

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
