"""Pearson's correlation, and the straight line, of values of any size."""

from __future__ import annotations

import numpy as np

from tailrace.stats.quantiles import Floats

__all__ = ["correlation", "straight_line"]


def correlation(a: Floats, b: Floats) -> float:
    """-1 to 1; 0.0 where either side is constant, or has fewer than two values.

    Both are brought to at most 1 first, which changes no correlation: squares of readings near the end of what a float
    holds would be infinite.
    """
    if a.size < 2:
        return 0.0
    scaled = []
    for side in (a, b):
        most = float(np.abs(side).max())
        side = side / most if most > 0 else side  # noqa: PLW2901
        if float(np.ptp(side)) == 0.0:
            return 0.0
        scaled.append(side)
    return float(np.corrcoef(scaled[0], scaled[1])[0, 1])


def straight_line(x: Floats, y: Floats) -> tuple[float, float]:
    """(slope, share of the spread of `y` that the least-squares line explains). `x` must not stand still.

    `y` is brought to at most 1 first, as above.
    """
    scale = max(float(np.abs(y).max()), 1.0)
    values = y / scale
    slope, base = np.polyfit(x, values, 1)
    rest = values - (slope * x + base)
    spread = float(values.var())
    fit = 1.0 - float(rest.var()) / spread if spread > 0.0 else 0.0
    return float(slope) * scale, fit
