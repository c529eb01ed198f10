"""Those who will come later and go first: what they take of a lane that serves the shortest first.

A request of size x waits for the work before it, and for the shorter ones that arrive in that time, and so on: with
rho the share of the lane's pace that those take, the wait is longer by 1 / (1 - rho) (shortest job first, M/G/1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import Final

_WINDOW: Final = 64
_SORT_EVERY: Final = 16
"""Arrivals between two sortings of the window: a prediction must not cost one."""
_MOST: Final = 0.9
"""More cannot be told from such a sample, and would make every long request hopeless."""


class Overtaking:
    """The last sixty-four that joined the queue."""

    __slots__ = ("_came", "_fresh", "_ordered", "_sums")

    def __init__(self) -> None:
        self._came: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._ordered: list[float] = []
        self._sums: list[float] = [0.0]
        """Of the smallest so many."""
        self._fresh = 0

    def came(self, work: float, now: int) -> None:
        """One joined the queue."""
        self._came.append((now, work))
        self._fresh += 1
        if self._fresh >= _SORT_EVERY:
            self._fresh = 0
            self._ordered = sorted(size for _, size in self._came)
            self._sums = list(accumulate(self._ordered, initial=0.0))

    def share(self, work: float, now: int, place_ns: float) -> float:
        """Of the pace of one unit of work in `place_ns`, what shorter ones than `work` take that come at their rate."""
        ordered = self._ordered
        if len(ordered) < _SORT_EVERY:
            return 0.0
        span = now - self._came[0][0]
        if span <= 0:
            return 0.0
        return min(_MOST, self._sums[bisect_left(ordered, work)] * place_ns / span)
