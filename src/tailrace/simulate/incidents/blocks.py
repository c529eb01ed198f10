"""Event loops that are blocked now and then: what falls into a block is done at its end."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Stamps = NDArray[np.int64]


class Loop:
    """One event loop. Blocks are added in order of time (ns); overlapping ones follow each other."""

    __slots__ = ("_begins", "_ends", "free_at")

    def __init__(self, planned: list[tuple[int, int]] | None = None) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.free_at = 0
        for begin, length in planned or []:
            self.block(begin, length)

    def block(self, begin: int, length: int) -> int:
        """It is busy for `length` from `begin`, or from when it is free; returns the end."""
        begin = max(begin, self.free_at)
        self._begins.append(begin)
        self._ends.append(begin + length)
        self.free_at = begin + length
        return self.free_at

    def after(self, at: int) -> int:
        """When something that comes at `at` is looked at."""
        i = bisect_right(self._begins, at) - 1
        return max(at, self._ends[i]) if i >= 0 else at

    def passed(self, stamps: Stamps) -> Stamps:
        """The same for many, in order."""
        if not self._begins or not stamps.size:
            return stamps
        # Only the blocks that begin before the last stamp and may reach the first one matter.
        low = max(bisect_right(self._begins, int(stamps[0])) - 1, 0)
        high = bisect_right(self._begins, int(stamps[-1]))
        if low >= high or (high - low == 1 and self._ends[low] <= stamps[0]):
            return stamps
        begins = np.array(self._begins[low:high], dtype=np.int64)
        ends = np.array(self._ends[low:high], dtype=np.int64)
        i = np.searchsorted(begins, stamps, side="right") - 1
        return np.where(i >= 0, np.maximum(stamps, ends[np.maximum(i, 0)]), stamps)

    def worst(self, begin: int, end: int) -> int:
        """The longest block that overlaps [begin, end] (ns); 0 if there is none."""
        lo = bisect_right(self._ends, begin)
        hi = bisect_right(self._begins, end)
        return max((self._ends[i] - self._begins[i] for i in range(lo, hi)), default=0)


class TwoLoops:
    """What one process does by plan (collections) and what requests make it do, on the same loop."""

    __slots__ = ("by_plan", "by_requests")

    def __init__(self, planned: list[tuple[int, int]]) -> None:
        self.by_plan = Loop(planned)
        self.by_requests = Loop()

    def work(self, at: int, length: int) -> int:
        """A request's own work on the loop; returns when it is done."""
        return self.by_plan.after(self.by_requests.block(self.by_plan.after(at), length))

    def passed(self, stamps: Stamps) -> Stamps:
        """When things that come at `stamps` (in order) get through."""
        return self.by_plan.passed(self.by_requests.passed(self.by_plan.passed(stamps)))
