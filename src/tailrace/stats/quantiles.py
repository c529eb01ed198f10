"""Quantiles of a sample, their order-statistic intervals, and how many values a quantile needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.order import stable_order

__all__ = [
    "SUPPORT",
    "Floats",
    "binomial_quantile",
    "effective_interval",
    "median",
    "needed",
    "or_zero",
    "order_statistic_ranks",
    "quantile",
    "quantile_interval",
    "supported",
    "weighted_quantile",
    "wilson_interval",
]

Floats = NDArray[np.float64]

SUPPORT: Final = 5.0
"""A quantile p rests on n(1 - p) values above it; fewer than this many and it is not shown (p99: n >= 500)."""
_SLACK: Final = 1e-9


def quantile(values: Sequence[float] | NDArray[Any], p: float) -> float:
    """The p-quantile (p in 0..1) by linear interpolation between order statistics, to the bit what `np.quantile` gives.
    NaN for an empty sample, and where one of the values is.

    numpy looks for the least and the largest value as well, which takes two thirds of its time.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return math.nan
    place = (array.size - 1) * p
    rank = math.floor(place)
    parted = np.partition(array, rank)
    behind = parted[rank + 1 :]
    # NaN is sorted behind all numbers.
    if np.isnan(parted[rank]) or (behind.size and np.isnan(behind.max())):
        return math.nan
    low, share = float(parted[rank]), place - rank
    if not behind.size:
        return low
    high = float(behind.min())
    if low == high:
        return low
    return high - (high - low) * (1.0 - share) if share >= 0.5 else low + (high - low) * share


def median(values: NDArray[Any]) -> float:
    """The median of a sample, to the bit what `np.median` gives, in a third of its time. NaN as of `quantile`."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return math.nan
    middle = array.size // 2
    parted = np.partition(array, middle)
    if np.isnan(parted[middle:].max()):
        return math.nan
    high = float(parted[middle])
    return high if array.size % 2 else (float(parted[:middle].max()) + high) / 2.0


def or_zero(values: NDArray[Any]) -> Floats:
    """The values, 0 where one is absent (NaN)."""
    return np.where(np.isnan(values), 0.0, values)


def supported(p: float, n: int) -> bool:
    """Whether n values support the p-quantile: n(1 - p) >= 5. One rule everywhere."""
    return n * (1.0 - p) >= SUPPORT - _SLACK


def needed(p: float) -> int:
    """The smallest n that supports the p-quantile."""
    return math.ceil(SUPPORT / (1.0 - p) - 1e-6)


_TIE: Final = 1e-12
"""The distribution function is exact to about this: P(Binomial(7, 0.5) <= 3) comes out as 0.4999999999999999."""


def binomial_quantile(q: float, n: int, p: float) -> int:
    """Smallest k with P(Binomial(n, p) <= k) >= q (what `scipy.stats.binom.ppf` gives, without loading scipy).

    The masses of neighbours have a simple ratio, P(k+1) / P(k) = (n - k) / (k + 1) * p / (1 - p); all that lies within
    twelve standard deviations of the mean is summed up from it. What lies outside is below `_TIE` by far.
    """
    least = q - _TIE
    if least <= 0.0 or n <= 0 or p <= 0.0:
        return 0
    if p >= 1.0:
        return n
    reach = 12.0 * math.sqrt(n * p * (1.0 - p)) + 60.0
    low, high = max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach))
    k = np.arange(low, high, dtype=np.float64)
    logs = np.concatenate(([0.0], np.cumsum(np.log((n - k) / (k + 1.0)) + math.log(p / (1.0 - p)))))
    masses = np.exp(logs - logs.max())
    below = np.cumsum(masses) / masses.sum()
    return min(n, low + int(np.searchsorted(below, least)))


def order_statistic_ranks(n: int, p: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """1-based ranks (l, u) whose order statistics enclose the p-quantile with at least `confidence`.

    l = binom.ppf(a/2, n, p), u = binom.ppf(1 - a/2, n, p) + 1. `None` where the bound lies outside the sample: it is
    unbounded, never the extreme value.
    """
    if n <= 0:
        return None, None
    alpha = 1.0 - confidence
    low = binomial_quantile(alpha / 2, n, p)
    high = binomial_quantile(1.0 - alpha / 2, n, p) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def quantile_interval(
    values: Sequence[float] | NDArray[Any], p: float, confidence: float = 0.95
) -> tuple[float | None, float | None]:
    """Order-statistic interval of the p-quantile of one sample; a `None` bound is unbounded.

    Assumes independent values; for two arms of a load test use `bootstrap.compare_quantiles`, which does not.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    low, high = order_statistic_ranks(int(ordered.size), p, confidence)
    return (
        None if low is None else float(ordered[low - 1]),
        None if high is None else float(ordered[high - 1]),
    )


def effective_interval(
    ordered: NDArray[Any], p: float, effective: float, confidence: float = 0.95
) -> tuple[float | None, float | None]:
    """Order-statistic interval of the p-quantile of `ordered` (ascending), as if it held `effective` values.

    For a sample whose values depend on each other: the exact binomial interval at the effective sample size (Korn and
    Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated from
    survey data", Survey Methodology 24, 1998), read off the sample's own quantiles. With `effective` = n it is
    `quantile_interval`. A `None` bound is unbounded.
    """
    n, worth = int(ordered.size), math.floor(effective)
    if n < 2 or worth < 2:
        return None, None
    low, high = order_statistic_ranks(min(worth, n), p, confidence)
    stretch = (n - 1) / (min(worth, n) - 1)
    return (
        None if low is None else float(ordered[math.floor((low - 1) * stretch + _SLACK)]),
        None if high is None else float(ordered[min(n - 1, math.ceil((high - 1) * stretch - _SLACK))]),
    )


def wilson_interval(hits: int, n: int, z: float = 1.959964) -> tuple[float, float] | None:
    """Wilson's score interval of a proportion (Wilson, JASA 22, 1927); None for n = 0.

    It stays inside 0..1 and is not empty at 0 or n hits, where the textbook interval is.
    """
    if n <= 0:
        return None
    share, square = hits / n, z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    # At 0 and at n hits the bound is exactly 0 or 1; rounding must not move it.
    return (0.0 if not hits else max(0.0, centre - half), 1.0 if hits == n else min(1.0, centre + half))


def weighted_quantile(values: NDArray[Any], weights: NDArray[Any], p: float) -> float:
    """Smallest value whose cumulative weight reaches p of the total (slack 1e-12 of the total). NaN if empty."""
    values = np.asarray(values, dtype=np.float64)
    weights = np.asarray(weights, dtype=np.float64)
    if not values.size:
        return math.nan
    order = stable_order(values)
    cumulative = np.cumsum(weights[order])
    total = float(cumulative[-1])
    place = int(np.searchsorted(cumulative, p * total - 1e-12 * max(total, 1.0), side="left"))
    return float(values[order[min(place, values.size - 1)]])
