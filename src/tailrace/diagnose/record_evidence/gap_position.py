"""STREAM_GAP_AT_POSITION: streams stop at the same place of their text, each alone."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.age_cluster import densest
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.shared_stops import shared_stops
from tailrace.diagnose.stream_bursts import stream_bursts
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.model.timeline import EventKind

__all__ = ["gap_position_in_timelines"]

Floats = NDArray[np.float64]
LEAST: Final = 4
SHARE: Final = 0.6
WITHIN: Final = 2.0
"""Tokens that the place may differ by."""
CHANCE: Final = 0.2
OF_BURSTS: Final = 0.3
"""Of all positions that streams pass, the share that lies as near: above it the place says nothing."""


class _Place(NamedTuple):
    anchor: str
    at: float
    hits: int
    n: int
    streams: int
    chance: float
    rows: NDArray[np.int64]


def gap_position_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The stops that streams do not share, by their position."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.stalls.row.size < LEAST:
        return None
    bursty = stream_bursts(window).bursty
    if bursty.size and float(bursty.mean()) > OF_BURSTS:
        return None  # a buffer's size is a place too
    place = _place(window)
    if place is None:
        return None
    lost = np.zeros(window.n)
    lonely = np.isin(window.stalls.row, place.rows)
    np.add.at(lost, window.stalls.row[lonely], window.stalls.excess_ms[lonely])
    explains = window.explain(cause.code, lost)
    if not cause.carries(evidence, explains):
        return None
    grammar = window.done.column("grammar").astype(bool)
    with_grammar = float(grammar[place.rows].mean())
    usual = float(grammar.mean())
    stop = float(np.median(window.stalls.excess_ms[lonely]))
    facts = []
    if with_grammar > usual + 0.2:
        facts.append(
            Evidence(
                f"{with_grammar:.0%} of those streams ask for structured output, {usual:.0%} of all",
                "record:grammar",
                "grammar_share",
                round(with_grammar, 4),
            )
        )
    return cause.finding(
        statement=f"Streams stop at one place of their text: {place.hits} of {place.n} lonely stops are "
        f"{place.at:.0f} tokens {place.anchor}, for {stop:.0f} ms each (median).",
        evidence=[
            Evidence(
                f"{place.hits} of {place.n} stops that no other stream shares are {place.at:.0f} tokens "
                f"{place.anchor} (within {WITHIN:.0f}), in {place.streams} streams; chance would give "
                f"{place.chance:.0%}",
                "timeline",
                "position",
                round(place.at, 1),
                "tokens",
            ),
            Evidence(f"they last {stop:.0f} ms (median)", "timeline", "stop_ms", round(stop, 1), "ms"),
            *facts,
        ],
        explains_ms=explains,
        relation=f"{place.hits} of {place.n} stops at {place.at:.0f} tokens {place.anchor}",
        n=place.n,
        advice="Try pairs of features one by one: structured output with speculative decoding, tool-call parsing, "
        "reasoning parsing, stop strings, a safety check at the end of a block. The one without which the stop is "
        "gone is it; capacity and batch limits change nothing.",
        price="The feature that is switched off meanwhile.",
        verify=(
            "tailrace replay REQUEST_ID http://localhost:8000  # with the grammar (or speculation) "
            "off: no gap at that place"
        ),
        missing=["the text at that place (offsets of the answer are not kept)"],
        disproof_checked=[f"{place.hits} of {place.n} are within {WITHIN:.0f} tokens of one place"],
    )


def _place(window: Window) -> _Place | None:
    gaps = window.gaps
    alone = ~_shared(window)
    if alone.sum() < LEAST:
        return None
    long = np.flatnonzero(gaps.ms >= window.stall_ms)[alone]
    begins = np.concatenate([[0], np.flatnonzero(np.diff(gaps.row)) + 1])
    owner = np.searchsorted(begins, np.arange(gaps.row.size), side="right") - 1
    brought = np.where(gaps.tokens > 0, gaps.tokens, 1)
    total = np.cumsum(brought)
    from_start = (total - brought) - (total[begins] - brought[begins])[owner] + 1.0
    ends = np.concatenate([begins[1:], [gaps.row.size]]) - 1
    to_end = total[ends][owner] - (total - brought)
    tool = _since_tool(window, begins, owner)
    found = []
    for anchor, position in (
        ("after the first", from_start),
        ("before the last", to_end.astype(np.float64)),
        ("after the first of a tool call", tool),
    ):
        here = position[long]
        known = ~np.isnan(here)
        if known.sum() < LEAST:
            continue
        values = here[known]
        group = values[densest(values, apart=WITHIN)]
        low, high = group[0], group[-1]
        everywhere = position[~np.isnan(position)]
        chance = float(((everywhere >= low) & (everywhere <= high)).mean())
        mine = known & (here >= low) & (here <= high)
        rows = np.unique(gaps.row[long][mine])
        if group.size >= max(LEAST, SHARE * alone.sum()) and chance <= CHANCE and rows.size >= LEAST:
            found.append(
                _Place(anchor, float(np.median(here[mine])), int(group.size), int(alone.sum()), rows.size, chance, rows)
            )
    return max(found, key=lambda item: item.hits, default=None)


def _shared(window: Window) -> NDArray[np.bool_]:
    """Stalls inside stops that streams share, or inside a long prompt's prefill."""
    stalls, stops = window.stalls, shared_stops(window)
    out: NDArray[np.bool_] = window.prefills.covered_ms(stalls.begin, stalls.end) * 1e6 >= 0.7 * (
        stalls.end - stalls.begin
    )
    middle = (stalls.begin + stalls.end) / 2
    if stops.begin.size:
        at = np.clip(np.searchsorted(stops.begin, middle, side="right") - 1, 0, None)
        out |= (middle >= stops.begin[at]) & (middle <= stops.end[at])
    return out


def _since_tool(window: Window, begins: NDArray[np.int64], owner: NDArray[np.int64]) -> Floats:
    """By gap: tokens since the first event of a tool call; NaN before it, and in streams without one."""
    gaps = window.gaps
    first = np.full(begins.size, np.nan)
    if not (window.done.timelines.events().kind == EventKind.TOOL).any():
        return np.full(gaps.row.size, np.nan)
    for i, begin in enumerate(begins.tolist()):
        timeline = window.done.timelines[int(gaps.row[begin])]
        if timeline is None or EventKind.TOOL not in timeline.kind:
            continue
        first[i] = timeline.at_ns[timeline.kind.index(EventKind.TOOL)]
    if np.isnan(first).all():
        return np.full(gaps.row.size, np.nan)
    brought = np.where(gaps.tokens > 0, gaps.tokens, 1)
    after = gaps.begin_ns >= first[owner]
    counted = np.cumsum(np.where(after, brought, 0))
    base = np.concatenate([[0], counted])[begins]
    return np.where(after, counted - base[owner], np.nan).astype(np.float64)
