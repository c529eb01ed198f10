"""One metric of a run as a summary: percentiles that its n supports, their intervals, and what failures do to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.measurement import MetricSummary, RateSummary
from tailrace.stats.clustered import batch_variance
from tailrace.stats.quantiles import effective_interval, order_statistic_ranks, supported

__all__ = [
    "LOW_QUANTILES",
    "QUANTILES",
    "Pool",
    "adjusted",
    "effective_sizes",
    "pooled",
    "summarise_pool",
    "summarise_rates",
    "summarise_values",
]

Floats = NDArray[np.float64]

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LOW_QUANTILES: Final = {"p1": 0.01, "p5": 0.05, "p10": 0.1, "p50": 0.5}
_CELLS: Final = 256
"""Time is cut into so many cells when the dependence of pooled values is measured; scales of up to 8 of them."""
_Z: Final = 1.959964
_ABSENT: Final = "no completed request has it"


class Pool(NamedTuple):
    """Values of which many belong to one request (chunk gaps), ascending, with the request and the moment of each.

    Made by `pooled`. Millions of them are usual: a part of a pool is in order as well, so that they are sorted once.
    """

    values: Floats
    row: NDArray[np.int64]
    at_s: Floats
    """On the run's clock: what holds up one stream often holds up those beside it."""

    def of(self, keep: NDArray[np.bool_]) -> Pool:
        """The values of the requests that `keep` (one flag a row) selects."""
        if keep.all():
            return self
        inside = keep[self.row]
        return Pool(self.values[inside], self.row[inside], self.at_s[inside])


def pooled(values: Floats, row: NDArray[np.int64], at_s: Floats) -> Pool:
    """A pool of values in any order."""
    order = np.argsort(values, kind="stable")
    return Pool(values[order], row[order], at_s[order])


def summarise_values(values: Floats, reason: str = "", *, failed: int | None = None) -> MetricSummary:
    """Summarise a metric with one value a request. NaN is "not seen" and is left out.

    `reason` says why there may be nothing. With `failed`, so many more requests should have had a value: the adjusted
    percentiles count them as slower than everything.
    """
    ordered = np.sort(values[~np.isnan(values)])
    n = int(ordered.size)
    worst = {} if failed is None else adjusted(ordered, failed)
    if not n:
        return MetricSummary(n=0, reason=reason or _ABSENT, failed=failed or 0, adjusted=worst)
    shown = {name: p for name, p in QUANTILES.items() if supported(p, n)}
    return _summary(
        ordered,
        {name: _at(ordered, p) for name, p in shown.items()},
        ci={name: _interval(ordered, p) for name, p in shown.items()},
        method="order_statistics",
        p99_ci=_interval(ordered, 0.99) if n > 1 else None,
        failed=failed or 0,
        worst=worst,
    )


def summarise_pool(pool: Pool, reason: str = "", *, failed: int = 0) -> MetricSummary:
    """Summarise pooled values. Their intervals are those of as many independent values as they are worth.

    Refused is a percentile by the number of values, unbounded an end by what they are worth: ten thousand gaps of
    five requests have a p99, but nobody can say how high it may be.
    """
    ordered = pool.values
    n = int(ordered.size)
    if not n:
        return MetricSummary(n=0, reason=reason or _ABSENT, failed=failed)
    at = {name: _at(ordered, p) for name, p in QUANTILES.items() if supported(p, n)}
    worth = effective_sizes(pool, list(at.values()))
    ci = {name: list(effective_interval(ordered, QUANTILES[name], size)) for name, size in zip(at, worth, strict=True)}
    return _summary(ordered, at, ci=ci, method="effective_sample", p99_ci=None, failed=failed, worst={})


def effective_sizes(pool: Pool, levels: Sequence[float]) -> list[float]:
    """How many independent values tell as much about each quantile as the pooled ones do; `levels` are the quantiles.

    n over the design effect of "is above the value": its variance as sums over requests, and over stretches of time
    (whichever is larger), against that of independent values; reduced by (z / t)^2 for the number of requests, as few
    clusters know their own variance badly.
    """
    n = int(pool.values.size)
    held = np.bincount(pool.row)
    clusters = int(np.count_nonzero(held))
    if clusters < 2:
        return [float(clusters)] * len(levels)
    span = float(pool.at_s.max() - pool.at_s.min())
    cell = np.zeros(0, dtype=np.int64)
    if span > 0.0:
        cell = np.minimum((pool.at_s - pool.at_s.min()) / span * _CELLS, _CELLS - 1).astype(np.int64)
    in_cell = np.bincount(cell, minlength=_CELLS)
    from scipy.special import stdtrit  # noqa: PLC0415  (scipy is loaded only where it is used)

    few = (_Z / float(stdtrit(clusters - 1, 0.975))) ** 2

    def effect(first: int) -> float:
        """The design effect of being among the values from place `first` on (ascending: those above a level)."""
        share = (n - first) / n
        if share in (0.0, 1.0):
            return 1.0
        by_request = np.bincount(pool.row[first:], minlength=held.size) - share * held
        variance = float(by_request @ by_request) * clusters / (clusters - 1)
        if cell.size:
            by_time = np.bincount(cell[first:], minlength=_CELLS) - share * in_cell
            variance = max(variance, batch_variance(by_time))
        return max(1.0, variance / (n * share * (1.0 - share)))

    out = []
    for value in levels:
        # Many values may be equal to the level: whether they count as above it must not decide.
        places = {int(np.searchsorted(pool.values, value, side=side)) for side in ("left", "right")}
        out.append(n / max(map(effect, places)) * few)
    return out


def summarise_rates(values: Floats, reason: str = "") -> RateSummary:
    """Summarise a rate of each request: low is bad, so the percentiles are the low ones."""
    ordered = np.sort(values[~np.isnan(values)])
    n = int(ordered.size)
    if not n:
        return RateSummary(n=0, reason=reason or _ABSENT)
    shown = {name: p for name, p in LOW_QUANTILES.items() if supported(1.0 - p, n)}
    at = {name: _at(ordered, p) for name, p in shown.items()}
    return RateSummary(
        n=n,
        mean=float(ordered.mean()),
        min=float(ordered[0]),
        p1=at.get("p1"),
        p5=at.get("p5"),
        p10=at.get("p10"),
        p50=at.get("p50"),
        max=float(ordered[-1]),
        ci={name: _interval(ordered, p) for name, p in shown.items()},
    )


def adjusted(ordered: Floats, failed: int) -> dict[str, float | None]:
    """Percentiles of `ordered` (ascending) and `failed` infinite values more; `None` where one is infinite.

    Linear interpolation as in `quantiles.quantile`; one whose upper neighbour is infinite is infinite. Supported by
    the number of all of them.
    """
    n = int(ordered.size) + failed
    out: dict[str, float | None] = {}
    for name, p in QUANTILES.items():
        if not supported(p, n):
            continue
        place = p * (n - 1)
        upper = math.ceil(place - 1e-9)
        out[name] = _between(ordered, place) if upper < ordered.size else None
    return out


def _summary(
    ordered: Floats,
    at: dict[str, float],
    *,
    ci: dict[str, list[float | None]],
    method: str,
    p99_ci: list[float | None] | None,
    failed: int,
    worst: dict[str, float | None],
) -> MetricSummary:
    return MetricSummary(
        n=int(ordered.size),
        mean=float(ordered.mean()),
        min=float(ordered[0]),
        max=float(ordered[-1]),
        p50=at.get("p50"),
        p90=at.get("p90"),
        p95=at.get("p95"),
        p99=at.get("p99"),
        p999=at.get("p999"),
        p99_ci=p99_ci,
        ci=ci,
        ci_method=method if ci else "",
        failed=failed,
        adjusted=worst,
    )


def _at(ordered: Floats, p: float) -> float:
    return _between(ordered, p * (ordered.size - 1))


def _between(ordered: Floats, place: float) -> float:
    """The value at a fractional place of a sorted sample."""
    low = math.floor(place + 1e-9)
    part = max(0.0, place - low)
    below = float(ordered[low])
    return below if part < 1e-9 else below + (float(ordered[low + 1]) - below) * part


def _interval(ordered: Floats, p: float) -> list[float | None]:
    low, high = order_statistic_ranks(int(ordered.size), p)
    return [None if low is None else float(ordered[low - 1]), None if high is None else float(ordered[high - 1])]
