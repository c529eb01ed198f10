"""TUNE_NOT_SCALE: the cap on running requests is the limit, and the engine would take more."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.caps import counted_cap, running_cap
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.equal_work import company_of, pace_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import of_the_tail
from tailrace.diagnose.kv_cache import KV_ROOM
from tailrace.model.finding import Evidence, Finding

__all__ = ["running_limit_in_records"]

FLAT: Final = 1.35
"""The pace at the cap over the pace at half of it: so much is flat."""
PACE_ROOM: Final = 0.7
QUEUE_SHARE: Final = 0.4
LEAST: Final = 15
MORE: Final = 1.15
"""So many times the cap of now ran before."""


def _ran_more(evidence: EvidenceSet, cap: int, at_cap: float) -> str:
    """The window before ran more at once, and tokens were quick: it has done the sweep. Empty where it has not."""
    before = evidence.before
    if before is None or before.n < LEAST:
        return ""
    company, pace = company_of(before), pace_of(before)
    known = ~np.isnan(company) & ~np.isnan(pace) & (company >= MORE * cap)
    if known.sum() < LEAST or float(np.median(pace[known])) > FLAT * at_cap:
        return ""
    return (
        f"before, {float(np.median(company[known])):.0f} ran together (n = {int(known.sum())} requests) at "
        f"{float(np.median(pace[known])):.1f} ms a token"
    )


def running_limit_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:  # noqa: PLR0911  (one a condition)
    """A flat cap, a pace that is flat up to it and within its objective, room in the cache."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < 50:
        return None
    cap = running_cap(window, queued_share=0.05) or counted_cap(window)
    if cap is None:
        return None
    kv = evidence.kv_usage
    if kv is not None and kv >= KV_ROOM:
        return None
    pace = pace_of(window)
    batch = window.done.column("running_at_first_token")
    batch = np.where(np.isnan(batch), window.done.column("running_at_admission"), batch)
    known = ~np.isnan(pace) & ~np.isnan(batch)
    full, half = known & (batch >= 0.9 * cap.size), known & (batch <= 0.6 * cap.size)
    if full.sum() < LEAST:
        return None
    at_cap = float(np.median(pace[full]))
    below = float(np.median(pace[half])) if half.sum() >= LEAST else None
    bounds = evidence.objectives.bounds.get("tpot", {})
    bound = min(bounds.values()) / 1e6 if bounds else None
    if bound is not None and at_cap > PACE_ROOM * bound:
        return None
    if below is not None and at_cap > FLAT * max(below, 1e-9):
        return None
    lost = window.lost
    wait = lost.engine_queue + (0.0 if window.reported else lost.first_token)
    explains = window.explain(cause.code, wait)
    ttft = np.nan_to_num(window.done.ms("ttft"), nan=0.0) - lost.gateway_queue
    if explains < QUEUE_SHARE * window.in_tail(ttft) or not cause.carries(evidence, explains):
        return None
    more = _ran_more(evidence, cap.size, at_cap)
    missing = [] if more else ["a sweep of the cap: throughput and TPOT at twice as many running requests"]
    if below is None and not more:
        missing.append("the pace at a smaller batch (requests that found half of the cap)")
    if kv is None:
        missing.append("KV usage of the engine")
    knob = evidence.knobs.get("max_num_seqs")
    rates = f", {below:.1f} ms at up to {0.6 * cap.size:.0f}" if below is not None else ""
    double = 2 * cap.size
    return cause.finding(
        statement=f"The cap is the limit, not the device: {cap.size} requests run and the others wait, while a "
        f"token "
        f"takes {at_cap:.1f} ms at the cap{rates}" + (f" and KV usage is {kv:.0%}." if kv is not None else "."),
        evidence=[
            Evidence(
                f"{cap.size} run in {cap.share:.0%} of the {cap.queued} cases in which others wait"
                + (f" (max_num_seqs is {knob})" if knob else ""),
                "record:running_at_admission, record:waiting_at_admission",
                "cap",
                float(cap.size),
            ),
            Evidence(
                f"a token takes {at_cap:.1f} ms at {cap.size} running requests{rates} (medians)",
                "record:chunk_gap_p50_ns, record:running_at_first_token",
                "pace_at_cap_ms",
                round(at_cap, 2),
                "ms",
            ),
            *([Evidence(more, "record:start, record:e2e_ns", "before")] if more else []),
            *([Evidence(f"KV usage {kv:.0%}", "record:kv_usage", "kv_usage", round(kv, 4))] if kv is not None else []),
            *(
                [Evidence(f"the objective of TPOT is {bound:.0f} ms", "objectives", "tpot_bound_ms", bound, "ms")]
                if bound
                else []
            ),
            of_the_tail(
                window,
                explains,
                "record:queue_engine_ns" if window.reported else "record:ttft_ns",
                "in the queue",
            ),
        ],
        explains_ms=explains,
        relation=(
            f"pace at the cap / below it = {at_cap:.1f} / {below:.1f} = {at_cap / max(below, 1e-9):.2f}"
            if below is not None
            else f"pace at the cap {at_cap:.1f} ms"
        )
        + f"; throughput at the cap = {cap.size} / {at_cap:.1f} ms = {cap.size / max(at_cap, 1e-9) * 1e3:,.0f} "
        f"tokens/s",
        n=cap.queued,
        advice=f"Raise the cap step by step (vLLM --max-num-seqs {double}, SGLang --max-running-requests {double}, "
        f"llama.cpp --parallel {double}; now {cap.size}) until the p99 of TTFT or TPOT meets its objective or "
        f"the KV "
        "cache is full. Tune before you scale: a second replica with the same cap leaves this one idle as well.",
        price="TPOT rises a little with the batch, and the KV cache fills sooner.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[
            f"pace at the cap {at_cap:.1f} ms" + (f", below it {below:.1f} ms" if below is not None else "")
        ],
    )
