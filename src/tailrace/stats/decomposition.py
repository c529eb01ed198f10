"""Why a quantile moved: the traffic's mix or the requests within a bucket; and which stage makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import Floats, weighted_quantile

__all__ = ["BUCKET_ROWS", "MixWithin", "StageShares", "bucket_shares", "conditional_stage_mean", "mix_within"]

BUCKET_ROWS = 30
"""Fewer rows than this in a bucket say little about its own quantile."""

Buckets = Mapping[str, Floats]


class MixWithin(NamedTuple):
    """A quantile's change from window A to B, split exactly: `mix + within = total`. Units of the values."""

    mix: float
    within: float
    total: float
    a: float
    b: float


def _mixture(weights: Mapping[str, float], buckets: Buckets, p: float) -> float:
    names = [name for name, weight in weights.items() if weight > 0.0 and len(buckets.get(name, ())) > 0]
    values = np.concatenate([np.asarray(buckets[name], dtype=np.float64) for name in names])
    each = np.concatenate([np.full(len(buckets[name]), weights[name] / len(buckets[name])) for name in names])
    return weighted_quantile(values, each, p)


def _shares(buckets: Buckets, names: list[str]) -> dict[str, float]:
    total = sum(len(buckets[name]) for name in names)
    return {name: len(buckets[name]) / total for name in names}


def mix_within(a: Buckets, b: Buckets, p: float) -> MixWithin | None:
    """Shapley split of q(B) - q(A) into a change of shares (mix) and of the distributions (within).

    With q(w, F) the weighted quantile of the mixture: mix = 1/2[(q(wB,FA)-q(wA,FA)) + (q(wB,FB)-q(wA,FB))], within
    likewise with F changed. Only buckets present in both windows take part: a vanished or new one is new traffic and
    nothing is extrapolated for it. None when no bucket is in both.
    """
    names = [name for name in a if len(a[name]) and len(b.get(name, ()))]
    if not names:
        return None
    share_a, share_b = _shares(a, names), _shares(b, names)
    aa, ba = _mixture(share_a, a, p), _mixture(share_b, a, p)
    ab, bb = _mixture(share_a, b, p), _mixture(share_b, b, p)
    return MixWithin(mix=((ba - aa) + (bb - ab)) / 2, within=((ab - aa) + (bb - ba)) / 2, total=bb - aa, a=aa, b=bb)


def bucket_shares(a: Buckets, b: Buckets, p: float) -> dict[str, float]:
    """Each bucket's part of *within*, at the mix of B: the bucket is swapped first and last, and the two averaged.

    The parts need not add up exactly: a quantile is not linear.
    """
    names = [name for name in a if len(a[name]) and len(b.get(name, ()))]
    if not names:
        return {}
    share = _shares(b, names)
    before, after = {name: a[name] for name in names}, {name: b[name] for name in names}
    none, every = _mixture(share, before, p), _mixture(share, after, p)
    return {
        name: (
            (_mixture(share, {**before, name: after[name]}, p) - none)
            + (every - _mixture(share, {**after, name: before[name]}, p))
        )
        / 2
        for name in names
    }


class StageShares(NamedTuple):
    """What the requests near a quantile of the total spent in each stage. Units of the values."""

    stages: dict[str, float]
    """Stage -> mean over the requests near the quantile; they add up to `total`."""
    total: float
    rows: int
    """How many requests the means rest on."""
    members: list[int]
    """Their row numbers, so that a reader can look at them."""


def conditional_stage_mean(
    stages: Mapping[str, Floats],
    total: Floats,
    p: float,
    half_width: float,
    *,
    order: NDArray[np.int64] | None = None,
) -> StageShares:
    """q_p(T) = sum over stages of E[S_i | T = q_p], estimated over the ranks [(p - h)n, (p + h)n) of the stable sort.

    Additive, unlike the p-quantile of each stage, whose maxima sit in different requests. `half_width` is h (0.0025
    at p99 with many rows); at least one row is always taken. `order` is the stable sort of `total`, where it is known.
    """
    n = int(total.size)
    if order is None:
        order = stable_order(total)
    low = max(0, int(np.floor((p - half_width) * n + 1e-9)))
    high = min(n, max(low + 1, int(np.floor((p + half_width) * n + 1e-9))))
    low = min(low, max(0, high - 1))
    rows = order[low:high]
    shares = {name: float(np.mean(values[rows])) if rows.size else 0.0 for name, values in stages.items()}
    return StageShares(
        shares, float(np.mean(total[rows])) if rows.size else 0.0, int(rows.size), [int(row) for row in rows]
    )
