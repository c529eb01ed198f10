"""Repeatability: what one request's spread is made of when it is asked again and again.

The same prompt at temperature 0, one at a time: whatever differs is the engine's (and the host's) own. The same prompt
N at a time: what is added comes of sharing, the scheduler's batching and queueing. With independent parts variances
add, so of the variance under N the share

    1 - Var(alone) / Var(under N)

is scheduling's. It says nothing where the spread under N is no larger. Its interval is a bootstrap over requests
(percentiles of 1,000 resamples of both phases); requests of one moment share a batch, so take it as the least width.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import completed, measured
from tailrace.stats.quantiles import supported
from tailrace.store.table import RecordTable

_METRICS: Final = ("ttft", "tpot", "chunk_gap_max", "e2e_last_token", "e2e")
_RESAMPLES: Final = 1000
_FEWEST: Final = 10
"""Values below which a variance is no estimate of one."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one phase (ms; the variance ms^2). Percentiles that n cannot support are `None`."""

    n: int
    mean: float | None = None
    sd: float | None = None
    variance: float | None = None
    p50: float | None = None
    p99: float | None = None


class RepeatedMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, alone and under load."""

    alone: Spread
    together: Spread
    scheduling_share: float | None = None
    """Of the variance under load, 0 to 1; `None` where the spread did not grow, or too few values were there."""
    scheduling_share_ci: list[float] | None = None
    """95 %, `[lo, hi]`, not below 0."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the answers were the same text."""

    n: int
    distinct_alone: int
    distinct_together: int
    distinct: int
    """Over both phases."""
    commonest: float
    """Share of all answers that are the commonest one."""

    @property
    def identical(self) -> bool:
        """Whether every answer was the same."""
        return self.distinct == 1


class Repeatability(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace bench --repeat` finds."""

    concurrency: int
    metrics: dict[str, RepeatedMetric]
    answers: Answers | None = None
    """`None`: no answer had a text."""


def repeatability(
    alone: RecordTable, together: RecordTable, *, concurrency: int, rng: np.random.Generator
) -> Repeatability:
    """Compare the two phases; only completed requests count."""
    alone, together = _done(alone), _done(together)
    metrics: dict[str, RepeatedMetric] = {}
    for name in _METRICS:
        one, many = _values(alone, name), _values(together, name)
        if not one.size and not many.size:
            continue
        share, interval = _share(one, many, rng)
        metrics[f"{name}_ms"] = RepeatedMetric(
            alone=_spread(one), together=_spread(many), scheduling_share=share, scheduling_share_ci=interval
        )
    return Repeatability(concurrency=concurrency, metrics=metrics, answers=_answers(alone, together))


def _done(table: RecordTable) -> RecordTable:
    table = measured(table)
    return table.where(completed(table))


def _values(table: RecordTable, name: str) -> NDArray[np.float64]:
    values = table.ms(name)
    out: NDArray[np.float64] = values[~np.isnan(values)]
    return out


def _spread(values: NDArray[np.float64]) -> Spread:
    n = int(values.size)
    if n < 2:
        return Spread(n=n, mean=float(values[0]) if n else None)
    variance = float(values.var(ddof=1))
    return Spread(
        n=n,
        mean=float(values.mean()),
        sd=variance**0.5,
        variance=variance,
        p50=float(np.quantile(values, 0.5)) if supported(0.5, n) else None,
        p99=float(np.quantile(values, 0.99)) if supported(0.99, n) else None,
    )


def _share(
    one: NDArray[np.float64], many: NDArray[np.float64], rng: np.random.Generator
) -> tuple[float | None, list[float] | None]:
    if min(one.size, many.size) < _FEWEST:
        return None, None
    under = float(many.var(ddof=1))
    if under <= 0:
        return None, None
    share = 1 - float(one.var(ddof=1)) / under
    if share <= 0:
        return None, None
    drawn = np.array([_resampled(one, many, rng) for _ in range(_RESAMPLES)])
    low, high = np.quantile(drawn, (0.025, 0.975))
    return share, [max(0.0, float(low)), max(0.0, float(high))]


def _resampled(one: NDArray[np.float64], many: NDArray[np.float64], rng: np.random.Generator) -> float:
    under = float(rng.choice(many, many.size).var(ddof=1))
    return 1 - float(rng.choice(one, one.size).var(ddof=1)) / under if under > 0 else 0.0


def _answers(alone: RecordTable, together: RecordTable) -> Answers | None:
    first = [text for text in alone.column("answer_hash").tolist() if text]
    second = [text for text in together.column("answer_hash").tolist() if text]
    both = first + second
    if not both:
        return None
    _, counts = np.unique(np.array(both, dtype=object).astype(str), return_counts=True)
    return Answers(
        n=len(both),
        distinct_alone=len(set(first)),
        distinct_together=len(set(second)),
        distinct=len(set(both)),
        commonest=float(counts.max()) / len(both),
    )
