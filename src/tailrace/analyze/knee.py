"""The knee of a throughput-latency curve: where more load begins to cost latency.

Two lines that meet are fitted to the logarithm of the latency over the offered load (least squares, every place of the
joint tried). The knee is believed when the two lines fit better than one by the F test (two more parameters, 1 %) and
the second one is steeper. Its interval is all joints whose residual is within the 95 % bound of the profile: SSE(k) <=
SSE_min (1 + F(1, n - 4) / (n - 4)). It says so when there is none, or when it lies at the edge of what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.sweep import SweepPoint

__all__ = ["FEWEST", "Knee", "find_knee", "knee_of"]

Floats = NDArray[np.float64]

FEWEST: Final = 6
"""Points below which two lines fit anything."""
_GRID: Final = 400
_BETTER_P: Final = 0.99
_PROFILE_P: Final = 0.95


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where the curve bends; `at` is `None` where it does not, and `why` says what is known instead."""

    at: float | None = None
    low: float | None = None
    high: float | None = None
    metric: str = ""
    why: str = ""


def knee_of(points: Sequence[SweepPoint], metric: str = "ttft_ms", quantile: str = "p95") -> Knee:
    """The knee of a sweep: of `quantile` of `metric` where enough points have it, else of the median."""
    for name in (quantile, "p50"):
        found = [
            (point.value, getattr(known, name)) for point in points if (known := point.latency(metric)) is not None
        ]
        values = [(x, y) for x, y in found if y is not None and y > 0]
        if len(values) >= FEWEST or name == "p50":
            break
    x, y = np.array([one[0] for one in values]), np.array([one[1] for one in values])
    return msgspec.structs.replace(find_knee(x, y), metric=f"{metric.removesuffix('_ms')}_{name}")


def find_knee(x: Floats, y: Floats) -> Knee:
    """The knee of positive latencies `y` over loads `x` (one value or more a load, in any order)."""
    n = int(x.size)
    if len(np.unique(x)) < FEWEST:
        return Knee(
            why=f"no knee: {len(np.unique(x))} loads have a latency to draw, {FEWEST} are the fewest that can show one"
        )
    from scipy.special import fdtri  # noqa: PLC0415  (scipy is loaded only where it is used)

    order = np.argsort(x, kind="stable")
    x, log_y = x[order], np.log(y[order])
    inner = np.unique(x)[1:-1]
    joints = np.linspace(inner[0], inner[-1], _GRID)
    fits = [_two_lines(x, log_y, float(joint)) for joint in joints]
    residuals = np.array([fit[0] for fit in fits])
    # Measured latencies repeat to a fraction of a percent at best; a fit that is closer than that is luck.
    floor = n * 1e-4**2
    best = int(residuals.argmin())
    smallest = max(float(residuals[best]), floor)
    one_line = float(_residual(np.column_stack([np.ones(n), x]), log_y)[0])
    steeper = fits[best][1] > 0
    gain = (one_line - smallest) / 2 / (smallest / (n - 4))
    if not steeper or gain < float(fdtri(2, n - 4, _BETTER_P)):
        return Knee(why="no knee within the range: one line fits as well as two")
    bound = smallest * (1 + float(fdtri(1, n - 4, _PROFILE_P)) / (n - 4))
    inside = joints[residuals <= bound]
    low, high = float(inside.min()), float(inside.max())
    at = float(joints[best])
    edge = " It lies at the edge of the range: measure further." if math.isclose(at, inner[-1]) else ""
    return Knee(at=at, low=low, high=high, why=f"beyond it the latency grows faster.{edge}")


def _two_lines(x: Floats, y: Floats, joint: float) -> tuple[float, float]:
    """`(residual, change of slope at the joint)`."""
    matrix = np.column_stack([np.ones(x.size), x, np.clip(x - joint, 0, None)])
    residual, solution = _residual(matrix, y)
    return residual, float(solution[2])


def _residual(matrix: Floats, y: Floats) -> tuple[float, Floats]:
    solution: Floats = np.linalg.lstsq(matrix, y, rcond=None)[0].astype(np.float64)
    rest = y - matrix @ solution
    return float(rest @ rest), solution
