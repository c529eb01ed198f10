"""A line through points: how fast something grows, and whether it grows at all."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.student import t_quantile

__all__ = ["Trend", "trend"]

Floats = NDArray[np.float64]


class Trend(NamedTuple):
    """Least squares of y on x, with the interval of the slope (95 %, Student's t)."""

    slope: float
    low: float
    high: float
    first: float
    """The line at the first x."""
    last: float
    """The line at the last x."""
    n: int

    @property
    def grows(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0.0


def trend(x: Floats, y: Floats) -> Trend | None:
    """The line through the points whose both values are numbers; `None` for fewer than 3, or where x stands still."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    n = int(x.size)
    if n < 3:
        return None
    # The squares of readings near the end of what a float holds would be infinite.
    scale = max(float(np.abs(y).max()), 1.0)
    y = y / scale
    centred = x - x.mean()
    spread = float(centred @ centred)
    if spread <= 0.0:
        return None
    slope = float(centred @ (y - y.mean())) / spread
    rest = y - y.mean() - slope * centred
    error = math.sqrt(float(rest @ rest) / (n - 2) / spread)
    half = t_quantile(0.975, n - 2) * error
    middle = float(y.mean())
    return Trend(
        slope * scale,
        (slope - half) * scale,
        (slope + half) * scale,
        (middle + slope * float(x.min() - x.mean())) * scale,
        (middle + slope * float(x.max() - x.mean())) * scale,
        n,
    )
