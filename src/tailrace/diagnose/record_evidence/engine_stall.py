"""ENGINE_STALL: requests run, nothing comes out, and no prefill is in progress."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine_counts import Intervals, intervals_of, longest_run
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.first_uses import first_uses
from tailrace.diagnose.kv_cache import KV_CLEAR
from tailrace.diagnose.stop_pattern import StopKind, stop_pattern
from tailrace.diagnose.stop_words import head, stop_facts
from tailrace.model.finding import Evidence, Finding

__all__ = ["stall_in_records"]

SLOW: Final = 0.05
"""Tokens a second and running request, against the usual rate of the same scrapes."""
LEAST_S: Final = 5.0
TWICE: Final = 2
"""Intervals in a row: the first one after idle time may only look slow."""


class _Standing(NamedTuple):
    seconds: float
    rate: float
    usual: float
    running: float
    kv: float | None
    hits: int


def stall_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """By the engine's counters where scrapes cover it, and by one long stop that all streams share."""
    window = evidence.now
    uses = first_uses(window)
    if uses is not None and uses.holds:
        return None  # a prefill was in progress: the engine's own times of it have the wait
    standing = _standing(intervals_of(evidence.states))
    pattern = stop_pattern(window) if window.stalls.row.size else None
    wedge = pattern is not None and pattern.kind is StopKind.WEDGE
    if standing is None and not wedge:
        return None
    explains = window.explain(cause.code, pattern.explains) if pattern is not None else 0.0
    facts = stop_facts(evidence, pattern, explains) if wedge and pattern is not None else []
    missing = ["a stack dump of the engine and its workers while it lasts (py-spy dump)"]
    if standing is None:
        missing.append("scrapes of running requests and the token counters in the slow window")
        if not cause.carries(evidence, explains) or (evidence.kv_usage or 0.0) >= KV_CLEAR:
            return None
        statement = f"The engine stands still as a whole: {head(pattern)}." if pattern is not None else ""
        relation = f"longest stop {float(pattern.ms.max()):.0f} ms" if pattern is not None else ""
    else:
        statement = (
            f"The engine stands still while requests run: {standing.rate:.2f} tokens/s for each of "
            f"{standing.running:.0f} running requests over {standing.seconds:.0f} s (usually {standing.usual:.1f})."
        )
        relation = (
            f"generation / running = {standing.rate:.2f} tokens/s a request, "
            f"{standing.rate / max(standing.usual, 1e-9):.1%} "
            "of the usual"
        )
        facts.append(
            Evidence(
                f"{standing.rate:.2f} tokens/s for each of {standing.running:.0f} running requests over "
                f"{standing.seconds:.0f} s in {standing.hits} intervals, no prompt token meanwhile; usually "
                f"{standing.usual:.1f} tokens/s",
                "metric:generation_tokens_total",
                "tokens_per_s_running",
                round(standing.rate, 3),
                "1/s",
            )
        )
        if standing.kv is not None:
            facts.append(
                Evidence(f"KV usage {standing.kv:.0%} meanwhile", "metric:kv_usage", "kv_usage", round(standing.kv, 4))
            )
    return cause.finding(
        statement=statement,
        evidence=facts,
        explains_ms=explains or None,
        relation=relation,
        n=window.n,
        advice="Dump the stacks of the engine and all workers while it stands still (py-spy dump), then restart "
        "it. "
        "It is not capacity: KV has room and requests run, so more replicas or other limits change nothing. Watch "
        "the progress of its token counter as liveness; /health answers 200 meanwhile.",
        price="The running requests are lost with the restart.",
        verify=(
            "tailrace diagnose before.prom after.prom  # two scrapes of /metrics 10 s apart: "
            "generation tokens must grow while requests run"
        ),
        missing=missing[1:] if standing is not None else missing,
        disproof_checked=["no prompt token was computed meanwhile"] if standing is not None else [],
    )


def _standing(series: Intervals) -> _Standing | None:
    """The longest row of intervals in which nothing moved."""
    if series.seconds.size < TWICE + 1:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        each = series.generated / series.seconds / series.running
    busy = series.running > 0
    if not (busy & (each > 0)).any():
        return None
    usual = float(np.median(each[busy & (each > 0)]))
    still = busy & (each <= SLOW * usual) & ~(series.prompts > 0)
    still &= ~(series.kv >= KV_CLEAR)
    seconds, low, high = longest_run(still, series.seconds, least=TWICE)
    if seconds < LEAST_S:
        return None
    kv = series.kv[low:high]
    return _Standing(
        seconds,
        float(np.nanmean(each[low:high])),
        usual,
        float(np.nanmean(series.running[low:high])),
        None if np.isnan(kv).all() else float(np.nanmax(kv)),
        high - low,
    )
