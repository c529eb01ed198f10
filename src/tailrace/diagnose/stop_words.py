"""What is said of stops that streams share, whichever cause they have."""

from __future__ import annotations

import numpy as np

from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.limits import IDLE
from tailrace.diagnose.stop_pattern import StopPattern
from tailrace.model.finding import Evidence

__all__ = ["device_idle", "disproofs", "head", "stop_facts"]


def head(pattern: StopPattern) -> str:
    """`7 times all streams stand still together, for 310 ms (median), 480 ms at the longest`."""
    ms = pattern.ms
    if pattern.n == 1:
        return f"once all streams stand still together, for {ms[0]:.0f} ms"
    return (
        f"{pattern.n} times the streams stand still together, for {np.median(ms):.0f} ms (median), {ms.max():.0f} ms "
        "at the longest"
    )


def stop_facts(evidence: EvidenceSet, pattern: StopPattern, explains: float) -> list[Evidence]:
    """The stops' number and length, who shared them, and what they cost the tail."""
    window = evidence.now
    stops, chosen, ms = pattern.stops, pattern.chosen, pattern.ms
    shared = float((stops.streams[chosen] / stops.through[chosen]).mean())
    out = [
        Evidence(head(pattern), "timeline", "stops", float(pattern.n)),
        Evidence(f"the longest lasts {ms.max():.0f} ms", "timeline", "stop_max_ms", round(float(ms.max()), 1), "ms"),
        Evidence(
            f"{shared:.0%} of the streams that decoded through such a stop stand still in it (mean)",
            "timeline",
            "shared",
            round(shared, 4),
        ),
        Evidence(
            f"{explains:.0f} of the {window.tail_lost_ms:.0f} ms that the slowest requests lost lie in these stops",
            "timeline, record:ttft_ns",
            "explains_ms",
            round(explains, 1),
            "ms",
        ),
    ]
    inside = int(stops.prefill.sum())
    if stops.begin.size:
        out.append(
            Evidence(
                f"{inside} of {stops.begin.size} shared stops lie inside the prefill of a long prompt and are not "
                "counted here",
                "timeline, record:prefill_ns",
                "prefill_stops",
                float(inside),
            )
        )
    return out


def disproofs(evidence: EvidenceSet, pattern: StopPattern) -> list[str]:
    """What was looked at that would have shown another cause."""
    window = evidence.now
    out = [f"no long prompt was in prefill in {pattern.n} of the shared stops"]
    if not np.isnan(window.done.column("loop_lag_ns")).all():
        out.append(f"the gateway's own loop stood still in {int(pattern.stops.own.sum())} of them")
    if evidence.kv_usage is not None:
        out.append(f"KV usage at most {evidence.kv_usage:.0%}")
    if evidence.preemptions is not None:
        out.append(f"{evidence.preemptions:.0f} preemptions")
    return out


def device_idle(evidence: EvidenceSet, pattern: StopPattern) -> bool | None:
    """Whether the accelerator idled in the stops, by readings inside them; `None` where none falls into one."""
    window = evidence.now
    origin = window.origin_unix_ns
    begin, end = pattern.stops.begin[pattern.chosen], pattern.stops.end[pattern.chosen]
    seen = []
    for state in evidence.meanwhile.gpus:
        if state.at_unix_ns is None or state.utilisation is None:
            continue
        at = float(state.at_unix_ns - origin)
        if bool(((begin <= at) & (at <= end)).any()):
            seen.append(state.utilisation)
    return float(np.median(seen)) < IDLE if seen else None
