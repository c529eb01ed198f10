"""FE_EVENTLOOP_BLOCK: work on the engine's event loop stops every stream until it is done."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.loop_work import LoopWork, loop_work
from tailrace.diagnose.stop_pattern import SCALES, StopKind, stop_pattern
from tailrace.diagnose.stop_words import device_idle, disproofs, head, stop_facts
from tailrace.model.finding import Evidence, Finding

__all__ = ["blocked_in_timelines"]


def blocked_in_timelines(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Shared stops that begin with arrivals and grow with their size, outside prefills and our own lag."""
    window = evidence.now
    work = loop_work(window)
    if work is not None and work.holds:
        return _by_tokens(cause, evidence, work)
    if cause.cannot_run(evidence) or not window.stalls.row.size:
        return None
    pattern = stop_pattern(window)
    triggers = pattern.triggers
    if pattern.kind is not StopKind.TRIGGERED:
        return None
    explains = window.explain(cause.code, pattern.explains)
    if not cause.carries(evidence, explains):
        return None
    missing, rivals = [], []
    if not window.reported:
        missing.append("prefill times from the engine: without them a prefill may be what stops the streams")
        rivals.append("SCHED_PREFILL_STEALS_DECODE")
    if np.isnan(window.done.column("loop_lag_ns")).all() and evidence.vantage == "gateway":
        missing.append("the gateway's own event-loop lag")
    if not triggers.size or triggers.correlation < SCALES:
        missing.append("what the stops' length grows with (prompt tokens, bytes, images, seconds of audio)")
    checked = disproofs(evidence, pattern)
    idle = device_idle(evidence, pattern)
    if idle is not None:
        checked.append(f"the accelerator {'idled' if idle else 'was busy'} in the stops")
        if not idle:
            rivals.append("COMPUTE_STALL")
    size = triggers.size or "size"
    known = triggers.sizes[~np.isnan(triggers.sizes)]
    each = f", {np.median(pattern.ms) / np.median(known):.3f} ms per unit" if known.size else ""
    return cause.finding(
        statement=f"The engine's front end is blocked: {head(pattern)}, outside every long prefill; "
        f"{triggers.share:.0%} of these stops begin when a request arrives whose first token comes after it.",
        evidence=[
            *stop_facts(evidence, pattern, explains),
            Evidence(
                f"{triggers.share:.0%} of the stops begin with the arrival of a request that waits through it; "
                f"arrivals at any time would give {triggers.chance:.0%}",
                "timeline, record:start",
                "triggered",
                round(triggers.share, 4),
            ),
            Evidence(
                f"the stop's length goes with the {size} of that request (rank correlation {triggers.correlation:.2f})",
                "timeline, record:prompt_tokens",
                "correlation",
                round(triggers.correlation, 3),
            ),
        ],
        explains_ms=explains,
        relation=f"length of a stop ~ {size}: "
        + (
            f"{np.median(known):,.0f} (median) and {np.median(pattern.ms):.0f} ms{each}"
            if known.size
            else head(pattern)
        ),
        n=pattern.n,
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command + _VERIFY,
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
    )


def _by_tokens(cause: Cause, evidence: EvidenceSet, work: LoopWork) -> Finding | None:
    """One loop that takes so long by the prompt token explains the waits and the longest gaps alike."""
    window = evidence.now
    explains = window.explain(cause.code, work.explains)
    if not cause.carries(evidence, explains):
        return None
    missing = []
    if np.isnan(window.done.column("loop_lag_ns")).all() and evidence.vantage == "gateway":
        missing.append("the gateway's own event-loop lag")
    each = work.us_per_token / 1e3
    stop = work.typical_tokens * each
    return cause.finding(
        statement=f"The engine's front end works on one prompt after the other, {each:.3f} ms a token, and all streams "
        f"stop meanwhile: {stop:,.0f} ms for a prompt of {work.typical_tokens:,.0f} tokens.",
        evidence=[
            Evidence(
                f"one loop that takes {each:.3f} ms by prompt token explains the waits before the prefill "
                f"(correlation {work.r:.2f}, n = {work.n})",
                "record:ttft_ns, record:prefill_ns, record:prompt_tokens",
                "ms_per_token",
                round(each, 4),
                "ms",
            ),
            Evidence(
                f"the longest gap of {work.agree:.0%} of {work.streams} streams is the longest such work while they "
                f"decoded (median ratio {work.ratio:.2f})",
                "record:chunk_gap_max_ns",
                "agree",
                round(work.agree, 4),
            ),
            Evidence(
                f"a request waits {work.own:.2f} x its own work; {max(work.untold, 0.0):.0%} of the waits are not in "
                "the engine's queue time",
                "record:queue_engine_ns",
                "own",
                round(work.own, 3),
            ),
            Evidence(
                f"{stop:,.0f} ms for {work.typical_tokens:,.0f} prompt tokens (p95)",
                "record:prompt_tokens",
                "stop_ms",
                round(stop, 1),
                "ms",
            ),
        ],
        explains_ms=explains,
        relation=f"length of a stop ~ prompt tokens: {work.typical_tokens:,.0f} x {each:.3f} ms = {stop:,.0f} ms",
        n=work.n,
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command + _VERIFY,
        missing=missing,
        disproof_checked=[
            f"the prefill as the engine reports it is not in these waits; {work.own:.2f} x the own work is"
        ],
    )


_ADVICE: Final = (
    "Move tokenising and the decoding of images or audio off the engine's event loop (a pool of threads or processes, "
    "--api-server-count in vLLM, --tokenizer-worker-num in SGLang), and bound the size of what one request may bring. "
    "No engine knob and no further GPU changes it."
)
_PRICE: Final = "CPU cores for the pool; a hand-over of some 0.1 ms a request."
_VERIFY: Final = "  # and the round trip of /health again and again under the same load"
