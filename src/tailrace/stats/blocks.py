"""Blocks of time, drawn with replacement: one set of draws serves every statistic of a window.

Requests of one burst share a queue, so single requests are not resampled: blocks of time are. A statistic that is a
function of sums over blocks (counts in bins, totals of a stage) then costs one matrix product for all resamples.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.bootstrap import MIN_BLOCKS, Arm, dependence_length
from tailrace.stats.quantiles import Floats, quantile
from tailrace.stats.student import t_cdf, t_quantile

__all__ = ["MOST_BLOCKS", "Blocks", "blocks_of", "drawn", "interval", "p_value"]

MOST_BLOCKS: Final = 60
"""Longer blocks are always valid; more of them cost memory in every product."""
_SHORTFALL: Final = 3.0
_RESIDENCE: Final = 0.99

Draws = NDArray[np.float32]


class Blocks(NamedTuple):
    """A window cut into blocks of time."""

    of: NDArray[np.int64]
    """The block of each observation."""
    pieces: int
    length_s: float
    inflate: float
    """By how much a standard error over these blocks understates: sqrt(B / (B - 1)), and the square root of what the
    blocks lack to the length of the dependence (at most 3)."""

    @property
    def widen(self) -> float:
        """By how much an interval is widened about its estimate: `inflate` with Student's t for the normal."""
        return t_quantile(0.975, max(self.pieces - 1, 1)) / 1.959964 * self.inflate


def blocks_of(values: Floats, at_s: Floats) -> Blocks:
    """Blocks for observations `values` (ms) at the times `at_s` (s, same length, any origin).

    As long as four times max(1 s, twice the p99 of the values, the dependence of their tail), as `bootstrap` explains;
    never fewer than six blocks, nor more than `MOST_BLOCKS`. Without a span of time each value counts as independent:
    they are dealt out in turn.
    """
    n = int(values.size)
    span = float(at_s.max() - at_s.min()) if n else 0.0
    if n < 2 or span <= 0.0:
        count = max(2, min(n, MOST_BLOCKS))
        return Blocks(np.arange(n, dtype=np.int64) % count, count, 0.0, math.sqrt(count / (count - 1)))
    arm = Arm(values, at_s)
    wanted = 4.0 * max(1.0, 2.0 * quantile(values, _RESIDENCE) / 1e3, dependence_length(arm))
    length = min(max(wanted, span / MOST_BLOCKS), span / MIN_BLOCKS)
    count = max(2, int(span / length + 1e-9))
    of = np.minimum(((at_s - at_s.min()) / span * count).astype(np.int64), count - 1)
    lacking = min(math.sqrt(max(wanted / length, 1.0)), _SHORTFALL)
    return Blocks(of, count, length, math.sqrt(count / (count - 1)) * lacking)


def drawn(blocks: Blocks, rng: np.random.Generator, resamples: int) -> Draws:
    """How often each block is in each resample, shape (resamples, blocks)."""
    return rng.multinomial(blocks.pieces, np.full(blocks.pieces, 1.0 / blocks.pieces), size=resamples).astype(
        np.float32
    )


def interval(point: float, draws: Floats, widen: float, *, centre: float | None = None) -> tuple[float, float]:
    """95 % interval of a statistic from its resamples, widened about the estimate.

    `centre` is the statistic as the resamples compute it (on a grid) where that is not `point` exactly. NaN draws (an
    empty resample) are left out; without any draw the interval is (-inf, inf).
    """
    known = draws[np.isfinite(draws)]
    if not known.size:
        return -math.inf, math.inf
    low, high = (float(x) for x in np.quantile(known, (0.025, 0.975)))
    middle = point if centre is None else centre
    return point - max(0.0, middle - low) * widen, point + max(0.0, high - middle) * widen


def p_value(estimate: float, draws: Floats, *, inflate: float, blocks: int) -> float:
    """Two-sided p-value of "no change" from the resamples' standard error and t(blocks - 1); 1.0 without draws."""
    known = draws[np.isfinite(draws)]
    if known.size < 2:
        return 1.0
    error = float(np.std(known)) * inflate
    if error <= 0.0:
        return float(estimate == 0.0)
    return min(1.0, 2.0 * t_cdf(-abs(estimate) / error, max(blocks - 1, 1)))
