"""An exponential histogram: constant relative error, merged by adding counts.

Bin of `v > 0` at schema `s`: with gamma = 2^(2^-s), k = ceil(log2(v) * 2^s) is the bin (gamma^(k-1), gamma^k], and
gamma^k * 2/(gamma+1) the value given back, with worst relative error (gamma-1)/(gamma+1): 2.2 % at schema 4. It maps
1:1 to Prometheus' native histograms of the same schema. Objectives such as 80 ms are not bounds of a bin: count their
attainment separately, never from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Self

__all__ = ["ExponentialHistogram"]

_ROUNDING: Final = 1e-9
"""log2 of an exact bound may come out one ulp above its integer; within this it belongs to the lower bin."""


class ExponentialHistogram:
    """Counts by exponential bin. Units are the caller's; values below or at 0 are counted in `zero`."""

    __slots__ = ("_scale", "count", "counts", "maximum", "minimum", "schema", "total", "zero")

    def __init__(self, schema: int = 4) -> None:
        self.schema = schema
        self._scale = 2.0**schema
        self.counts: dict[int, int] = {}
        """Bin index -> count."""
        self.zero = 0
        """Values that were 0 or negative."""
        self.count = 0
        self.total = 0.0
        """Sum of the values, so that the mean is exact."""
        self.minimum = math.inf
        self.maximum = -math.inf

    @property
    def gamma(self) -> float:
        """Ratio of a bin's upper to its lower bound."""
        return float(2.0 ** (1.0 / self._scale))

    def index(self, value: float) -> int:
        """The bin of `value > 0`."""
        return math.ceil(math.log2(value) * self._scale - _ROUNDING)

    def bounds(self, index: int) -> tuple[float, float]:
        """(lower, upper] of a bin."""
        return 2.0 ** ((index - 1) / self._scale), 2.0 ** (index / self._scale)

    def representative(self, index: int) -> float:
        """The value that stands for a bin: equally far (relatively) from both bounds."""
        return self.bounds(index)[1] * 2.0 / (self.gamma + 1.0)

    def add(self, value: float, count: int = 1) -> None:
        """Count `value` `count` times. ValueError for NaN or infinity: those are no measurements."""
        if not math.isfinite(value):
            raise ValueError(f"a histogram holds finite values, not {value}")
        self.count += count
        self.total += value * count
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        if value <= 0.0:
            self.zero += count
            return
        index = self.index(value)
        self.counts[index] = self.counts.get(index, 0) + count

    def extend(self, values: Iterable[float]) -> None:
        """Add many values."""
        for value in values:
            self.add(value)

    def merge(self, other: Self) -> None:
        """Add another histogram's counts. ValueError for another schema."""
        if other.schema != self.schema:
            raise ValueError(f"cannot merge schema {other.schema} into schema {self.schema}")
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.zero += other.zero
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    @property
    def mean(self) -> float | None:
        """Exact mean; None without values."""
        return self.total / self.count if self.count else None

    def quantile(self, p: float) -> float | None:
        """The p-quantile (rank ceil(p * count)), within the schema's relative error; None without values.

        Clamped to the exact minimum and maximum, so p = 0 and p = 1 are exact.
        """
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a quantile is between 0 and 1, not {p}")
        if not self.count:
            return None
        rank = max(1, math.ceil(p * self.count - _ROUNDING))
        seen = self.zero
        if rank <= seen:
            return self.minimum if rank == 1 else min(0.0, self.maximum)
        for index in sorted(self.counts):
            seen += self.counts[index]
            if rank <= seen:
                return min(max(self.representative(index), self.minimum), self.maximum)
        return self.maximum
