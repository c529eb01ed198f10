"""Stalls of streams laid beside the prefills of long prompts: who stalled while whose prompt was computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.quantiles import median
from tailrace.stats.runs import medians_of_runs

__all__ = ["PrefillStalls", "Relation", "prefill_stalls"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

INSIDE: Final = 0.7
"""A stall belongs to prefills if at least this much of it lies inside them (the rest is one decode step)."""
_ALIGNED_MS: Final = 30.0


class Relation(NamedTuple):
    """Gap length against prompt length, over prefills that ended alone."""

    tokens_a_second: float
    tokens: float
    """Median prompt of those prefills."""
    predicted_ms: float
    seen_ms: float
    error: float
    """Median of |seen - predicted| / seen."""
    n: int


class PrefillStalls(NamedTuple):
    """What the laying-beside found."""

    inside: NDArray[np.bool_]
    """By stall: it lies inside the prefills."""
    excess_by_row: Floats
    """By row of `done`: stall time inside prefills (ms)."""
    covered_share: float
    """Of all stall time, the share inside prefills."""
    chance_share: float
    """Of all time in which streams decoded, the share inside prefills: what chance would give."""
    prefills: int
    """Prefills of long prompts during which at least one stream decoded."""
    stalling: int
    """Those of them with a stall."""
    streams_hit: float
    """Of the streams that decoded through a stalling prefill, the share that stalled (mean)."""
    streams: float
    """Streams that decoded through a stalling prefill (mean)."""
    fill: float
    """A stall's length over its prefill's (median): near 1 when the prompt was computed in one step."""
    stall_ms: float
    """Median stall inside a prefill (ms)."""
    relation: Relation | None


@once_a_window
def prefill_stalls(window: Window) -> PrefillStalls:
    """Lay the stalls of a window beside the prefills of its long prompts."""
    stalls, prefills = window.stalls, window.prefills
    length = (stalls.end - stalls.begin) / 1e6
    # A prefill ends with its step; the streams' next token may come one decode step later.
    covered = prefills.covered_ms(stalls.begin, stalls.end)
    inside = covered >= INSIDE * length
    lost = stalls.excess_ms[inside]
    excess = np.bincount(stalls.row[inside], weights=lost, minlength=window.n).astype(np.float64)
    total = float(stalls.excess_ms.sum())
    seen = np.zeros(window.n, dtype=bool)
    seen[window.streams] = True
    decode_ms = float(((window.end - window.first)[seen & ~np.isnan(window.first)]).sum() / 1e6)
    chance = 0.0
    if decode_ms > 0:
        rows = np.flatnonzero(seen & ~np.isnan(window.first))
        chance = float(prefills.covered_ms(window.first[rows], window.end[rows]).sum()) / decode_ms
    counted, hit, share, streams, points, fill = _by_prefill(window, inside, seen)
    return PrefillStalls(
        inside=inside,
        excess_by_row=excess,
        covered_share=float(stalls.excess_ms[inside].sum()) / total if total > 0 else 0.0,
        chance_share=chance,
        prefills=counted,
        stalling=hit,
        streams_hit=share,
        streams=streams,
        fill=fill,
        stall_ms=median(length[inside]) if inside.any() else 0.0,
        relation=_relation(points),
    )


def _by_prefill(
    window: Window, inside: NDArray[np.bool_], seen: NDArray[np.bool_]
) -> tuple[int, int, float, float, list[tuple[float, float]], float]:
    stalls, prefills = window.stalls, window.prefills
    order = np.argsort(stalls.end, kind="stable")
    ends, begins, rows = stalls.end[order], stalls.begin[order], stalls.row[order]
    kept = inside[order]
    longest = float((stalls.end - stalls.begin).max()) if stalls.end.size else 0.0
    slack = _ALIGNED_MS * 1e6 + 3.0 * (0.0 if np.isnan(window.median_gap_ms) else window.median_gap_ms) * 1e6
    begin, end = prefills.begin, prefills.end
    through = _through(window, seen, begin + slack, end)
    counted = np.flatnonzero(through > 0)
    low, high = np.searchsorted(ends, begin[counted]), np.searchsorted(ends, end[counted] + longest)
    whose: list[Ints] = []
    which: list[Ints] = []
    for place, near in _ragged(low, high):
        prefill = counted[place]
        good = kept[near] & (begins[near] < end[prefill]) & (ends[near] > begin[prefill] + slack)
        whose.append(prefill[good])
        which.append(near[good])
    none = np.empty(0, dtype=np.int64)
    owner, near = (np.concatenate([none, *parts]) for parts in (whose, which))
    if not owner.size:
        return int(counted.size), 0, 0.0, 0.0, [], 0.0
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    hit = owner[first]
    pairs = np.sort(owner * max(window.n, 1) + rows[near])
    pairs = pairs[np.diff(pairs, prepend=-1) > 0] // max(window.n, 1)
    stalled = np.bincount(np.searchsorted(hit, pairs), minlength=hit.size)
    length = ends[near] - begins[near]
    fills = medians_of_runs(length, owner, first) / np.maximum(end[hit] - begin[hit], 1.0)
    arranged = np.sort(end)
    neighbours = np.searchsorted(arranged, end + slack, "left") - np.searchsorted(arranged, end - slack, "right")
    aligned = np.flatnonzero((neighbours[owner] == 1) & (np.abs(ends[near] - end[owner]) < slack))
    start = np.flatnonzero(np.diff(owner[aligned], prepend=-1))
    alone = owner[aligned][start]
    seen_ms = medians_of_runs(length[aligned], owner[aligned], start) / 1e6
    return (
        int(counted.size),
        int(hit.size),
        float(np.minimum(1.0, stalled / through[hit]).mean()),
        float(through[hit].mean()),
        list(zip(prefills.tokens[alone].tolist(), seen_ms.tolist(), strict=True)),
        median(fills),
    )


def _through(window: Window, seen: NDArray[np.bool_], before: Floats, after: Floats) -> Ints:
    """How many streams with known gaps began before `before` and ended after `after`, for each pair."""
    rows = np.flatnonzero(seen & ~np.isnan(window.first))
    rows = rows[np.argsort(window.first[rows], kind="stable")]
    first, last = window.first[rows], window.end[rows]
    begun = np.searchsorted(first, before, side="left")
    over = np.searchsorted(np.sort(last), after, side="right")
    # Those that began later and are over too were taken off without having been counted.
    both = np.zeros(before.size, dtype=np.int64)
    for prefill, near in _ragged(begun, np.maximum(np.searchsorted(first, after, side="right"), begun)):
        both += np.bincount(prefill[last[near] <= after[prefill]], minlength=before.size)
    through: Ints = begun - over + both
    return through


def _ragged(low: Ints, high: Ints, most: int = 4_000_000) -> Iterator[tuple[Ints, Ints]]:
    """(which, place) of every place of every range [low, high), some millions at a time."""
    sizes = high - low
    until = np.cumsum(sizes)
    begin = 0
    while begin < sizes.size:
        gone = int(until[begin - 1]) if begin else 0
        stop = max(begin + 1, int(np.searchsorted(until, gone + most, side="right")))
        some = sizes[begin:stop]
        which = np.repeat(np.arange(begin, stop), some)
        yield which, np.arange(which.size) - np.repeat(np.cumsum(some) - some, some) + low[which]
        begin = stop


def _relation(points: list[tuple[float, float]]) -> Relation | None:
    if not points:
        return None
    tokens, gap = (np.array(side) for side in zip(*points, strict=True))
    rate = median(tokens / gap) * 1e3
    predicted = tokens / rate * 1e3
    middle = int(np.argsort(tokens)[tokens.size // 2])
    return Relation(
        tokens_a_second=rate,
        tokens=float(tokens[middle]),
        predicted_ms=float(predicted[middle]),
        seen_ms=float(gap[middle]),
        error=median(np.abs(gap - predicted) / gap),
        n=int(tokens.size),
    )
