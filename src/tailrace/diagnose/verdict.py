"""The answer in words: which finding comes first, what to do, and one sentence for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.diagnose.precedence import behind, by_chance
from tailrace.diagnose.symptoms import Symptom
from tailrace.model.finding import Finding, Level, Part, Proof

__all__ = ["ENDS_REQUESTS", "answering", "merged", "rank", "wording"]

ENDS_REQUESTS: Final = frozenset(
    {
        "GW_IDLE_TIMEOUT",
        "GW_UPSTREAM_TIMEOUT",
        "GW_PROBE_KILL",
        "CLIENT_TIMEOUT_BUDGET",
        "CANCEL_STORM",
        "CANCEL_NOT_PROPAGATED",
        "RETRY_STORM",
        "SCHED_ADMISSION_DEADLOCK",
        "ENGINE_STALL",
    }
)
"""Causes by which requests do not complete."""

BEFORE_FIRST_TOKEN: Final = frozenset(
    {
        "SCHED_HOL_LONG_PREFILL",
        "SCHED_INSTANCE_LIMIT",
        "SCHED_BATCHER_WAIT",
        "GW_LANE_QUEUE",
        "GW_CONN_POOL_CAP",
        "GW_HOLDS_FIRST_EVENT",
        "PREPROCESS_SLOW",
        "ENCODE_SLOW",
        "CLIENT_UPLOAD_LATE",
        "MIX_STRUCTURED_OUTPUT",
    }
)
"""Causes that make first tokens late, and none after them."""

AFTER_FIRST_TOKEN: Final = frozenset(
    {
        "SCHED_PREFILL_STEALS_DECODE",
        "STREAM_GAP_AT_POSITION",
        "POSTPROCESS_SLOW",
        "CLIENT_SLOW_READER",
    }
)
"""Causes that make no first token late."""

_ORDER: Final = {level: place for place, level in enumerate(Level)}
_WORDING: Final = {
    Level.PROVEN: "This is the cause.",
    Level.CONSISTENT: "This matches; it was not yet tested by changing it.",
    Level.SUSPECTED: "This could be it.",
    Level.INSUFFICIENT: "",
}


def rank(findings: list[Finding]) -> list[Finding]:
    """Surest first; among equally sure ones, roots before what they bring about (`precedence`), then the one that
    explains the most milliseconds of the tail. What only a warm-up shows stands behind what stays.
    """
    levels: dict[Level, list[Finding]] = {}
    for item in findings:
        levels.setdefault(_level(item), []).append(item)
    roots = {level: behind(items) for level, items in levels.items()}
    return sorted(
        findings,
        key=lambda item: (
            item.part is Part.START,
            _ORDER[_level(item)],
            roots[_level(item)][item.code] > 0,
            -(item.explains_ms or 0.0),
        ),
    )


def _level(item: Finding) -> Level:
    """For its place: shares that moved by chance are no surer than a suspicion."""
    return Level.SUSPECTED if by_chance(item) and item.level is not Level.INSUFFICIENT else item.level


def answering(findings: list[Finding], found: Sequence[Symptom]) -> list[Finding]:
    """Ranked findings, those first that can make what is wrong: where that is failures alone, causes that end requests;
    where tokens are late and first tokens in time, or the other way round, not those of the other part.
    """
    kinds = {symptom.kind for symptom in found}
    metrics = {symptom.objective.metric for symptom in found if symptom.objective is not None}
    fail = bool(kinds & {"failures", "fails_more"})
    if fail and kinds <= {"failures", "fails_more", "moved"}:
        return sorted(findings, key=lambda item: item.code not in ENDS_REQUESTS)
    if fail or not metrics:
        return findings
    if metrics == {"ttft"} and "stutter" not in kinds:
        return sorted(findings, key=lambda item: item.code in AFTER_FIRST_TOKEN)
    if "tpot" in metrics and "ttft" not in metrics:
        return sorted(findings, key=lambda item: item.code in BEFORE_FIRST_TOKEN)
    return findings


def merged(findings: list[Finding]) -> list[Finding]:
    """One finding a code: the surest, where two kinds of evidence led to it."""
    best: dict[str, Finding] = {}
    for finding in findings:
        other = best.get(finding.code)
        best[finding.code] = finding if other is None else rank([other, finding])[0]
    return list(best.values())


_PROVEN: Final = {
    Proof.ONE_CHANGE: "This is the cause: one change, all else equal, moved it.",
    Proof.IN_WINDOW: "This is the cause: it was seen at work inside the slow window.",
    Proof.IMPOSSIBLE: "This is the cause: the numbers cannot be otherwise.",
}


def wording(finding: Finding) -> str:
    """The sentence that says how sure it is, and what would decide it."""
    if finding.level is Level.SUSPECTED and finding.missing:
        return f"This could be it; to decide, measure: {finding.missing[0]}."
    if finding.proof is not None:
        return _PROVEN[finding.proof]
    return _WORDING[finding.level]
