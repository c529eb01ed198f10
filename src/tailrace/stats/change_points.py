"""Where a series of levels changed: optimal partition into segments of constant level.

The series is divided by s = median(|differences|) / 0.6745 / sqrt(2), which a few jumps do not move; single values
farther than `OUTLIER` * s from the median of their neighbourhood are drawn in to that distance; a segment costs the sum
of its squared deviations; each change costs `PENALTY_FACTOR` * ln n, and no segment is shorter than `MIN_SEGMENT`.
Solved exactly (Jackson et al., "An algorithm for optimal partitioning of data on an interval", IEEE Signal Processing
Letters 12, 2005), in O(n^2) of vectorised work.

Measured on normal noise of 12 %, 400 series without a change and 200 with one in the middle: false alarms in 3.8 % of
the series of 20 values, 0.8 % of 40, none of 100 and 288; a change of +15 % is found in 24, 40, 80 and 98 %, one of
+30 % in 81, 96, 99 and 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_SEGMENT", "MIN_VALUES", "change_points", "drawn_in", "noise"]

MIN_SEGMENT: Final = 5
"""Values on each side of a change: fewer are outliers, not a level."""
MIN_VALUES: Final = 20
"""A shorter series says too little about its own noise: it has no change points here."""
PENALTY_FACTOR: Final = 4.0
"""With 3 a series of 20 values without a change is called changed in 7 %."""
OUTLIER: Final = 4.0
_NEIGHBOURS: Final = 5
_NORMAL_MAD: Final = 0.6745
"""Median of |z| of a standard normal."""


def noise(values: Sequence[float] | NDArray[Any]) -> float:
    """Standard deviation of the noise around the level, from the differences of neighbours (0.0 for fewer than 2)."""
    series = np.asarray(values, dtype=np.float64)
    if series.size < 2:
        return 0.0
    return float(np.median(np.abs(np.diff(series)))) / _NORMAL_MAD / math.sqrt(2.0)


def drawn_in(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """`scaled` (noise 1) with each value at most `OUTLIER` away from the median of the five around it.

    One run on a bad day is an outlier, however bad; from three of five on it is a level.
    """
    padded = np.pad(scaled, _NEIGHBOURS // 2, mode="edge")
    level = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS), axis=1)
    return np.clip(scaled, level - OUTLIER, level + OUTLIER)


def change_points(
    values: Sequence[float] | NDArray[Any], *, min_segment: int = MIN_SEGMENT, least_noise: float = 0.0
) -> list[int]:
    """Indices at which a new level begins, ascending; empty where there is one level (or fewer than 20 values).

    Give logarithms of a quantity whose noise is relative. Values must be finite (ValueError). `least_noise` is for a
    series whose noise is known better than its neighbours show it: shares of few, most of them 0.
    """
    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError("a series with gaps has no change points: leave the missing values out")
    n = int(series.size)
    if n < max(MIN_VALUES, 2 * min_segment):
        return []
    scale = max(noise(series), least_noise)
    if scale <= 0.0:
        # More than half of the neighbours are equal: whatever differs is a change, if it lasts.
        spread = float(np.abs(np.diff(series)).max())
        if spread == 0.0:
            return []
        scale = spread / 1e3
    y = drawn_in(series / scale)
    y -= y.mean()
    sums, squares = np.concatenate([[0.0], np.cumsum(y)]), np.concatenate([[0.0], np.cumsum(y * y)])
    penalty = PENALTY_FACTOR * math.log(n)
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(n + 1, dtype=np.int64)
    for end in range(min_segment, n + 1):
        starts = np.arange(0, end - min_segment + 1)
        length = end - starts
        cost = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        total = best[starts] + cost + penalty
        place = int(np.argmin(total))
        best[end], last[end] = total[place], starts[place]
    out: list[int] = []
    end = n
    while last[end] > 0:
        end = int(last[end])
        out.append(end)
    return out[::-1]
