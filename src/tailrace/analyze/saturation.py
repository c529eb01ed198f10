"""Whether a load was more than the server could do: its queue grows for as long as the load lasts.

A steady queue, however long, is no saturation. Two lines are fitted against time, over the part of the run in which
requests were sent, its first fifth left out: the requests in flight, and the time to the first token. Until the first
answers have ended, every server fills up, however small its load: of the requests in flight that part is left out as
well, and where most of the run is of that kind, only the first tokens can tell. A line counts
when its slope is beyond the 99 % bound of Student's t (its error widened for correlated neighbours as an AR(1) asks:
times sqrt((1 + r) / (1 - r))) and large enough to matter: at least 5 % of the offered load stays undone.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.counted import measured_rows
from tailrace.analyze.timebase import starts_ns
from tailrace.store.table import RecordTable

__all__ = ["Saturation", "growing", "saturation"]

Floats = NDArray[np.float64]

BLOCKS: Final = 20
FEWEST: Final = 40
"""Requests below which nothing is said."""
_LEFT_OUT: Final = 0.2
_FILLING: Final = 0.9
"""The server has filled up when this share of the answers to its first requests have ended."""
_FEWEST_LEFT: Final = 0.4
"""Of the run; what is filling up must leave at least that."""
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
    mask = measured_rows(table)
    if int(mask.sum()) < FEWEST:
        return Saturation()
    # What the warm-up and those who left had sent is in flight like the rest.
    every_begin, every_end = _times(table)
    begin, table = every_begin[mask], table.where(mask)
    first, last = float(begin.min()), float(begin.max())
    if last <= first:
        return Saturation()
    offered = len(table) / (last - first)
    slope = 0.0
    full = max(first + _LEFT_OUT * (last - first), _filled(every_begin, every_end))
    if last - full >= _FEWEST_LEFT * (last - first):
        slope, t = _growth(every_begin, every_end, np.linspace(full, last, BLOCKS + 1))
        if t and slope >= _MATTERS * offered:
            return Saturation(
                why=f"the queue grew by {slope:.2g} requests a second, {slope / offered:.0%} of what was offered "
                f"(t = {t:.1f})",
                slope=slope,
                t=t,
            )
    edges = np.linspace(first + _LEFT_OUT * (last - first), last, BLOCKS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
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


def _times(table: RecordTable) -> tuple[Floats, Floats]:
    """When each request was due and when it ended (s)."""
    sent = starts_ns(table).astype(np.float64) / 1e9
    end = sent + np.nan_to_num(table.column("e2e_ns").astype(np.float64)) / 1e9
    return sent - np.nan_to_num(table.column("intended_to_sent_ns").astype(np.float64)) / 1e9, end


def _filled(begin: Floats, end: Floats) -> float:
    """When most of the answers to the first requests had ended: from then on as many may leave as come."""
    first, last = float(begin.min()), float(begin.max())
    early = begin <= first + _LEFT_OUT * (last - first)
    return first + float(np.quantile((end - begin)[early], _FILLING))


def _growth(begin: Floats, end: Floats, edges: Floats) -> tuple[float, float]:
    """`growing` of the requests in flight; of a block their mean: the request-seconds in it, by its length."""
    overlap = np.minimum(end[:, None], edges[1:]) - np.maximum(begin[:, None], edges[:-1])
    return growing((edges[1:] + edges[:-1]) / 2, np.clip(overlap, 0, None).sum(axis=0) / np.diff(edges))


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
