"""Spearman's rank correlation, with ties at their mean rank."""

from __future__ import annotations

import numpy as np

from tailrace.stats.quantiles import Floats

__all__ = ["spearman"]


def spearman(a: Floats, b: Floats) -> float:
    """Correlation of the ranks, -1 to 1; 0.0 where either side is constant or has fewer than three values."""
    if a.size < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    upper = np.cumsum(counts)
    ranks: Floats = (upper - (counts - 1) / 2)[place]
    return ranks
