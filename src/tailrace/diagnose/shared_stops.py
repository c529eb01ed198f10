"""Stops that streams share: moments in which those that decode all stand still, and go on together.

One stream alone that stops was preempted, or its reader or its request is the reason. Streams that stop together wait
for one thing: a prefill, the engine's process, the machine, the gateway.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import median, quantile
from tailrace.stats.runs import medians_of_runs

__all__ = ["SharedStops", "shared_stops"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

TOGETHER: Final = 0.6
"""Share of the streams that decoded through it that must have stopped."""
ALIGNED_NS: Final = 30e6
COVERED: Final = 0.7
LEAST_PREFILLS: Final = 10
OWN: Final = 0.5
"""A stop in which the gateway's own loop stood still for this much of it is the gateway's."""


class SharedStops(NamedTuple):
    """Stops by the streams of one replica, in order of their begin; times in ns on the window's axis."""

    begin: Floats
    end: Floats
    streams: Ints
    """Streams that are seen to stop."""
    through: Ints
    """Streams that decoded from its begin to its end and whose stalls are known."""
    prefill: Mask
    """It lies inside the prefill of a long prompt."""
    own: Mask
    """The gateway's own loop stood still in it."""
    replica: Ints
    by_row: Floats
    """By row of `done`: what it lost in the stops that no prefill and no lag of ours explains (ms), stalls and waits
    for a first token together."""
    stop_share: float
    """Of all stall time, the share in stops that are shared."""

    @property
    def unexplained(self) -> Mask:
        """Neither a long prompt's prefill nor the gateway itself."""
        mask: Mask = ~self.prefill & ~self.own
        return mask

    @property
    def ms(self) -> Floats:
        """Lengths (ms)."""
        return (self.end - self.begin) / 1e6


@once_a_window
def shared_stops(window: Window) -> SharedStops:
    """All stops that at least two streams and most of those that decoded share."""
    stalls = window.stalls
    tolerance = max(ALIGNED_NS, 2.0 * (0.0 if np.isnan(window.median_gap_ms) else window.median_gap_ms) * 1e6)
    seen = np.zeros(window.n, dtype=bool)
    seen[window.streams] = True
    # Whose timeline was not kept is known to have gone on if its longest gap is no stall.
    longest = window.done.ms("chunk_gap_max")
    with np.errstate(invalid="ignore"):
        decodes = (seen | (longest < window.stall_ms)) & ~np.isnan(window.first)
    served = replicas(window)
    found: list[tuple[float, float, int, int, int]] = []
    shared_ms = 0.0
    for place in range(-1, served.n):
        mine = served.of_row[stalls.row] == place
        if mine.sum() < 2:
            continue
        rows = decodes & (served.of_row == place)
        new, lost = _of_replica(window, np.flatnonzero(mine), rows, tolerance, place)
        found += new
        shared_ms += lost
    found.sort()
    begin, end = (np.array([stop[i] for stop in found], dtype=np.float64) for i in (0, 1))
    streams, through, place_of = (np.array([stop[i] for stop in found], dtype=np.int64) for i in (2, 3, 4))
    prefill = window.prefills.covered_ms(begin, end) * 1e6 >= COVERED * (end - begin)
    prefill |= _computed(window, begin, end, place_of, served.of_row) >= COVERED * (end - begin)
    own = _own(window, begin, end)
    total = float(stalls.excess_ms.sum())
    bare = SharedStops(
        begin, end, streams, through, prefill, own, place_of, np.zeros(window.n), shared_ms / total if total else 0.0
    )
    return bare._replace(by_row=_lost(window, bare, served.of_row))


def _of_replica(
    window: Window, mine: Ints, rows: Mask, tolerance: float, place: int
) -> tuple[list[tuple[float, float, int, int, int]], float]:
    stalls = window.stalls
    order = mine[np.argsort(stalls.end[mine], kind="stable")]
    ends = stalls.end[order]
    group = np.concatenate([[0], np.cumsum(np.diff(ends) > tolerance)])
    edges = np.concatenate([np.flatnonzero(np.diff(group, prepend=-1)), [order.size]])
    first, last = np.sort(window.first[rows]), np.sort(window.end[rows])
    out, lost = [], 0.0
    # Most groups are one stream alone: only the others are looked at.
    pairs = np.sort(group * max(window.n, 1) + stalls.row[order])
    several = np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] // max(window.n, 1), minlength=edges.size - 1)
    begins, stops = (medians_of_runs(values[order], group, edges[:-1]) for values in (stalls.begin, stalls.end))
    for at in np.flatnonzero(several >= 2).tolist():
        members = order[edges[at] : edges[at + 1]]
        streams = int(several[at])
        begin, end = float(begins[at]), float(stops[at])
        began = int(np.searchsorted(first, begin + tolerance, side="right"))
        over = int(np.searchsorted(last, end - tolerance, side="left"))
        through = max(began - over, streams)
        if streams < TOGETHER * through:
            continue
        out.append((begin, end, streams, through, place))
        lost += float(stalls.excess_ms[members].sum())
    return out, lost


def _computed(window: Window, begin: Floats, end: Floats, place: Ints, of_row: Ints) -> Floats:
    """How long (ns) the engine needs for the prompts whose first tokens come at the end of each stop: several prompts
    of an ordinary length in one step stop the streams as a long one does. 0 where the engine does not report prefills.
    """
    out = np.zeros(begin.size)
    if not window.reported or not begin.size:
        return out
    tokens = np.maximum(window.computed_tokens, 1.0)
    usable = np.flatnonzero(~np.isnan(tokens) & window.has_prefill & ~np.isnan(window.first))
    large = usable[tokens[usable] >= np.median(tokens[usable])] if usable.size else usable
    if large.size < LEAST_PREFILLS:
        return out
    rate = quantile(window.done.ms("prefill")[large] * 1e6 / tokens[large], 0.1)
    for one in np.unique(place).tolist():
        rows = usable[of_row[usable] == one]
        rows = rows[np.argsort(window.first[rows], kind="stable")]
        first, total = window.first[rows], np.concatenate([[0.0], np.cumsum(tokens[rows])])
        mine = place == one
        low = np.searchsorted(first, begin[mine] + ALIGNED_NS, side="left")
        high = np.searchsorted(first, end[mine] + ALIGNED_NS, side="right")
        out[mine] = (total[np.maximum(high, low)] - total[low]) * rate
    return out


def _own(window: Window, begin: Floats, end: Floats) -> Mask:
    """Whether the requests that lived through each stop saw the gateway's own loop stand still for half of it."""
    lag = window.done.ms("loop_lag")
    known = np.flatnonzero(~np.isnan(lag))
    out = np.zeros(begin.size, dtype=bool)
    if not known.size:
        return out
    known = known[np.argsort(window.start[known], kind="stable")]
    start, stop, value = window.start[known], window.end[known], lag[known]
    longest = float(np.nanmax(stop - start))
    # Whoever lived then began at most the longest life before: a slice, however many requests the window has.
    first = np.searchsorted(start, end - ALIGNED_NS - longest, side="left")
    last = np.searchsorted(start, begin + ALIGNED_NS, side="right")
    # Whoever saw the longest stand-still saw less than half of the stop: no median can be more.
    for i in np.flatnonzero(float(value.max()) * 1e6 >= OWN * (end - begin)).tolist():
        some = slice(first[i], last[i])
        lived = stop[some] >= end[i] - ALIGNED_NS
        out[i] = bool(lived.any()) and median(value[some][lived]) * 1e6 >= OWN * (end[i] - begin[i])
    return out


def _lost(window: Window, stops: SharedStops, of_row: Ints) -> Floats:
    """Stalls inside the unexplained stops, and what of a wait for the first token lies inside them (ms)."""
    out = np.zeros(window.n)
    stalls, lost = window.stalls, window.lost
    waited = lost.engine_queue + lost.first_token
    for place in np.unique(stops.replica[stops.unexplained]).tolist():
        mine = stops.unexplained & (stops.replica == place)
        begin, end = stops.begin[mine], stops.end[mine]
        at = np.clip(np.searchsorted(begin, (stalls.begin + stalls.end) / 2, side="right") - 1, 0, None)
        inside = (of_row[stalls.row] == place) & (stalls.begin < end[at]) & (stalls.end > begin[at])
        np.add.at(out, stalls.row[inside], stalls.excess_ms[inside])
        rows = np.flatnonzero((of_row == place) & ~np.isnan(window.first))
        knots = np.column_stack([begin, np.maximum(end, begin)]).ravel()
        knots = np.maximum.accumulate(knots)
        grown = np.concatenate([[0.0], np.cumsum(np.diff(knots) * (np.arange(knots.size - 1) % 2 == 0))])
        overlap = np.interp(window.first[rows], knots, grown) - np.interp(window.start[rows], knots, grown)
        out[rows] += np.minimum(overlap / 1e6, waited[rows])
    return out
