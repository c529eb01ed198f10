"""Block bootstrap of the change of a quantile between two arms of a load test.

Requests of one burst share a queue, so resampling single requests makes intervals too narrow. Here an arm is cut
into cells of time; a resample draws blocks of neighbouring cells (circular, starting at any cell) until the arm's
length is reached. The statistic is log(q_B / q_A): its interval turns into percent without ever passing -100 %.

Two corrections keep short arms honest. The number of independent pieces is B = duration / block length; the
interval is widened about the estimate by t(B-1) / z * sqrt(B / (B-1)), the small-sample correction of a cluster
bootstrap (1.10 at B = 20, 1.44 at B = 6); an arm too short for blocks as long as the dependence is widened by the
square root of what they lack (at most 3 x). And when both arms replayed the same arrivals (common random numbers) the
same blocks are drawn in both, so that what the arrivals did to both arms cancels, and short blocks suffice.

Where an arm is several runs, the runs are the top level: each run has its own quantile, and the interval is never
narrower than Student's t over the runs says. Restarts differ from each other by more than the blocks of one run do
(Zhang et al., "Treadmill", ISCA 2016, call it hysteresis).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import Floats, quantile, weighted_quantile

__all__ = [
    "FEW_BLOCKS",
    "MIN_BLOCKS",
    "POWER_FACTOR",
    "Arm",
    "QuantileChange",
    "block_length",
    "compare_quantiles",
    "dependence_length",
]

MIN_BLOCKS: Final = 6
"""Blocks are never so long that an arm has fewer: below this even the t correction has little to correct."""
FEW_BLOCKS: Final = 20
"""With fewer blocks than this a result says that it rests on few independent pieces of time."""
POWER_FACTOR: Final = 2.80
"""z(0.975) + z(0.8): the effect that is found with 80 % power at 5 % is this many standard errors."""
FLOOR: Final = 1e-3
"""Values below this (1 us where the unit is ms) are equal to it: no ratio is taken of nothing."""
MIN_RUN_PAIRS: Final = 4
"""Fewer pairs of runs than this are not compared pairwise: t with two degrees of freedom is wider than it helps."""
_MAX_SHORTFALL: Final = 9.0
_CELLS_A_BLOCK: Final = 4
_MAX_BLOCKS: Final = 100
_BODY_BINS: Final = 384
_TAIL_BINS: Final = 640


class Arm(NamedTuple):
    """Values of one arm with the moment each belongs to (seconds since the arm's start, same length)."""

    values: Floats
    at_s: Floats
    weights: Floats | None = None
    """How much each value counts, 1 without it; used to give one arm the traffic mix of the other."""
    run: NDArray[np.int64] | None = None
    """Which of several runs each value is from, 0-based; their times follow each other."""


class QuantileChange(NamedTuple):
    """How a quantile changed from arm A to arm B."""

    p: float
    a: float
    b: float
    n_a: int
    n_b: int
    change: float
    """q_B / q_A - 1."""
    low: float
    high: float
    """95 % interval of `change`."""
    p_value: float
    """Two-sided, from the bootstrap's standard error and t(B-1)."""
    detectable: float
    """Smallest relative change found with 80 % power at 5 %: 2.80 standard errors."""
    blocks: int
    block_s: float
    paired: bool
    runs_a: int = 1
    runs_b: int = 1

    @property
    def bound(self) -> float:
        """The largest change that the interval allows, in either direction: no difference is larger than this."""
        return max(abs(self.low), abs(self.high))


def dependence_length(arm: Arm, p: float = 0.9, cell_s: float = 0.5) -> float:
    """How long the tail remembers (s): the first lag at which the exceedances of q_p no longer correlate.

    The series is the number of values above q_p in cells of `cell_s`; "no longer" is a correlation below
    max(0.1, 2 / sqrt(cells)). One cell when there is no correlation at all.
    """
    n = int(arm.values.size)
    if n < 20:
        return cell_s
    cells = np.floor((arm.at_s - arm.at_s.min()) / cell_s).astype(np.int64)
    count = int(cells.max()) + 1
    if count < 8:
        return cell_s
    series = np.bincount(cells[arm.values > quantile(arm.values, p)], minlength=count).astype(np.float64)
    series -= series.mean()
    power = float(series @ series)
    if power <= 0.0:
        return cell_s
    floor = max(0.1, 2.0 / math.sqrt(count))
    for lag in range(1, count // 2):
        if float(series[:-lag] @ series[lag:]) / power < floor:
            return lag * cell_s
    return count // 2 * cell_s


def block_length(a: Arm, b: Arm, residence_s: float) -> float:
    """4 x max(1 s, 2 x residence, dependence of either arm), seconds. `residence_s` is the p99 of the metric itself.

    Why four times: pairs of equal queues (600 pairs, utilisation 0.72, arms of 45 s, p95) were called different in
    30 % with blocks of one second, 15 % with the dependence itself, 10 % with twice and 5 % with four times that.
    """
    return 4.0 * max(1.0, 2.0 * residence_s, dependence_length(a), dependence_length(b))


def compare_quantiles(
    a: Arm,
    b: Arm,
    ps: Sequence[float],
    *,
    block_s: float,
    rng: np.random.Generator,
    paired: bool = False,
    resamples: int = 800,
) -> list[QuantileChange]:
    """The change of each quantile in `ps` with its interval. Both arms need at least one value (ValueError).

    `paired` is for arms that replayed the same arrivals. `block_s` is shortened where an arm has fewer than
    `MIN_BLOCKS` blocks of it, and lengthened where it has more than 100 (longer blocks are always valid).
    """
    if not a.values.size or not b.values.size:
        raise ValueError("both arms need values")
    spans = [float(arm.at_s.max() - arm.at_s.min()) for arm in (a, b)]
    span = max(spans) if paired else min(spans)
    length = min(max(block_s, span / _MAX_BLOCKS), span / MIN_BLOCKS) if span > 0 else block_s
    blocks = max(2, int(span / length)) if length > 0 else 2
    weights = _weights(spans[0] if not paired else span, length, rng, resamples)
    other = weights if paired else _weights(spans[1], length, rng, resamples)
    point_a, grid_a, draws_a = _resampled(a, ps, weights, a.at_s.min(), length)
    point_b, grid_b, draws_b = _resampled(b, ps, other, b.at_s.min(), length)
    # t instead of z, and the n-1 of a variance over `blocks` pieces.
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415  (scipy is loaded only where it is used)

    inflate = math.sqrt(blocks / (blocks - 1))
    if not paired:
        # Shorter blocks than the dependence asks for see only part of the variance; it grows with the block's length.
        inflate *= math.sqrt(min(max(block_s / max(length, 1e-9), 1.0), _MAX_SHORTFALL))
    widen = float(stdtrit(blocks - 1, 0.975)) / 1.959964 * inflate
    runs = [1 if arm.run is None else int(np.unique(arm.run).size) for arm in (a, b)]
    out = []
    for i, p in enumerate(ps):
        log_a, log_b = math.log(max(point_a[i], FLOOR)), math.log(max(point_b[i], FLOOR))
        estimate = log_b - log_a
        draws = np.log(np.maximum(draws_b[i], FLOOR)) - np.log(np.maximum(draws_a[i], FLOOR))
        # The resamples use a coarser quantile (a grid, no interpolation): remove what that alone does.
        centre = math.log(max(grid_b[i], FLOOR)) - math.log(max(grid_a[i], FLOOR))
        draws = draws - centre + estimate
        low, high = (float(x) for x in np.quantile(draws, (0.025, 0.975)))
        low, high = estimate - max(0.0, estimate - low) * widen, estimate + max(0.0, high - estimate) * widen
        error = float(np.std(draws)) * inflate
        p_value = 2.0 * float(stdtr(blocks - 1, -abs(estimate) / error)) if error > 0 else float(estimate == 0.0)
        detectable = POWER_FACTOR * error
        between = _between_runs(a, b, p, paired=paired)
        if between is not None:
            spread, freedom = between
            half = float(stdtrit(freedom, 0.975)) * spread
            low, high = min(low, estimate - half), max(high, estimate + half)
            if spread > 0:
                p_value = max(p_value, 2.0 * float(stdtr(freedom, -abs(estimate) / spread)))
            detectable = max(detectable, float(stdtrit(freedom, 0.975) + stdtrit(freedom, 0.8)) * spread)
        out.append(
            QuantileChange(
                p,
                float(point_a[i]),
                float(point_b[i]),
                int(a.values.size),
                int(b.values.size),
                math.expm1(estimate),
                math.expm1(low),
                math.expm1(high),
                p_value,
                math.expm1(min(detectable, 50.0)),
                blocks,
                length,
                paired,
                runs[0],
                runs[1],
            )
        )
    return out


def _between_runs(a: Arm, b: Arm, p: float, *, paired: bool) -> tuple[float, int] | None:
    """(standard error of log(q_B / q_A) over whole runs, its degrees of freedom); None where no arm has two runs.

    Runs that replayed the same arrivals pairwise are compared pairwise where that is the smaller error; otherwise the
    variances of the runs of each arm are pooled, and count for an arm of a single run as well.
    """
    logs = [_run_logs(arm, p) for arm in (a, b)]
    freedom = sum(one.size - 1 for one in logs)
    if freedom < 1:
        return None
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in logs)
    spread = math.sqrt(squares / freedom * (1.0 / logs[0].size + 1.0 / logs[1].size))
    if paired and logs[0].size == logs[1].size and logs[0].size >= MIN_RUN_PAIRS:
        apart = logs[1] - logs[0]
        pairwise = math.sqrt(float(apart.var(ddof=1)) / apart.size)
        if pairwise < spread:
            return pairwise, apart.size - 1
    return spread, freedom


def _run_logs(arm: Arm, p: float) -> Floats:
    if arm.run is None:
        return np.zeros(1)
    return np.array([math.log(max(quantile(arm.values[arm.run == i], p), FLOOR)) for i in np.unique(arm.run)])


def _weights(span: float, length: float, rng: np.random.Generator, resamples: int) -> NDArray[np.float32]:
    """How often each cell is drawn in each resample, (resamples, cells)."""
    cells = max(_CELLS_A_BLOCK, math.ceil(span / length * _CELLS_A_BLOCK)) if length > 0 else _CELLS_A_BLOCK
    draws = max(1, round(cells / _CELLS_A_BLOCK))
    starts = rng.integers(0, cells, size=(resamples, draws, 1))
    drawn = (starts + np.arange(_CELLS_A_BLOCK)) % cells
    flat = (np.arange(resamples).reshape(-1, 1, 1) * cells + drawn).ravel()
    return np.bincount(flat, minlength=resamples * cells).reshape(resamples, cells).astype(np.float32)


def _resampled(
    arm: Arm, ps: Sequence[float], weights: NDArray[np.float32], start: float, length: float
) -> tuple[list[float], list[float], list[Floats]]:
    """(exact quantiles, the same on the grid, their resamples) of one arm."""
    cells = weights.shape[1]
    cell = np.minimum(((arm.at_s - start) / max(length, 1e-12) * _CELLS_A_BLOCK).astype(np.int64), cells - 1)
    order = stable_order(arm.values)
    values, cell = arm.values[order], cell[order]
    weight = None if arm.weights is None else arm.weights[order]
    n = int(values.size)
    # Ranks are binned, ten times finer in the top 5 %: a resample then costs one row of a matrix product, however
    # many values there are, and with up to a thousand values nothing is lost.
    if n <= _BODY_BINS + _TAIL_BINS:
        last = np.arange(n)
    else:
        knee = int(n * 0.95)
        last = np.unique(
            np.concatenate(
                [
                    np.linspace(0, knee, _BODY_BINS).astype(np.int64),
                    np.linspace(knee, n - 1, _TAIL_BINS).astype(np.int64),
                ]
            )
        )
    levels = values[last]
    rank_bin = np.searchsorted(last, np.arange(n), side="left")
    per_cell = (
        np.bincount(cell * last.size + rank_bin, weights=weight, minlength=cells * last.size)
        .reshape(cells, last.size)
        .astype(np.float32)
    )
    # Summed up before the product, which is the smaller array; counts are exact in float32 up to 16 million.
    cumulative = weights @ np.cumsum(per_cell, axis=1, dtype=np.float64).astype(np.float32)
    full = np.cumsum(per_cell.sum(axis=0), dtype=np.float64)
    total = cumulative[:, -1:]
    if weight is None:
        exact = [float(np.quantile(values, p)) for p in ps]
    else:
        exact = [weighted_quantile(values, weight, p) for p in ps]
    grid, draws = [], []
    for p in ps:
        grid.append(float(levels[min(int(np.searchsorted(full, p * full[-1] - 1e-6)), last.size - 1)]))
        place = np.minimum((cumulative < p * total - 1e-6).sum(axis=1), last.size - 1)
        resampled = levels[place].astype(np.float64)
        # A resample that drew only empty cells says nothing: it keeps the estimate instead of inventing one.
        resampled[total[:, 0] <= 0] = grid[-1]
        draws.append(resampled)
    return exact, grid, draws
