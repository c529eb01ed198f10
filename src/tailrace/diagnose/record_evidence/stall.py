"""COMPUTE_STALL: all streams freeze together, and nothing that is seen says why."""

from __future__ import annotations

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.stop_pattern import StopKind, stop_pattern
from tailrace.diagnose.stop_words import device_idle, disproofs, head, stop_facts
from tailrace.model.finding import Finding

__all__ = ["stall_in_timelines"]


def stall_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Shared stops without a pattern; which frame hangs, only a dump can tell."""
    window = evidence.now
    if cause.cannot_run(evidence) or not window.stalls.row.size:
        return None
    pattern = stop_pattern(window)
    if pattern.kind is not StopKind.OTHER or (evidence.kv_usage or 0.0) >= KV_FULL:
        return None
    explains = window.explain(cause.code, pattern.explains)
    if not cause.carries(evidence, explains):
        return None
    rivals = ["FE_EVENTLOOP_BLOCK", "FE_GC_PAUSE", "FE_CPU_STARVED"]
    idle = device_idle(evidence, pattern)
    checked = disproofs(evidence, pattern)
    if idle is not None:
        checked.append(f"the accelerator {'idled' if idle else 'was busy'} in the stops")
        if not idle:
            rivals = []
    if not window.reported:
        rivals.insert(0, "SCHED_PREFILL_STEALS_DECODE")
    return cause.finding(
        statement=f"The engine stands still as a whole: {head(pattern)}, outside every long prefill, on no beat "
        f"and "
        "at no particular arrivals.",
        evidence=stop_facts(evidence, pattern, explains),
        explains_ms=explains,
        relation=f"{pattern.n} shared stops x {float(pattern.ms.mean()):.0f} ms (mean)",
        n=pattern.n,
        advice="Dump the stacks of the engine and its workers while it stands still; the frame names the kernel, "
        "the collective or the lock. Do not guess it, and change no knob before.",
        price="None.",
        verify=(
            "tailrace diagnose dump.txt  # py-spy dump --native --pid PID > dump.txt, while the streams stand still"
        ),
        missing=["a stack dump or profile from inside a stop"],
        rivals=rivals,
        disproof_checked=checked,
    )
