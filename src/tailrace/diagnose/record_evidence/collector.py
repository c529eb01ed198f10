"""FE_GC_PAUSE: a garbage collector stops the engine's process at its own times."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.stop_pattern import (
    MIN_PERIODIC,
    StopKind,
    StopPattern,
    beat_of,
    enough_on_beat,
    stop_pattern,
)
from tailrace.diagnose.stop_words import disproofs, head, stop_facts
from tailrace.diagnose.summary_stops import summary_stops
from tailrace.diagnose.window import tail_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["pauses_in_timelines"]


def pauses_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Shared stops outside prefills that keep a beat or grow with the process's age."""
    window = evidence.now
    found = _without_timelines(cause, evidence)
    if found is not None or cause.cannot_run(evidence) or not window.stalls.row.size:
        return found
    pattern = stop_pattern(window)
    if pattern.kind not in (StopKind.PERIODIC, StopKind.GROWING):
        return None
    explains = window.explain(cause.code, pattern.explains)
    if not cause.carries(evidence, explains):
        return None
    missing, rivals = [], []
    if not window.reported:
        missing.append("prefill times from the engine: without them a prefill may be what stops the streams")
    if (evidence.kv_usage or 0.0) >= KV_FULL:
        rivals.append("SCHED_KV_PREEMPTION")
    words, fact = _rhythm(pattern)
    leak = pattern.kind is StopKind.GROWING
    if pattern.kind is StopKind.PERIODIC and pattern.n < MIN_PERIODIC:
        missing.append(f"a longer window: {MIN_PERIODIC} stops show a beat (n = {pattern.n})")
    return cause.finding(
        statement=f"Something that keeps its own time stops the engine's process: {head(pattern)}, {words}.",
        evidence=[*stop_facts(evidence, pattern, explains), fact],
        explains_ms=explains,
        relation=fact.text,
        n=pattern.n,
        advice=_ADVICE
        + (" The pauses grow: objects are never let go. Find the leak; a restart only resets it." if leak else ""),
        price=_PRICE,
        verify=evidence.verify_command + _VERIFY,
        missing=missing,
        rivals=rivals,
        disproof_checked=[
            *disproofs(evidence, pattern),
            f"{pattern.triggers.share:.0%} of them begin with an arrival ({pattern.triggers.chance:.0%} by chance)",
        ],
    )


def _rhythm(pattern: StopPattern) -> tuple[str, Evidence]:
    begin = pattern.stops.begin[pattern.chosen] / 1e9
    if pattern.kind is StopKind.PERIODIC:
        text = f"{pattern.on_beat:.0%} of them on a beat of {pattern.period_s:.2f} s"
        return text, Evidence(
            f"{pattern.on_beat:.0%} of the times between stops are whole multiples of {pattern.period_s:.2f} s "
            f"(n = {pattern.n})",
            "timeline",
            "period_s",
            round(pattern.period_s, 3),
            "s",
        )
    if pattern.growth_ms_per_s > 0:
        grown = pattern.growth_ms_per_s * 3600.0
        text = f"the longer the later: {grown:,.0f} ms more by the hour"
        return text, Evidence(
            f"the length grows in a line with time, {grown:,.0f} ms more by the hour (from {pattern.ms[0]:.0f} to "
            f"{pattern.ms[-1]:.0f} ms over {begin[-1] - begin[0]:.0f} s)",
            "timeline",
            "growth_ms_per_h",
            round(grown, 1),
            "ms/h",
        )
    text = f"each time between them {pattern.ratio:.2f} x the last"
    return text, Evidence(
        f"the times between stops grow by a factor of {pattern.ratio:.2f} (median; a collector that runs when the heap "
        f"has grown by a quarter gives 1.25), n = {np.size(begin) - 1}",
        "timeline",
        "ratio",
        round(pattern.ratio, 3),
    )


_ADVICE: Final = (
    "Freeze the heap after the warm-up (gc.collect(); gc.freeze(), VLLM_GC_DEBUG shows the pauses in vLLM) or raise "
    "the collector's thresholds, and look for other work on a timer in the engine's process (metrics, logs, a "
    "watchdog)."
)
_PRICE: Final = "More memory, if cycles are collected less often."
_VERIFY: Final = "  # py-spy dump --pid PID in a pause, or gc.callbacks with times in the engine"
EXPLAINED: Final = 0.7
OWN: Final = 0.5


def _without_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Short pauses keep no timeline: their places follow from who stopped and who did not."""
    window = evidence.now
    stops = summary_stops(window)
    if stops is None or stops.begin.size < MIN_PERIODIC or stops.explained < EXPLAINED:
        return None
    middle = (stops.begin + stops.end) / 2e9
    period, beat = beat_of(middle, stops.ms)
    if beat < enough_on_beat(middle.size - 1):
        return None
    lag = window.done.ms("loop_lag")
    usual = float(np.median(stops.ms))
    if not np.isnan(lag).all() and float(np.nanmedian(lag[stops.lost > 0])) >= OWN * usual:
        return None
    values = window.explain(cause.code, stops.lost)
    explains = max(values, float(stops.lost[tail_of(stops.lost)].mean()))
    if not cause.carries(evidence, explains):
        return None
    fact = Evidence(
        f"{beat:.0%} of the times between stops are whole multiples of {period:.2f} s (n = {middle.size})",
        "record:chunk_gap_max_ns, record:start",
        "period_s",
        round(period, 3),
        "s",
    )
    missing = [] if window.reported else ["prefill times from the engine: without them a prefill may be what stops"]
    return cause.finding(
        statement=f"Something that keeps its own time stops the engine's process: {middle.size} times all streams "
        f"stand still, for {usual:.0f} ms (median), {beat:.0%} of them on a beat of {period:.2f} s.",
        evidence=[
            Evidence(
                f"{middle.size} stops of {usual:.0f} ms (median of the longest gaps of those that stopped)",
                "record:chunk_gap_max_ns",
                "stop_ms",
                round(usual, 1),
                "ms",
            ),
            Evidence(
                f"{stops.explained:.0%} of the {stops.stopped} streams that stopped decoded through one of these "
                "places, and no stream that did not stop did",
                "record:chunk_gap_max_ns, record:start",
                "explained",
                round(stops.explained, 4),
            ),
            fact,
        ],
        explains_ms=explains,
        relation=fact.text,
        n=int(middle.size),
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command + _VERIFY,
        missing=missing,
        disproof_checked=["streams that went on without a stop lie between these places, and in none"],
    )
