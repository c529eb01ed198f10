"""Stalls of streams laid beside the prefills of long prompts: who stalled while whose prompt was computed."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window

__all__ = ["PrefillStalls", "Relation", "prefill_stalls"]

Floats = NDArray[np.float64]

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


def prefill_stalls(window: Window) -> PrefillStalls:
    """Lay the stalls of a window beside the prefills of its long prompts; computed once a window."""
    if PrefillStalls not in window.found:
        window.found[PrefillStalls] = _lay(window)
    found: PrefillStalls = window.found[PrefillStalls]
    return found


def _lay(window: Window) -> PrefillStalls:
    stalls, prefills = window.stalls, window.prefills
    length = (stalls.end - stalls.begin) / 1e6
    # A prefill ends with its step; the streams' next token may come one decode step later.
    covered = prefills.covered_ms(stalls.begin, stalls.end)
    inside = covered >= INSIDE * length
    lost = stalls.excess_ms[inside]
    excess = np.bincount(stalls.row[inside], weights=lost, minlength=window.n).astype(np.float64)
    total = float(stalls.excess_ms.sum())
    decoding = window.gaps.rows > 0
    seen = np.zeros(window.n, dtype=bool)
    if decoding:
        seen[np.unique(window.gaps.row)] = True
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
        stall_ms=float(np.median(length[inside])) if inside.any() else 0.0,
        relation=_relation(points),
    )


def _by_prefill(
    window: Window, inside: NDArray[np.bool_], seen: NDArray[np.bool_]
) -> tuple[int, int, float, float, list[tuple[float, float]], float]:
    stalls, prefills = window.stalls, window.prefills
    order = np.argsort(stalls.end)
    ends, begins, rows = stalls.end[order], stalls.begin[order], stalls.row[order]
    kept = inside[order]
    longest = float((stalls.end - stalls.begin).max()) if stalls.end.size else 0.0
    slack = _ALIGNED_MS * 1e6 + 3.0 * (0.0 if np.isnan(window.median_gap_ms) else window.median_gap_ms) * 1e6
    counted = hit = 0
    shares: list[float] = []
    present: list[int] = []
    points: list[tuple[float, float]] = []
    fills: list[float] = []
    for i in range(prefills.row.size):
        begin, end = float(prefills.begin[i]), float(prefills.end[i])
        through = int((seen & (window.first < begin + slack) & (window.end > end)).sum())
        if not through:
            continue
        counted += 1
        low, high = np.searchsorted(ends, begin), np.searchsorted(ends, end + longest)
        near = np.arange(low, high)
        near = near[kept[near] & (begins[near] < end) & (ends[near] > begin + slack)]
        if not near.size:
            continue
        hit += 1
        stalled = np.unique(rows[near])
        shares.append(min(1.0, stalled.size / through))
        present.append(through)
        fills.append(float(np.median(ends[near] - begins[near])) / max(end - begin, 1.0))
        alone = int((np.abs(prefills.end - end) < slack).sum()) == 1
        aligned = near[np.abs(ends[near] - end) < slack]
        if alone and aligned.size:
            points.append((float(prefills.tokens[i]), float(np.median(ends[aligned] - begins[aligned])) / 1e6))
    return (
        counted,
        hit,
        float(np.mean(shares)) if shares else 0.0,
        float(np.mean(present)) if present else 0.0,
        points,
        float(np.median(fills)) if fills else 0.0,
    )


def _relation(points: list[tuple[float, float]]) -> Relation | None:
    if not points:
        return None
    tokens, gap = (np.array(side) for side in zip(*points, strict=True))
    rate = float(np.median(tokens / gap)) * 1e3
    predicted = tokens / rate * 1e3
    middle = int(np.argsort(tokens)[tokens.size // 2])
    return Relation(
        tokens_a_second=rate,
        tokens=float(tokens[middle]),
        predicted_ms=float(predicted[middle]),
        seen_ms=float(gap[middle]),
        error=float(np.median(np.abs(gap - predicted) / gap)),
        n=int(tokens.size),
    )
