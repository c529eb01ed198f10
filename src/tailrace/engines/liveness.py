"""Whether an engine is alive, from its metrics: `/health` answers 200 while the engine behind it stands still."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.engines.odometer import Reading
from tailrace.engines.tallies import STEPWISE
from tailrace.model.thresholds import S

FROZEN_AFTER_NS: Final = 10 * S
"""Shorter stand-stills are long steps: a whole unchunked prefill takes seconds on a small machine (9.9 s for 4054
tokens of a 38.8 M-parameter model on a CPU), and no counter moves while it is computed."""


class Standstill(msgspec.Struct, frozen=True):
    """An engine that has work and does not do it."""

    since_ns: int
    """The first reading of the stretch in which nothing moved."""
    until_ns: int
    """The last one."""
    running: int
    waiting: int
    silent: bool = False
    """Its metrics are not answered either: llama.cpp answers them from the loop that computes."""

    @property
    def text(self) -> str:
        """For people."""
        seconds = (self.until_ns - self.since_ns) / S
        if self.silent:
            inside = self.running + self.waiting
            return f"the engine had {inside} requests and has not answered its metrics for {seconds:.1f} s"
        if self.running:
            return f"the engine runs {self.running} requests and has computed nothing for {seconds:.1f} s"
        return f"{self.waiting} requests wait in the engine and it has begun none for {seconds:.1f} s"


class Liveness:
    """Follows an engine's progress: tokens, steps, ended requests, memory. Work without progress is a stand-still.

    Every reading is shown to it, at whatever pace. An engine without work is alive, and so is one in which anything
    moved since the reading before. It says nothing of an engine that tells no number of requests, or has no counter
    that moves with every step (`tallies.STEPWISE`).
    """

    def __init__(self, *, after_ns: int = FROZEN_AFTER_NS) -> None:
        self._after_ns = after_ns
        self._progress: tuple[float, ...] | None = None
        self._since: int | None = None
        self._restarts = 0
        self._last: Reading | None = None
        self.frozen: Standstill | None = None
        """The present stand-still, once it is long enough to be one."""
        self.silent: Standstill | None = None
        """The present silence of an engine that had work."""

    def look(self, reading: Reading) -> Standstill | None:
        """One more reading; returns the stand-still that it shows."""
        progress = _progress(reading)
        inside = (reading.running or 0) + (reading.waiting or 0)
        self._last, self.silent = reading if inside else None, None
        moved = progress != self._progress or reading.restarts != self._restarts
        self._progress, self._restarts = progress, reading.restarts
        if progress is None or not inside or moved or self._since is None:
            # With work inside, the clock starts here: what stood still before was not seen with work.
            self._since = reading.at_ns if progress is not None and inside else None
            self.frozen = None
        elif reading.at_ns - self._since >= self._after_ns:
            self.frozen = Standstill(self._since, reading.at_ns, reading.running or 0, reading.waiting or 0)
        return self.frozen

    def late(self, now: int) -> Standstill | None:
        """A scrape was not answered in time; returns the silence, once it is long.

        It is no proof: llama.cpp answers its metrics between two steps, and long steps one after the other look alike.
        So it is told, and is not called frozen.
        """
        last = self._last
        if last is not None and now - last.at_ns >= self._after_ns:
            self.silent = Standstill(last.at_ns, now, last.running or 0, last.waiting or 0, silent=True)
        return self.silent


def _progress(reading: Reading) -> tuple[float, ...] | None:
    if reading.running is None or STEPWISE.isdisjoint(reading.names.values()):
        return None
    counted = (sum(by.values()) for by in reading.counters.values())
    observed = (seen.count for seen in reading.timings.values())
    # The scheduler's own gauges: a stopped one changes neither. How many wait is up to those who ask.
    return (*counted, *observed, float(reading.running), reading.kv_usage or 0.0)
