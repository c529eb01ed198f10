"""A quantile that n does not support, and a change of it that is beyond doubt all the same.

With 200 requests a p99 rests on two, and its interval is no interval. Yet where six requests took 5 s before and none
takes 2 s now, something changed. What is tested is how many requests lie above a bound between the two quantiles, which
needs no interval: Fisher's exact test of the two counts.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.measurement import Verdict
from tailrace.stats.bootstrap import FLOOR, Arm, QuantileChange
from tailrace.stats.clustered import batch_variance, design_effect
from tailrace.stats.quantiles import supported
from tailrace.stats.tests import fisher_p_value

__all__ = ["Exceedance", "exceedance"]

FACTOR: Final = 2.0
"""A quantile that n does not support must at least double or halve."""
LEVEL: Final = 0.05
_TAIL: Final = 0.99
_CELLS: Final = 24
_FEWEST: Final = 2


class Exceedance(NamedTuple):
    """Counts of requests above a bound, which differ."""

    verdict: Verdict
    p_value: float
    """Two-sided."""
    words: str


def exceedance(a: Arm, b: Arm, change: QuantileChange) -> Exceedance | None:
    """The change of an unsupported p99 where it is beyond doubt; None where it is not, or where n supports it.

    Two things together: the quantile at least doubled or halved, and the counts above the geometric mean of the two
    quantiles differ at 5 %, where those of one burst count as fewer. Weighted arms are not asked: counts of another mix
    differ by themselves.
    """
    if change.p < _TAIL or supported(change.p, min(change.n_a, change.n_b)) or b.weights is not None:
        return None
    low, high = sorted((max(change.a, FLOOR), max(change.b, FLOOR)))
    if high < FACTOR * low:
        return None
    bound = math.sqrt(low * high)
    above = [arm.values > bound for arm in (a, b)]
    counts = [int(np.count_nonzero(one)) for one in above]
    effect = max(_burstiness(arm, one) for arm, one in zip((a, b), above, strict=True))
    worth = [round(count / effect) for count in counts]
    p_value = fisher_p_value(worth[0], round(change.n_a / effect), worth[1], round(change.n_b / effect))
    if p_value >= LEVEL:
        return None
    verdict = Verdict.IMPROVED if change.b < change.a else Verdict.REGRESSED
    words = f"{counts[0]} requests above {bound:,.0f} ms before, {counts[1]} after (p = {p_value:.2g})"
    return Exceedance(verdict, p_value, words)


def _burstiness(arm: Arm, above: NDArray[np.bool_]) -> float:
    """By how much the exceedances' dependence inflates the variance of their count."""
    count, n = int(above.sum()), above.size
    span = float(arm.at_s.max() - arm.at_s.min())
    if count < _FEWEST or count == n or span <= 0.0:
        return 1.0
    cell = np.minimum(((arm.at_s - arm.at_s.min()) / span * _CELLS).astype(np.int64), _CELLS - 1)
    share = count / n
    influence = np.bincount(cell, weights=above - share, minlength=_CELLS).astype(np.float64)
    return design_effect(batch_variance(influence), n * share * (1.0 - share))
