"""STREAM_GAP_AT_POSITION: streams stop at the same place of their text, each alone."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.gaps import Gaps, Part
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


_ANCHORS: Final = ("after the first", "before the last", "after the first of a tool call")


def _place(window: Window) -> _Place | None:
    gaps = window.gaps
    alone = ~_shared(window)
    if alone.sum() < LEAST:
        return None
    long = window.stall_places[alone]
    tool = _first_of_tool(window)
    here = _positions(gaps, tool, long)
    found = []
    for anchor, at_stops in enumerate(here):
        known = ~np.isnan(at_stops)
        if known.sum() < LEAST:
            continue
        values = at_stops[known]
        group = values[densest(values, apart=WITHIN)]
        low, high = group[0], group[-1]
        mine = known & (at_stops >= low) & (at_stops <= high)
        rows = np.unique(gaps.rows_of(long[mine]))
        if group.size < max(LEAST, SHARE * alone.sum()) or rows.size < LEAST:
            continue
        chance = _chance(gaps, tool, anchor, low, high)
        if chance <= CHANCE:
            found.append(
                _Place(
                    _ANCHORS[anchor],
                    float(np.median(at_stops[mine])),
                    int(group.size),
                    int(alone.sum()),
                    rows.size,
                    chance,
                    rows,
                )
            )
    return max(found, key=lambda item: item.hits, default=None)


def _positions(gaps: Gaps, tool: Floats | None, chosen: NDArray[np.int64]) -> list[Floats]:
    """Of the chosen gaps (places in ascending order), their position by each anchor; NaN where it has none."""
    out: list[list[Floats]] = [[] for _ in _ANCHORS]
    for part in gaps.parts():
        mine = chosen[np.searchsorted(chosen, part.at) : np.searchsorted(chosen, part.at + part.ms.size)] - part.at
        if mine.size:
            for anchor, column in enumerate(out):
                column.append(_by_anchor(part, tool, anchor)[mine])
    return [np.concatenate(column) for column in out]


def _chance(gaps: Gaps, tool: Floats | None, anchor: int, low: float, high: float) -> float:
    """The share of all positions that lie in the range."""
    inside = every = 0
    for part in gaps.parts():
        position = _by_anchor(part, tool, anchor)
        every += int((~np.isnan(position)).sum())
        inside += int(((position >= low) & (position <= high)).sum())
    return inside / every


def _by_anchor(part: Part, tool: Floats | None, anchor: int) -> Floats:
    """By gap: tokens since the first token, until the last one, or since the first event of a tool call."""
    brought = np.where(part.tokens > 0, part.tokens, 1).astype(np.int64)
    before = np.cumsum(brought) - brought
    if anchor == 0:
        since: Floats = (before - before[part.first][part.owner]).astype(np.float64) + 1.0
        return since
    if anchor == 1:
        last = part.first + part.size - 1
        until: Floats = ((before + brought)[last][part.owner] - before).astype(np.float64)
        return until
    if tool is None:
        return np.full(part.ms.size, np.nan)
    after = part.begin_ns >= tool[part.row][part.owner]
    counted = np.cumsum(np.where(after, brought, 0))
    base = np.concatenate([[0], counted])[part.first]
    return np.where(after, counted - base[part.owner], np.nan).astype(np.float64)


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


def _first_of_tool(window: Window) -> Floats | None:
    """By row: when its first event of a tool call came (ns from its start), or NaN; `None` where no row has one."""
    lines = window.done.timelines
    first = np.full(window.n, np.nan)
    for block in lines.blocks(np.arange(window.n)):
        at = np.flatnonzero(block.kind == EventKind.TOOL)
        if at.size:
            owner = np.repeat(np.arange(block.rows.size), block.sizes)[at]
            begins = np.flatnonzero(np.diff(owner, prepend=-1))
            first[block.rows[owner[begins]]] = block.at_ns[at[begins]]
    return None if np.isnan(first).all() else first
