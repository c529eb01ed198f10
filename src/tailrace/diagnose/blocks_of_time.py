"""Whether one window shows more of something than another, by blocks of time."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window
from tailrace.stats.student import t_quantile

__all__ = ["BLOCKS", "ERRORS", "grown", "in_order"]

Floats = NDArray[np.float64]

BLOCKS: Final = 20
"""Of time: requests of one burst lose their time together, and single ones would count it several times."""
ERRORS: Final = 0.001
"""Chance of one rule to find more than before where nothing changed. Some eighty rules look at each window: together
fewer than one window in ten has one, and only a window that differs anyway is asked."""


def grown(before: Floats, now: Floats, errors: float = ERRORS) -> bool | None:
    """Whether `now` is above `before` beyond chance (one-sided, `errors`), both in order of time: by Welch's test of
    block means, or by their ranks (Mann and Whitney's test), which a few blocks that lost very much do not blunt. Each
    has half of the errors. `None` where there are too few for blocks.
    """
    if min(before.size, now.size) < 2 * BLOCKS:
        return None
    a, b = (np.array([part.mean() for part in np.array_split(side, BLOCKS)]) for side in (before, now))
    variances = [float(side.var(ddof=1)) / BLOCKS for side in (a, b)]
    difference = float(b.mean() - a.mean())
    if not any(variances):
        return difference > 0.0
    freedom = sum(variances) ** 2 / sum(value**2 / (BLOCKS - 1) for value in variances)
    by_mean = difference > t_quantile(1.0 - errors / 2, freedom) * float(np.sqrt(sum(variances)))
    return by_mean or _ranked(a, b) > NormalDist().inv_cdf(1.0 - errors / 2)


def _ranked(a: Floats, b: Floats) -> float:
    """Mann and Whitney's z: how often a block of `b` is above one of `a`, ties half, by the normal approximation."""
    above = float((b[:, None] > a[None, :]).sum()) + 0.5 * float((b[:, None] == a[None, :]).sum())
    n = a.size + b.size
    _, ties = np.unique(np.concatenate([a, b]), return_counts=True)
    spread = a.size * b.size / 12.0 * (n + 1.0 - float((ties**3 - ties).sum()) / (n * (n - 1.0)))
    return (above - a.size * b.size / 2.0) / max(float(np.sqrt(spread)), 1e-9)


def in_order(window: Window, values: Floats) -> Floats:
    """Values of the window's completed requests, in order of time."""
    ordered: Floats = values[np.argsort(window.start, kind="stable")]
    return ordered
