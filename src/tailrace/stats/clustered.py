"""How far a difference of two arms can be trusted where observations depend on each other.

Batch means (Law and Carson, "A sequential procedure for determining the length of a steady-state simulation", Oper.
Res. 27, 1979): the influence of each batch of time on the estimate is summed, neighbours are merged to batches twice as
long again and again, and the largest variance found on any scale is believed. Batches longer than the dependence are
independent; shorter ones understate the variance, and the longer ones say so.
"""

from __future__ import annotations

from typing import Final

from tailrace.stats.quantiles import Floats

__all__ = ["SCALES", "batch_variance", "design_effect"]

SCALES: Final = (1, 2, 4, 8)
FEWEST: Final = 6
"""A scale with fewer batches than this is not asked: its variance would be a guess."""
_FEWEST_CORRELATED: Final = 24
"""Nor is the correlation of neighbours asked of fewer."""
_MOST_CORRELATED: Final = 0.95


def batch_variance(influence: Floats, scales: tuple[int, ...] = SCALES, fewest: int = FEWEST) -> float:
    """The variance of a sum of `influence` (one a batch, in order of time), as its least favourable scale says.

    Each scale sums neighbours and takes sum(g^2) * G / (G - 1) over its G groups. Where there are enough of them it is
    multiplied by (1 + r) / (1 - r) for the correlation r of neighbours (the long-run variance of a first-order
    autoregression), r being raised by its small-sample bias: (G r + 1) / (G - 4) (Kendall, "Note on bias in the
    estimation of autocorrelation", Biometrika 41, 1954). 0.0 for fewer than two batches.
    """
    n = influence.size
    if n < 2:
        return 0.0
    found = 0.0
    for scale in scales:
        groups = n // scale
        if groups < (2 if scale == 1 else fewest):
            break
        used = groups * scale
        summed = influence[:used].reshape(groups, scale).sum(axis=1) if scale > 1 else influence
        summed = summed - summed.sum() / groups
        squares = float(summed @ summed)
        variance = squares * groups / (groups - 1) * n / used
        if groups >= _FEWEST_CORRELATED and squares > 0.0:
            raw = float(summed[1:] @ summed[:-1]) / squares
            if raw * raw * groups > 1.0 and raw > 0.0:
                r = min(_MOST_CORRELATED, (groups * raw + 1.0) / (groups - 4.0))
                variance *= (1.0 + r) / (1.0 - r)
        found = max(found, variance)
    return found


def design_effect(clustered: float, independent: float) -> float:
    """By how much dependence inflates a variance; never below 1: less than independent noise is luck."""
    return max(1.0, clustered / independent) if independent > 0.0 else 1.0
