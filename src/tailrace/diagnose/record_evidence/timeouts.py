"""GW_UPSTREAM_TIMEOUT and what ends at one age: a configured timer ends requests."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.timer_ends import ENDED_BY_HOP, timer_ends
from tailrace.model.finding import Evidence, Finding, Level

__all__ = ["timeout_in_records"]

TOLD: Final = 0.2


def timeout_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Timed out by a budget of ours, or cut by a hop at one age with a 408, 502 or 504."""
    ends = timer_ends(evidence.now)
    if ends is None or ends.idle:
        return None
    window = evidence.now
    every = window.every
    rows = ends.rows
    status = every.column("http_status")[rows]
    budgets = sorted(set(every.column("budget")[rows].astype(str)) - {""})
    own = bool(budgets)
    # Streams that had begun are cut without a status; the others of the same age say whose timer it was.
    told = own or bool(np.isin(status, ENDED_BY_HOP).mean() >= TOLD)
    if not told:
        return None
    completed = window.done.ms("e2e")
    near = int((completed > 0.8 * ends.cluster.age_ms).sum())
    advice = (
        f"Align the timers with what a request may need: this one ({ends.words(budgets)}) must be above the "
        f"slowest "
        "request that shall succeed, and each hop's above the one behind it; long answers that are not streamed "
        "need a job API. First see why requests take so long: a longer timer alone only moves the failure."
    )
    return cause.finding(
        statement=f"A timer ends requests: {ends.cluster.hits} of {ends.cluster.n} failures come at "
        f"{ends.cluster.age_ms:,.0f} ms.",
        evidence=[
            *ends.facts(),
            Evidence(
                f"{near} of {window.n} completed requests took more than 80 % of that time",
                "record:e2e_ns",
                "near",
                float(near),
            ),
            *(
                [Evidence(f"status {np.nanmedian(status):.0f} for most", "record:http_status", "status")]
                if not np.isnan(status).all()
                else []
            ),
        ],
        explains_ms=ends.cluster.age_ms,
        relation=f"age of the failures = {ends.cluster.low_ms:,.0f} to {ends.cluster.high_ms:,.0f} ms = one timer",
        n=ends.cluster.hits,
        advice=advice,
        price="Whoever waits for a request that will never come waits longer.",
        verify=evidence.verify_command + "  # and this number in the configuration of every hop: grep -r timeout",
        missing=[] if own else [f"the timers of every hop: which one is {ends.cluster.age_ms / 1e3:.3g} s"],
        level=Level.CONSISTENT if own else None,
        disproof_checked=[ends.spread_words()],
    )
