"""Streams that stand still at the same place of their text."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["gap_at_position_in_chunks"]

LONG_MS: Final = 500.0
TIMES: Final = 10.0
LEAST: Final = 3
NEAR: Final = 0.02
MOST_STOPS: Final = 1000
"""The longest ones are compared with each other, pair by pair."""
MOMENT_MS: Final = 30.0
MOMENT: Final = 0.1
NEARLY_ALL: Final = 0.8
PLACES: Final = ("text_offset", "output_position", "chunk")


class _Stop(NamedTuple):
    stream: str
    place: float
    gap_ms: float
    row: int
    text: str


def gap_at_position_in_chunks(cause: Cause, observed: Observed) -> Finding | None:
    """At least three streams have one long gap each, all at one position."""
    for rows in observed.table("chunks"):
        place = next((name for name in PLACES if rows.has(name)), "")
        if not place or not (rows.has("t_client_ms") or rows.has("t_upstream_ms")):
            continue
        streams, stops = _stops(rows, place)
        group = _together(stops)
        if _at_one_moment(rows, streams, group):
            continue  # they stop at one moment: what is generated at that place need not be why
        if len(group) < LEAST or len(group) < 0.5 * len({stop.stream for stop in stops}):
            continue
        return _found(cause, rows, place, streams, group)
    return None


def _stops(rows: Rows, place: str) -> tuple[int, list[_Stop]]:
    at = rows.numbers("t_upstream_ms") if rows.has("t_upstream_ms") else rows.numbers("t_client_ms")
    where = rows.numbers(place)
    texts = rows.texts("text") if rows.has("text") else []
    out: list[_Stop] = []
    streams = 0
    for name, every in rows.members("req").items():
        mine = every[np.isfinite(at[every])]
        if mine.size < 8:
            continue
        streams += 1
        mine = mine[np.argsort(at[mine], kind="stable")]
        gaps = np.diff(at[mine])
        usual = float(np.median(gaps))
        for index in np.flatnonzero(gaps >= max(LONG_MS, TIMES * usual)):
            row = int(mine[index + 1])
            out.append(_Stop(name, float(where[row]), float(gaps[index]), row, texts[row] if texts else ""))
    return streams, sorted(out, key=lambda stop: -stop.gap_ms)[:MOST_STOPS]


def _at_one_moment(rows: Rows, streams: int, group: list[_Stop]) -> bool:
    """Whether the stops end within a fraction of their length: then time binds them, not the text. Where the streams
    began together too (or each counts from its own beginning), only a stop of nearly all of them is one in time.
    """
    if len(group) < LEAST:
        return False
    at = rows.numbers("t_upstream_ms") if rows.has("t_upstream_ms") else rows.numbers("t_client_ms")
    within = max(MOMENT_MS, MOMENT * min(stop.gap_ms for stop in group))
    members = rows.members("req")
    begun = np.array([np.nanmin(at[members[stop.stream]]) for stop in group])
    apart = float(np.ptp(begun)) > within
    alike = float(np.ptp(at[[stop.row for stop in group]])) <= within
    return alike and (apart or len(group) >= NEARLY_ALL * streams)


def _together(stops: list[_Stop]) -> list[_Stop]:
    """The largest group of stops at one place, one a stream."""
    best: list[_Stop] = []
    for stop in stops:
        near = max(NEAR * abs(stop.place), 1.0)
        group: dict[str, _Stop] = {}
        for other in stops:
            if abs(other.place - stop.place) <= near:
                group.setdefault(other.stream, other)
        if len(group) > len(best):
            best = list(group.values())
    return best


def _found(cause: Cause, rows: Rows, place: str, streams: int, group: list[_Stop]) -> Finding:
    low, high = min(stop.gap_ms for stop in group) / 1e3, max(stop.gap_ms for stop in group) / 1e3
    spot = f"{float(np.median([stop.place for stop in group])):.0f}"
    words = {"text_offset": "character", "output_position": "token", "chunk": "chunk"}[place]
    line = str(rows.line_of(group[0].row))
    text = next((stop.text for stop in group if stop.text), "")
    missing = [] if place != "chunk" else ["the text offset of each chunk: chunks are not characters"]
    if not text:
        missing.append(
            "the text at that place (a closing brace, a tool call), and the features that were on (grammar, "
            "speculation)"
        )
    return cause.finding(
        statement=f"{len(group)} of {streams} streams stand still for {low:.3g} to {high:.3g} s at the same place of "
        "their "
        f"answer ({words} {spot}): what is generated there stops them, not the load.",
        evidence=[
            Evidence(
                text=f"{len(group)} of {streams} streams have a gap of {low:.3g} to {high:.3g} s at {words} {spot}"
                + (f", before {text[:40]!r}" if text else ""),
                source=line,
                name="position",
                value=float(spot),
            )
        ],
        explains_ms=high * 1e3,
        relation=f"{len(group)}/{streams} streams at {words} {spot}",
        n=streams,
        advice="Test the features in pairs, one by one: grammar with speculative decoding, tool-call parsing, stop "
        "strings, a "
        "reasoning parser. Switch one off and read the same prompts again.",
        price="The feature is missing while it is off.",
        verify=(
            "tailrace replay REQUEST_ID http://localhost:8000  # with one feature off: the gap at that place is gone"
        ),
        missing=missing,
        disproof_checked=[f"the position is one: within {NEAR:.0%}"],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
