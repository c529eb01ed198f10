"""Stops that all streams share, without timelines: of most requests only the longest gap is known, and when it ran.

A stream that never stopped says that there was no shared stop while it decoded. What is left between such streams, and
lies in the life of streams that did stop, is where the stops were.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import median, or_zero

__all__ = ["SummaryStops", "summary_stops"]

Floats = NDArray[np.float64]
LEAST_STREAMS: Final = 2
LONGEST: Final = 4.0
"""A place that is wider than so many of its gaps is not known well enough."""
SHORTEST: Final = 0.7
FEW: Final = 0.2
"""Timelines of a larger share of the streams tell more by themselves."""


class SummaryStops(NamedTuple):
    """Places in order of time (ns on the window's axis)."""

    begin: Floats
    end: Floats
    ms: Floats
    """Usual longest gap of the streams that stopped there."""
    streams: NDArray[np.int64]
    stopped: int
    """Streams that stopped anywhere."""
    explained: float
    """Of them, those that a place lies in."""
    lost: Floats
    """By row of `done`: its longest gap beyond the usual one, and its wait for the first token inside a place (ms)."""


@once_a_window
def summary_stops(window: Window) -> SummaryStops | None:
    """`None` where the timelines tell more, or no places are left."""
    gap = window.done.ms("chunk_gap_max")
    usual = window.done.ms("chunk_gap_p50")
    known = np.flatnonzero(~np.isnan(gap) & ~np.isnan(window.first) & (window.end > window.first))
    if known.size < 50 or window.gaps.rows > FEW * window.n or np.isnan(window.median_gap_ms):
        return None
    halts = gap[known] >= window.stall_ms
    stalled, clean = known[halts], known[~halts]
    if stalled.size < 2 * LEAST_STREAMS or clean.size < stalled.size:
        return None
    at = np.concatenate([window.first[known], window.end[known]])
    order = stable_order(at)
    at = at[order]
    depth = [np.cumsum(np.concatenate([side, -side])[order]) for side in (halts.astype(float), (~halts).astype(float))]
    inside = (depth[0][:-1] >= LEAST_STREAMS) & (depth[1][:-1] == 0)
    edge = np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8))
    begin, end = at[np.flatnonzero(edge == 1)], at[np.flatnonzero(edge == -1)]
    if not begin.size:
        return None
    first, last = window.first[stalled], window.end[stalled]
    length = np.full(begin.size, np.nan)
    streams = np.zeros(begin.size, dtype=np.int64)
    for i in range(begin.size):
        through = (first <= begin[i] + 1.0) & (last >= end[i] - 1.0)
        streams[i] = int(through.sum())
        if streams[i]:
            length[i] = median(gap[stalled[through]])
    wide = (end - begin) / 1e6
    keep = (streams >= LEAST_STREAMS) & (wide >= SHORTEST * length) & (wide <= LONGEST * length)
    if not keep.any():
        return None
    begin, end, length, streams = begin[keep], end[keep], length[keep], streams[keep]
    met = np.searchsorted(begin, last, side="left") - np.searchsorted(end, first, side="right")
    lost = np.zeros(window.n)
    lost[stalled] = np.where(met > 0, gap[stalled] - or_zero(usual[stalled]), 0.0)
    place = np.clip(np.searchsorted(end, window.first[known] - 1.0, side="left") - 1, 0, None)
    for where in (place, np.minimum(place + 1, begin.size - 1)):
        overlap = np.minimum(window.first[known], end[where]) - np.maximum(window.start[known], begin[where])
        lost[known] += np.minimum(np.maximum(overlap, 0.0) / 1e6, length[where])
    return SummaryStops(begin, end, length, streams, int(stalled.size), float((met > 0).mean()), lost)
