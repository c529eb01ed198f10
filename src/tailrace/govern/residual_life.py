"""How much longer something lasts that has lasted so long: the mean residual life of a sample."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate
from operator import mul
from typing import Final

_WINDOW: Final = 100
_FEW: Final = 5
"""With fewer samples the remaining life is 1, whatever the age: the memoryless guess."""
_SOME: Final = 10
"""Samples before a tenth of them is one."""
_REBUILD: Final = 16
"""The table is built anew after so many samples: it moves by a few ranks at most in between."""
_BEYOND: Final = 0.2
"""Past (almost) all that was ever seen, what is left is taken as this share of the age; long tails are like that."""


class ResidualLife:
    """Lives relative to what was expected of each (1 = as expected), the last hundred of them.

    E[X - x | X > x] = (sum of the lives above x) / (their number) - x, from a sorted table with sums from the right.
    """

    __slots__ = ("_fresh", "_lives", "_ordered", "_sums", "spread")

    def __init__(self) -> None:
        self._lives: deque[float] = deque(maxlen=_WINDOW)
        self._ordered: list[float] = []
        self._sums: list[float] = [0.0]
        self._fresh = 0
        self.spread = 1.0
        """Coefficient of variation; 1 (exponential) while there are few samples."""

    def add(self, life: float) -> None:
        """One ended after `life` times what was expected."""
        self._lives.append(life)
        self._fresh += 1
        if self._fresh >= _REBUILD or len(self._lives) <= _REBUILD:
            self._build()

    def after(self, age: float) -> float:
        """Mean remaining life at `age`, in the same unit; above 0."""
        ordered = self._ordered
        if len(ordered) < _FEW:
            return 1.0
        place = bisect_right(ordered, age)
        left = len(ordered) - place
        if left < 3:
            return max(_BEYOND * age, 0.1)
        return max(self._sums[place] / left - age, 0.01)

    def range(self, low: float, high: float) -> tuple[float, float] | None:
        """Two quantiles of the lives; `None` while there are few."""
        ordered = self._ordered
        if len(ordered) < _SOME:
            return None
        last = len(ordered) - 1
        return ordered[round(last * low)], ordered[round(last * high)]

    def _build(self) -> None:
        self._fresh = 0
        ordered = self._ordered = sorted(self._lives)
        sums = list(accumulate(reversed(ordered), initial=0.0))
        total = sums[-1]
        sums.reverse()
        self._sums = sums
        n = len(ordered)
        if n >= _FEW and total > 0:
            squares = sum(map(mul, ordered, ordered))
            mean = total / n
            self.spread = (max(squares / n - mean * mean, 0.0)) ** 0.5 / mean
