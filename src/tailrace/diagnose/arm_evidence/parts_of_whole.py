"""TRACE_GAP without traces: what a client waited for beside the parts of it that servers stamped. A table with a row a
stage, the stages of a voice agent's turns beside what a caller heard, a load tool's own time beside the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked import figure, number_stated
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import TO_MS, in_unit
from tailrace.diagnose.speech_evidence.turns import Turns, turns_of
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gap_of_parts"]

COVERED: Final = 0.9
_AXIS: Final = re.compile(r"\b(?:stage|step|span|component|part|hop|phase|segment|section|where)s?\b", re.IGNORECASE)
_WHOLE: Final = re.compile(
    r"^(?:client|caller|user|browser|load (?:generator|test)|end[ -]to[ -]end|e2e|observed|felt|perceived)\b",
    re.IGNORECASE,
)
_NO_PART: Final = re.compile(
    r"^(?:sum|total|overall|all|rest|other|gap|remainder|unaccounted|unattributed|unknown|missing|difference|diff|"
    r"of which|incl|thereof)\b|^[-+(=]|\bnot (?:covered|in any|stamped)",
    re.IGNORECASE,
)
_STAGES: Final = {"end_of_turn": "end of turn", "llm_ttft": "LLM TTFT", "tts_ttfb": "TTS TTFB"}
_HEARD: Final = r"voice to voice|\bv2v\b|mouth to ear|^(?:total |overall |perceived |response )?(?:response )?silence\b"
_LEAST_MS: Final = 1.0
_SHOWN: Final = 6


class _Parts(NamedTuple):
    """One whole (ms) with its parts, and where they stand."""

    name: str
    whole_ms: float
    parts: tuple[tuple[str, float], ...]
    covered_ms: float
    """The parts together; the longest where one lies in another."""
    place: str
    where: str
    """What may lie between them, and who is to stamp it."""


_SERVERS: Final = (
    "hops without a span (a proxy, the read of the request, tokenising, the pool before the engine) or the network"
)
_AGENTS: Final = (
    "what no stage stamps: the text gathered for the first sentence, a tool's call, playout, the telephone's leg"
)
_WIRE: Final = "the wire, the client's own marshalling, the read of the request"


def gap_of_parts(cause: Cause, observed: Observed) -> Finding | None:
    """The wholes of one kind, where their parts cover less than nine tenths of them."""
    for kind in (_of_stages, _of_turns, _of_servers):
        found = list(kind(observed))
        whole, covered = sum(one.whole_ms for one in found), sum(one.covered_ms for one in found)
        if found and covered < COVERED * whole:
            return _found(cause, found, whole, covered)
    return None


def _found(cause: Cause, found: list[_Parts], whole: float, covered: float) -> Finding:
    share, n = covered / whole, len(found)
    gap = (whole - covered) / n
    mean = f" (means of {n})" if n > 1 else ""
    evidence = []
    for one in found[:_SHOWN]:
        parts = " + ".join(f"{name} {_told(ms)}" for name, ms in one.parts)
        text = f"{one.name} {_told(one.whole_ms)}; {parts} = {_told(one.covered_ms)}"
        evidence.append(Evidence(text, one.place, "covered", round(one.covered_ms, 3), "ms"))
    total = f"{covered / 1e3:.4g} of {whole / 1e3:.4g} s are stamped: {share:.1%}"
    evidence.append(Evidence(total, found[0].place, "coverage", round(share, 4), "share"))
    return cause.finding(
        statement=f"The stamped parts cover {share:.1%} of {found[0].name}: {_told(gap)} of "
        f"{_told(whole / n)}{mean} lie in none of them, so none of them can be blamed for it.",
        evidence=evidence,
        explains_ms=gap,
        relation=f"{covered / 1e3:.4g}/{whole / 1e3:.4g} s = {share:.2f} < {COVERED}",
        n=n,
        advice=f"Stamp what is missing before anything is tuned: {found[0].where}. A gateway in front that stamps both "
        "sides tells the way from the server.",
        price="A span more for each request.",
        verify="tailrace serve --upstream http://localhost:8000",
        disproof_checked=["where the gap lies is not told: before, between or after the stamped parts"],
        action=Action.COLLECT,
        level=Level.CONSISTENT,
    )


def _told(ms: float) -> str:
    return f"{ms / 1e3:.3g} s" if ms >= 1e3 else number(ms, "ms")


def _covered(parts: tuple[tuple[str, float], ...], whole: float) -> float:
    covered = sum(ms for _, ms in parts)
    return covered if covered <= whole else max(ms for _, ms in parts)


def _of_stages(observed: Observed) -> Iterator[_Parts]:
    """A table whose rows are stages, one of them the client's own time; of one column that all rows have."""
    tables: dict[str, list[tuple[Arm, Quoted]]] = {}
    for arm in observed.arms:
        cells = [item for item in arm.values.values() if item.unit in TO_MS and not item.relative]
        if len(cells) == 1 and any(_AXIS.search(name.replace("_", " ")) for name in arm.keys):
            tables.setdefault(arm.place.source, []).append((arm, cells[0]))
    for source, rows in tables.items():
        if len({(item.quantity, item.stat) for _, item in rows}) > 1 and len({item.label for _, item in rows}) > 1:
            continue
        wholes = [(arm, item) for arm, item in rows if _WHOLE.search(arm.label)]
        parts = tuple(
            (arm.label, in_unit(item.value, item.unit, "ms") or 0.0)
            for arm, item in rows
            if not _WHOLE.search(arm.label) and not _NO_PART.search(arm.label)
        )
        if len(wholes) != 1 or len(parts) < 2:
            continue
        arm, item = wholes[0]
        whole = in_unit(item.value, item.unit, "ms") or 0.0
        covered = _covered(parts, whole)
        if whole > _LEAST_MS and 0 < covered <= whole:
            yield _Parts(arm.label, whole, parts, covered, str(item.place) or source, _SERVERS)


def _of_turns(observed: Observed) -> Iterator[_Parts]:
    """Turns of which an agent tells every stage, against the silence that a recording or a caller has."""
    tables = turns_of(observed)
    for turns in tables:
        if not turns.has(*_STAGES):
            continue
        heard, place = _heard(observed, turns, tables)
        for row, whole in enumerate(heard):
            parts = tuple((words, float(turns.get(name)[row])) for name, words in _STAGES.items())
            covered = sum(ms for _, ms in parts)
            if np.isfinite(whole) and np.isfinite(covered) and 0 < covered <= whole:
                yield _Parts("the silence that is heard", float(whole), parts, covered, place, _AGENTS)


def _heard(observed: Observed, turns: Turns, tables: list[Turns]) -> tuple[np.ndarray, str]:
    """What was heard of each turn (ms): told with it, in another table of as many turns, or stated once for all."""
    for other in (turns, *(one for one in tables if one is not turns and len(one) == len(turns))):
        if other.has("total"):
            return other.get("total"), str(other.place)
    stated = number_stated(observed, _HEARD)
    unit = "" if stated is None else stated.unit
    ms = None if stated is None or stated.number is None else in_unit(stated.number, unit, "ms")
    if stated is None or ms is None:
        return np.full(len(turns), np.nan), ""
    return np.full(len(turns), ms), str(stated.place)


def _of_servers(observed: Observed) -> Iterator[_Parts]:
    """A load tool that prints its own time and the server's of the same requests (perf_analyzer)."""
    for arm in observed.arms:
        whole, served = figure(arm, "e2e", stats=("mean",)), arm.values.get("server_request_mean.mean")
        ms = None if served is None else in_unit(served.value, served.unit, "ms")
        if whole is not None and served is not None and ms is not None and 0 < ms <= whole.value:
            parts = (("the server's request", ms),)
            yield _Parts("the load tool's own time", whole.value, parts, ms, str(served.place), _WIRE)
