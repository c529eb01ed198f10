"""The least time that a request will take once it has begun, as its lane has shown it.

A request whose deadline is nearer than that is not worth starting. The bound is meant to err on the low side: it is the
least that any of the last requests took, for its own work, so only what no request of late has achieved is refused.
"""

from __future__ import annotations

from typing import Final

SEEN_FIRST: Final = 16
"""Requests that must have finished before anything is said."""
EPOCH: Final = 128
"""Finishes after which older ones are forgotten: the bound is over the last one to two epochs."""
STALE_NS: Final = 60_000_000_000
"""Nothing is said after a minute without a finish: a bound that refuses everybody would never be seen to be wrong."""


class ServiceFloor:
    """Minima of service time, and of service time per unit of work, over the last requests."""

    __slots__ = ("_count", "_last", "_now", "_past")

    def __init__(self) -> None:
        self._count = 0
        self._last = 0
        self._now = (1 << 62, float("inf"))
        self._past = (1 << 62, float("inf"))

    def saw(self, service_ns: int, work: float, now: int) -> None:
        """One took this long for this much work."""
        self._count += 1
        self._last = now
        self._now = (min(self._now[0], service_ns), min(self._now[1], service_ns / max(work, 1.0)))
        if self._count % EPOCH == 0:
            self._past, self._now = self._now, (1 << 62, float("inf"))

    def least_ns(self, work: float, now: int) -> int:
        """The least that so much work will take (ns); 0 while nothing is known."""
        if self._count < SEEN_FIRST or now - self._last > STALE_NS:
            return 0
        shortest = min(self._now[0], self._past[0])
        return max(shortest, int(min(self._now[1], self._past[1]) * work))
