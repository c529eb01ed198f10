"""How much longer something lasts that has lasted so long: the mean residual life of a sample."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
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
    Its sums are made when somebody asks: most lives end where nobody waits.
    """

    __slots__ = ("_fresh", "_lives", "_ordered", "_spread", "_sums", "_table")

    def __init__(self) -> None:
        self._lives: deque[float] = deque()
        self._ordered: list[float] = []
        """The same, smallest first."""
        self._table: list[float] = []
        self._sums: list[float] | None = None
        self._fresh = 0
        """Samples that the table does not know."""
        self._spread = 1.0

    def add(self, life: float) -> None:
        """One ended after `life` times what was expected."""
        lives, ordered = self._lives, self._ordered
        if len(lives) == _WINDOW:
            del ordered[bisect_left(ordered, lives.popleft())]
        lives.append(life)
        insort(ordered, life)
        self._fresh += 1
        if self._fresh >= _REBUILD or len(lives) <= _REBUILD:
            self._fresh = 0
            self._table, self._sums = ordered.copy(), None

    def after(self, age: float) -> float:
        """Mean remaining life at `age`, in the same unit; above 0."""
        table, sums = self._table, self._sums or self._add_up()
        if len(table) < _FEW:
            return 1.0
        place = bisect_right(table, age)
        left = len(table) - place
        if left < 3:
            return max(_BEYOND * age, 0.1)
        return max(sums[place] / left - age, 0.01)

    @property
    def spread(self) -> float:
        """Coefficient of variation; 1 (exponential) while there are few samples."""
        if self._sums is None:
            self._add_up()
        return self._spread

    def range(self, low: float, high: float) -> tuple[float, float] | None:
        """Two quantiles of the lives; `None` while there are few."""
        table = self._table
        last = len(table) - 1
        if last + 1 < _SOME:
            return None
        return table[round(last * low)], table[round(last * high)]

    def _add_up(self) -> list[float]:
        table = self._table
        sums = self._sums = list(accumulate(reversed(table), initial=0.0))
        sums.reverse()
        n, total = len(table), sums[0]
        if n >= _FEW and total > 0:
            mean = total / n
            self._spread = max(sum(map(mul, table, table)) / n - mean * mean, 0.0) ** 0.5 / mean
        return sums
