"""Whether a load was more than the server could do: its queue grows for as long as the load lasts.

A steady queue, however long, is no saturation. Two lines are fitted against time, over the part of the run in which
requests were sent, its first fifth left out: the requests in flight, and the time to the first token. A line counts
when its slope is beyond the 99 % bound of Student's t (its error widened for correlated neighbours as an AR(1) asks:
times sqrt((1 + r) / (1 - r))) and large enough to matter: at least 5 % of the offered load stays undone.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import measured
from tailrace.analyze.timebase import starts_ns
from tailrace.store.table import RecordTable

__all__ = ["Saturation", "growing", "saturation"]

Floats = NDArray[np.float64]

BLOCKS: Final = 20
FEWEST: Final = 40
"""Requests below which nothing is said."""
_LEFT_OUT: Final = 0.2
_MATTERS: Final = 0.05
_P: Final = 0.99


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `why` is empty where the load was not too much, or too little was seen to say so."""

    why: str = ""
    slope: float = 0.0
    """Requests in flight that a second adds."""
    t: float = 0.0

    @property
    def saturated(self) -> bool:
        """Whether the queue grew."""
        return bool(self.why)


def saturation(table: RecordTable) -> Saturation:
    """Judge the measured part of an open-loop run."""
    table = measured(table)
    if len(table) < FEWEST:
        return Saturation()
    begin = starts_ns(table).astype(np.float64) / 1e9
    end = begin + np.nan_to_num(table.column("e2e_ns").astype(np.float64)) / 1e9
    begin = begin - np.nan_to_num(table.column("intended_to_sent_ns").astype(np.float64)) / 1e9
    first, last = float(begin.min()), float(begin.max())
    if last <= first:
        return Saturation()
    edges = np.linspace(first + _LEFT_OUT * (last - first), last, BLOCKS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    # Mean in flight of a block: the request-seconds that lie in it, by its length.
    overlap = np.minimum(end[:, None], edges[1:]) - np.maximum(begin[:, None], edges[:-1])
    flying = np.clip(overlap, 0, None).sum(axis=0) / np.diff(edges)
    offered = len(table) / (last - first)
    slope, t = growing(middle, flying)
    if t and slope >= _MATTERS * offered:
        return Saturation(
            why=f"the queue grew by {slope:.2g} requests a second, {slope / offered:.0%} of what was offered "
            f"(t = {t:.1f})",
            slope=slope,
            t=t,
        )
    ttft = table.ms("ttft") / 1e3
    which = np.digitize(begin, edges) - 1
    waits = np.array([_mean(ttft[which == block]) for block in range(BLOCKS)])
    known = ~np.isnan(waits)
    rise, t = growing(middle[known], waits[known])
    if t and rise >= _MATTERS:
        return Saturation(
            why=f"the wait for the first token grew by {rise * 1000:.0f} ms with each second (t = {t:.1f})",
            slope=slope,
            t=t,
        )
    return Saturation(slope=slope)


def _mean(values: Floats) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else math.nan


def growing(x: Floats, y: Floats) -> tuple[float, float]:
    """`(slope, t)` of a line through the points; t is 0 where the slope is not above its bound of 99 %."""
    n = int(x.size)
    if n < 6:
        return 0.0, 0.0
    from scipy.special import stdtrit  # noqa: PLC0415  (scipy is loaded only where it is used)

    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (y - y.mean())) / spread
    rest = y - y.mean() - slope * centred
    squares = float(rest @ rest)
    if squares <= 1e-12 * max(1.0, float(y @ y)):
        return slope, math.inf if slope > 0 else 0.0
    r = min(0.9, max(0.0, float(rest[1:] @ rest[:-1]) / squares))
    error = math.sqrt(squares / (n - 2) / spread * (1 + r) / (1 - r))
    t = slope / error
    return slope, t if t > float(stdtrit(n - 2, _P)) else 0.0
