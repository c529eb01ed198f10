"""What a histogram saw between two scrapes, and what its buckets can and cannot tell of it.

A bucket says that a value lies between two bounds, and no more. So a quantile is a span; a number inside it is a guess
(interpolation) and is called so; below the first bound and above the last one there is no number at all. Dashboards
print one all the same: vLLM's phase histograms begin at 0.3 s, and their p99 then reads 297 ms whatever happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from tailrace.engines.prometheus_text import Histogram, Labels, Scrape, put_together


class QuantileSpan(msgspec.Struct, frozen=True):
    """Where a quantile lies. `low` is exclusive, `high` inclusive, as buckets are."""

    q: float
    low: float
    high: float
    """Infinite in the open last bucket."""
    estimate: float | None = None
    """By linear interpolation inside the bucket: a guess, never evidence. `None` in the first and in the last one."""
    n: float = 0

    @property
    def exact(self) -> bool:
        """Whether the span is one number: a first bucket that ends at 0, of durations."""
        return self.low == self.high

    def text(self, scale: float = 1.0, unit: str = "s") -> str:
        """For people: `< 300 ms`, `> 10 s`, `400 to 600 ms`."""
        if self.exact:
            return f"{self.high * scale:g} {unit}"
        if self.high == math.inf:
            return f"> {self.low * scale:g} {unit}" if self.low else "no bucket tells"
        if not self.low:
            return f"< {self.high * scale:g} {unit}"
        return f"{self.low * scale:g} to {self.high * scale:g} {unit}"


class HistogramDelta(msgspec.Struct, frozen=True):
    """A histogram of what happened between two scrapes, all its label sets together."""

    seen: Histogram
    resets: int = 0
    """Label sets that began anew: the counts are lower bounds, and their shape is that of what is known."""

    @property
    def n(self) -> float:
        """How many observations."""
        return self.seen.count

    @property
    def mean(self) -> float | None:
        """From `_sum` and `_count`: right whatever the buckets are. `None` without observations."""
        mean = self.seen.mean
        return mean if mean is not None and math.isfinite(mean) else None

    def quantile(self, q: float) -> QuantileSpan | None:
        """The span of the q-quantile: the value that at least `q` of the observations do not exceed.

        `None` without observations. Observations are taken not to be negative.
        """
        n = self.seen.count
        if n <= 0:
            return None
        rank = max(1, math.ceil(q * n - 1e-9))
        low, below = 0.0, 0.0
        first = True
        for bound, count in zip(self.seen.bounds, self.seen.counts, strict=True):
            if count >= rank:
                if bound <= 0:
                    return QuantileSpan(q, bound, bound, bound, n)
                guess = None if first else min(low + (bound - low) * (rank - below) / (count - below), bound)
                return QuantileSpan(q, low, bound, guess, n)
            low, below = max(bound, 0.0), count
            first = first and bound <= 0
        return QuantileSpan(q, low, math.inf, None, n)

    def share_at_most(self, value: float) -> tuple[float, float] | None:
        """Between which shares of the observations lie at or below `value`; equal where a bucket ends there.

        `None` without observations.
        """
        n = self.seen.count
        if n <= 0:
            return None
        below = 0.0
        for bound, count in zip(self.seen.bounds, self.seen.counts, strict=True):
            if math.isclose(bound, value, rel_tol=1e-9):
                return min(count / n, 1.0), min(count / n, 1.0)
            if bound > value:
                return min(below / n, 1.0), min(count / n, 1.0)
            below = count
        return min(below / n, 1.0), 1.0


def bucket_around(bounds: Iterable[float], value: float) -> tuple[float, float] | None:
    """The bucket in whose inside `value` lies; `None` where a bucket ends there, so that nothing is lost."""
    low = 0.0
    for bound in bounds:
        if math.isclose(bound, value, rel_tol=1e-9):
            return None
        if bound > value:
            return low, bound
        low = max(bound, 0.0)
    return low, math.inf


def histogram_increase(old: Histogram | None, new: Histogram, *, anew: bool = False) -> tuple[Histogram, bool]:
    """One label set's increase, and whether it began anew: then it is what it shows now.

    It did where any of its numbers fell or its bounds changed: the whole label set restarts at once.
    """
    if old is None:
        return new, False
    fell = new.bounds != old.bounds or new.count < old.count
    fell = fell or any(now < then for then, now in zip(old.counts, new.counts, strict=True))
    if anew or fell:
        return new, True
    counts = [now - then for then, now in zip(old.counts, new.counts, strict=True)]
    return Histogram(new.bounds, counts, new.sum - old.sum, new.count - old.count), False


def histogram_delta(before: Scrape, after: Scrape, name: str, *, anew: bool = False) -> HistogramDelta | None:
    """What the histogram `name` saw between two scrapes; `None` where the later one does not have it.

    `anew`: the process was restarted in between.
    """
    new = after.histograms(name)
    if not new:
        return None
    old = before.histograms(name)
    parts: dict[Labels, Histogram] = {}
    resets = 0
    for labels, now in new.items():
        parts[labels], reset = histogram_increase(old.get(labels), now, anew=anew)
        resets += reset
    return HistogramDelta(put_together(parts.values()), resets)
