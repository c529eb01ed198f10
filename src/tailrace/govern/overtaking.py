"""Those who will come later and go first: what they take of a lane that serves the shortest first.

A request of size x waits for the work before it, and for the shorter ones that arrive in that time, and so on: with
rho the share of the lane's pace that those take, the wait is longer by 1 / (1 - rho) (shortest job first, M/G/1).
"""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW: Final = 64
_MOST: Final = 0.9
"""More cannot be told from such a sample, and would make every long request hopeless."""


class Overtaking:
    """The last sixty-four that joined the queue."""

    __slots__ = ("_came",)

    def __init__(self) -> None:
        self._came: deque[tuple[int, float]] = deque(maxlen=_WINDOW)

    def came(self, work: float, now: int) -> None:
        """One joined the queue."""
        self._came.append((now, work))

    def mean(self) -> float:
        """Work of one of them, on average; 0 where none came yet."""
        came = self._came
        return sum(size for _, size in came) / len(came) if came else 0.0

    def share(self, work: float, now: int, place_ns: float) -> float:
        """Of the pace of one unit of work in `place_ns`, what shorter ones than `work` take that come at their rate."""
        came = self._came
        if len(came) < _WINDOW // 4:
            return 0.0
        span = now - came[0][0]
        if span <= 0:
            return 0.0
        shorter = sum(size for _, size in came if size < work)
        return min(_MOST, shorter * place_ns / span)
