"""Whether an engine is alive, from its metrics: `/health` answers 200 while the engine behind it stands still."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.engines.odometer import Reading
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

    @property
    def text(self) -> str:
        """For people."""
        seconds = (self.until_ns - self.since_ns) / S
        if self.running:
            return f"the engine runs {self.running} requests and has computed nothing for {seconds:.1f} s"
        return f"{self.waiting} requests wait in the engine and it has begun none for {seconds:.1f} s"


class Liveness:
    """Follows an engine's progress: tokens, steps and ended requests. Work without progress is a stand-still.

    Every reading is shown to it, at whatever pace. An engine without work is alive, and so is one that moved at all
    since the reading before. What it cannot say is `None`: without a count of requests, or without any counter.
    """

    def __init__(self, *, after_ns: int = FROZEN_AFTER_NS) -> None:
        self._after_ns = after_ns
        self._progress: tuple[float, ...] | None = None
        self._since: int | None = None
        self._restarts = 0
        self.frozen: Standstill | None = None
        """The present stand-still, once it is long enough to be one."""

    def look(self, reading: Reading) -> Standstill | None:
        """One more reading; returns the stand-still that it shows."""
        progress = _progress(reading)
        inside = (reading.running or 0) + (reading.waiting or 0)
        moved = progress != self._progress or reading.restarts != self._restarts
        self._progress, self._restarts = progress, reading.restarts
        if progress is None or not inside or moved or self._since is None:
            # With work inside, the clock starts here: what stood still before was not seen with work.
            self._since = reading.at_ns if progress is not None and inside else None
            self.frozen = None
        elif reading.at_ns - self._since >= self._after_ns:
            self.frozen = Standstill(self._since, reading.at_ns, reading.running or 0, reading.waiting or 0)
        return self.frozen


def _progress(reading: Reading) -> tuple[float, ...] | None:
    if reading.running is None:
        return None
    nouns = ("generation_tokens", "prompt_tokens", "steps", "finished", "rejected")
    moved = tuple(sum(by.values()) for noun in nouns if (by := reading.counters.get(noun)) is not None)
    return moved or None
