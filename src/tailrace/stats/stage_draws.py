"""Resamples of what the requests near a quantile spent in each stage (`decomposition.conditional_stage_mean`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.blocks import Blocks, drawn
from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import Floats

__all__ = ["stage_draws"]

_ALL_ROWS: Final = 5_000
"""Up to here every row is ranked in each resample; above it, of a high quantile, only the top rows."""
_REACHES: Final = (1.5, 5.0)
"""The top rows are the upper 1.5 (1 - p), or 5 (1 - p) where a resample needs more: hardly any does."""
_AT_ONCE: Final = 50


def stage_draws(
    stages: Mapping[str, Floats],
    total: Floats,
    blocks: Blocks,
    p: float,
    half_width: float,
    rng: np.random.Generator,
    resamples: int = 200,
) -> dict[str, Floats]:
    """Stage -> its conditional mean in each resample, shape (resamples,).

    Sorted once: in a resample a row stands as often as its block was drawn, so ranks are sums of these counts.
    """
    order = stable_order(total)
    sizes = np.bincount(blocks.of, minlength=blocks.pieces).astype(np.float64)
    weights = drawn(blocks, rng, resamples).astype(np.float64)
    # A resample without a single row keeps the window as it is, instead of inventing one.
    weights[weights @ sizes <= 0] = 1.0
    first = _first_needed(blocks, order, weights, p, half_width)
    rows = order[first:]
    block = blocks.of[rows]
    below = np.bincount(blocks.of[order[:first]], minlength=blocks.pieces).astype(np.float64)
    matrix = np.column_stack([values[rows] for values in stages.values()]) if stages else np.empty((rows.size, 0))
    out = np.empty((resamples, matrix.shape[1]))
    for start in range(0, resamples, _AT_ONCE):
        some = weights[start : start + _AT_ONCE]
        times = some[:, block]
        until = np.cumsum(times, axis=1) + (some @ below)[:, None]
        n = until[:, -1]
        low = np.maximum(0.0, np.floor((p - half_width) * n + 1e-9))
        high = np.minimum(n, np.maximum(low + 1, np.floor((p + half_width) * n + 1e-9)))
        low = np.minimum(low, np.maximum(0.0, high - 1))
        ranks = np.minimum(until, high[:, None]) - np.maximum(until - times, low[:, None])
        np.maximum(ranks, 0.0, out=ranks)
        out[start : start + _AT_ONCE] = (ranks @ matrix) / (high - low)[:, None]
    return {name: out[:, place] for place, name in enumerate(stages)}


def _first_needed(
    blocks: Blocks, order: NDArray[np.int64], weights: NDArray[np.float64], p: float, half_width: float
) -> int:
    """The rank from which on rows can be near the quantile in any of the resamples."""
    n = int(order.size)
    if n <= _ALL_ROWS:
        return 0
    total = weights @ np.bincount(blocks.of, minlength=blocks.pieces)
    for reach in _REACHES:
        first = max(0, int((1.0 - reach * (1.0 - p) - half_width) * n))
        below = weights @ np.bincount(blocks.of[order[:first]], minlength=blocks.pieces)
        if (below <= (p - half_width) * total - 1.0).all():
            return first
    return 0
