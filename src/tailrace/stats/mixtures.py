"""Mix and within, with intervals: why a quantile or a mean moved between two windows, resampled by blocks of time.

The points are exact (`decomposition.mix_within`). For the resamples values are binned by their pooled rank, ten times
finer in the top 5 %: a resample then is a product of the blocks' counts, and all mixtures of shares and distributions
are sums over buckets.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.blocks import Blocks, drawn, interval, p_value
from tailrace.stats.decomposition import bucket_shares, mix_within
from tailrace.stats.quantiles import Floats, quantile

__all__ = ["BucketChange", "Part", "Side", "Split", "bucket_changes", "split_mean", "split_quantile"]

RESAMPLES: Final = 400
_BODY_BINS: Final = 384
_TAIL_BINS: Final = 640
_AT_ONCE: Final = 50
"""Resamples that are in memory together."""
FLOOR: Final = 1e-3
"""Values below this (1 us where the unit is ms) are equal to it: no ratio is taken of nothing."""


class Side(NamedTuple):
    """One window: its values, the bucket of each (0 .. k-1), and its blocks of time."""

    values: Floats
    bucket: NDArray[np.int64]
    blocks: Blocks


class Part(NamedTuple):
    """A part of a change with its 95 % interval, in units of the values."""

    value: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0.0 or self.high < 0.0


class Split(NamedTuple):
    """A change from A to B: `mix + within = b - a`."""

    a: float
    b: float
    mix: Part
    within: Part
    buckets: dict[int, Part]
    """Each bucket's part of *within*; they need not add up where the statistic is a quantile."""


class BucketChange(NamedTuple):
    """How one quantile of one bucket changed."""

    bucket: int
    p: float
    n_a: int
    n_b: int
    a: float
    b: float
    change: Part
    """q_B / q_A - 1."""
    p_value: float


def split_quantile(
    a: Side, b: Side, buckets: int, p: float, rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Split | None:
    """Shapley split of the p-quantile's change over the buckets that both windows have; `None` without one.

    mix = 1/2[(q(wB,FA) - q(wA,FA)) + (q(wB,FB) - q(wA,FB))], within likewise with F changed.
    """
    mine, theirs = _by_bucket(a, buckets), _by_bucket(b, buckets)
    exact = mix_within(mine, theirs, p)
    if exact is None:
        return None
    common = np.array([str(k) in mine and str(k) in theirs for k in range(buckets)])
    shares = bucket_shares(mine, theirs, p)
    levels = _levels(np.concatenate([a.values[common[a.bucket]], b.values[common[b.bucket]]]))
    counts = [_counted(side, common, levels, buckets) for side in (a, b)]
    centre = _quantile_draws(levels, [side.sum(axis=0, keepdims=True) for side in counts], p, common)
    parts = []
    weights = [drawn(side.blocks, rng, resamples) for side in (a, b)]
    for first in range(0, resamples, _AT_ONCE):
        rows = slice(first, first + _AT_ONCE)
        resampled = [
            (weight[rows] @ side.reshape(side.shape[0], -1)).reshape(-1, *side.shape[1:])
            for weight, side in zip(weights, counts, strict=True)
        ]
        parts.append(_quantile_draws(levels, resampled, p, common))
    mix, within, single = (np.concatenate([part[i] for part in parts]) for i in range(3))
    widen = max(a.blocks.widen, b.blocks.widen)
    return Split(
        exact.a,
        exact.b,
        Part(exact.mix, *interval(exact.mix, mix, widen, centre=float(centre[0][0]))),
        Part(exact.within, *interval(exact.within, within, widen, centre=float(centre[1][0]))),
        {
            k: Part(
                shares[str(k)],
                *interval(shares[str(k)], single[:, place], widen, centre=float(centre[2][0, place])),
            )
            for place, k in enumerate(np.flatnonzero(common).tolist())
        },
    )


def split_mean(a: Side, b: Side, buckets: int, rng: np.random.Generator, *, resamples: int = RESAMPLES) -> Split | None:
    """Split of the mean's change: mix = sum (w'_k - w_k) m_k, within = sum w'_k (m'_k - m_k), at the old means.

    Over the buckets that both windows have; `None` without one. The buckets' parts add up to *within*.
    """
    sums = [
        np.stack(
            [
                np.bincount(
                    side.blocks.of * buckets + side.bucket, weights=weight, minlength=side.blocks.pieces * buckets
                ).reshape(side.blocks.pieces, buckets)
                for weight in (None, side.values)
            ]
        )
        for side in (a, b)
    ]
    total = [one.sum(axis=1) for one in sums]
    common = (total[0][0] > 0) & (total[1][0] > 0)
    if not common.any():
        return None
    point = _mean_draws([one[:, None, common] for one in total])
    weights = [drawn(side.blocks, rng, resamples).astype(np.float64) for side in (a, b)]
    mix, within, single, _, _ = _mean_draws(
        [np.stack([weight @ part[:, common] for part in one]) for weight, one in zip(weights, sums, strict=True)]
    )
    widen = max(a.blocks.widen, b.blocks.widen)
    return Split(
        float(point[3][0]),
        float(point[4][0]),
        Part(float(point[0][0]), *interval(float(point[0][0]), mix, widen)),
        Part(float(point[1][0]), *interval(float(point[1][0]), within, widen)),
        {
            k: Part(float(point[2][0, place]), *interval(float(point[2][0, place]), single[:, place], widen))
            for place, k in enumerate(np.flatnonzero(common).tolist())
        },
    )


def bucket_changes(
    a: Side,
    b: Side,
    wanted: dict[int, tuple[float, ...]],
    rng: np.random.Generator,
    *,
    resamples: int = RESAMPLES,
) -> list[BucketChange]:
    """The change of some quantiles of some buckets (`wanted`: bucket -> quantiles), each with interval and p-value."""
    weights = [drawn(side.blocks, rng, resamples) for side in (a, b)]
    inflate = max(a.blocks.inflate, b.blocks.inflate)
    widen, blocks = max(a.blocks.widen, b.blocks.widen), min(a.blocks.pieces, b.blocks.pieces)
    places = [_rows(side.bucket) for side in (a, b)]
    out = []
    for bucket, ps in wanted.items():
        sides = []
        for side, rows, weight in zip((a, b), places, weights, strict=True):
            chosen = rows.get(bucket, np.empty(0, dtype=np.int64))
            values = side.values[chosen]
            sides.append((values, _own_draws(values, side.blocks.of[chosen], weight, ps)))
        (mine, old), (theirs, new) = sides
        if not mine.size or not theirs.size:
            continue
        for place, p in enumerate(ps):
            one, two = quantile(mine, p), quantile(theirs, p)
            estimate = float(np.log(max(two, FLOOR)) - np.log(max(one, FLOOR)))
            with np.errstate(invalid="ignore"):
                draws = np.log(np.maximum(new[0][:, place], FLOOR)) - np.log(np.maximum(old[0][:, place], FLOOR))
            centre = float(np.log(max(new[1][place], FLOOR)) - np.log(max(old[1][place], FLOOR)))
            low, high = interval(estimate, draws, widen, centre=centre)
            out.append(
                BucketChange(
                    bucket,
                    p,
                    int(mine.size),
                    int(theirs.size),
                    one,
                    two,
                    Part(float(np.expm1(estimate)), float(np.expm1(low)), float(np.expm1(high))),
                    p_value(estimate, draws, inflate=inflate, blocks=blocks),
                )
            )
    return out


# -- inside


def _rows(bucket: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    order = np.argsort(bucket, kind="stable")
    names, first = np.unique(bucket[order], return_index=True)
    return {int(name): rows for name, rows in zip(names, np.split(order, first[1:]), strict=True)}


def _by_bucket(side: Side, buckets: int) -> dict[str, Floats]:
    return {str(k): side.values[rows] for k, rows in _rows(side.bucket).items() if 0 <= k < buckets}


def _last_ranks(n: int) -> NDArray[np.int64]:
    """The last rank of each bin: every rank where there are few, else ten times finer in the top 5 %."""
    if n <= _BODY_BINS + _TAIL_BINS:
        return np.arange(n)
    knee = int(n * 0.95)
    body = np.linspace(0, knee, _BODY_BINS).astype(np.int64)
    return np.unique(np.concatenate([body, np.linspace(knee, n - 1, _TAIL_BINS).astype(np.int64)]))


def _levels(values: Floats) -> Floats:
    """The largest value of each bin, ascending, each once."""
    levels: Floats = np.unique(np.sort(values)[_last_ranks(int(values.size))])
    return levels


def _counted(side: Side, common: NDArray[np.bool_], levels: Floats, buckets: int) -> NDArray[np.float32]:
    """Counts by block, bucket and bin."""
    keep = common[side.bucket]
    place = np.minimum(np.searchsorted(levels, side.values[keep], side="left"), levels.size - 1)
    flat = (side.blocks.of[keep] * buckets + side.bucket[keep]) * levels.size + place
    counts = np.bincount(flat, minlength=side.blocks.pieces * buckets * levels.size)
    return counts.reshape(side.blocks.pieces, buckets, levels.size).astype(np.float32)


def _quantile_draws(
    levels: Floats, counts: list[NDArray[np.float32]], p: float, common: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """(mix, within, each common bucket's part of within) of each resample; NaN where a resample is empty."""
    shares, below = [], []
    for side in counts:
        within = np.cumsum(side[:, common], axis=2, dtype=np.float64)
        n = within[:, :, -1]
        with np.errstate(invalid="ignore", divide="ignore"):
            shares.append(n / n.sum(axis=1, keepdims=True))
            below.append(np.nan_to_num(within / n[:, :, None], nan=0.0))
    (wa, wb), (fa, fb) = shares, below

    def at(mixture: Floats) -> Floats:
        top = mixture[:, -1:]
        place = np.minimum((mixture < p * top - 1e-9).sum(axis=1), levels.size - 1)
        found: Floats = np.where(top[:, 0] > 0.0, levels[place], np.nan)
        return found

    def mixed(w: Floats, f: Floats) -> Floats:
        mixture: Floats = np.einsum("rk,rkb->rb", np.nan_to_num(w), f, optimize=True)
        return mixture

    aa, ba, ab, bb = mixed(wa, fa), mixed(wb, fa), mixed(wa, fb), mixed(wb, fb)
    qaa, qba, qab, qbb = at(aa), at(ba), at(ab), at(bb)
    single = np.empty((qaa.size, fa.shape[1]))
    for k in range(fa.shape[1]):
        moved = np.nan_to_num(wb[:, k : k + 1]) * (fb[:, k] - fa[:, k])
        single[:, k] = ((at(ba + moved) - qba) + (qbb - at(bb - moved))) / 2.0
    return ((qba - qaa) + (qbb - qab)) / 2.0, ((qab - qaa) + (qbb - qba)) / 2.0, single


def _mean_draws(sides: list[Floats]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """(mix, within, by bucket, mean of A, mean of B) from (counts, sums), each of shape (2, resamples, buckets)."""
    (na, sa), (nb, sb) = sides
    with np.errstate(invalid="ignore", divide="ignore"):
        wa, wb = na / na.sum(axis=1, keepdims=True), nb / nb.sum(axis=1, keepdims=True)
        # A bucket that a resample does not hold keeps the other window's mean: it says nothing of a change.
        ma, mb = sa / na, sb / nb
        ma, mb = np.where(na > 0, ma, mb), np.where(nb > 0, mb, ma)
    mix = ((wb - wa) * np.nan_to_num(ma)).sum(axis=1)
    single = wb * np.nan_to_num(mb - ma)
    return mix, single.sum(axis=1), single, (wa * np.nan_to_num(ma)).sum(axis=1), (wb * np.nan_to_num(mb)).sum(axis=1)


def _own_draws(
    values: Floats, block: NDArray[np.int64], weights: NDArray[np.float32], ps: tuple[float, ...]
) -> tuple[Floats, list[float]]:
    """(resamples of each quantile, shape (resamples, len(ps)); the same on the grid without resampling)."""
    if not values.size:
        return np.full((weights.shape[0], len(ps)), np.nan), [float("nan")] * len(ps)
    levels = _levels(values)
    place = np.searchsorted(levels, values, side="left")
    blocks = weights.shape[1]
    counts = np.bincount(block * levels.size + place, minlength=blocks * levels.size).reshape(blocks, levels.size)
    below = weights @ np.cumsum(counts, axis=1).astype(np.float32)
    full = np.cumsum(counts.sum(axis=0))
    total = below[:, -1:]
    draws = np.empty((weights.shape[0], len(ps)))
    grid = []
    for i, p in enumerate(ps):
        where = np.minimum((below < p * total - 1e-6).sum(axis=1), levels.size - 1)
        draws[:, i] = np.where(total[:, 0] > 0, levels[where], np.nan)
        grid.append(float(levels[min(int(np.searchsorted(full, p * full[-1] - 1e-6)), levels.size - 1)]))
    return draws, grid
