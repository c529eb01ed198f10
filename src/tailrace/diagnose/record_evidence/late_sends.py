"""BENCH_COORDINATED_OMISSION of records: the load generator sent later than it meant to."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.analyze.counted import completed
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding

__all__ = ["late_sends"]

LATE_MS: Final = 50.0
LEAST: Final = 20


def late_sends(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The p99 of intended -> sent, against 50 ms and a tenth of the p99 of the whole."""
    table = evidence.table
    late = table.column("intended_to_sent_ns") / 1e6
    keep = completed(table) & ~np.isnan(late)
    late = late[keep]
    if late.size < LEAST:
        return None
    p99, whole = float(np.quantile(late, 0.99)), float(np.quantile(table.ms("e2e")[keep], 0.99))
    if p99 < max(LATE_MS, 0.1 * whole):
        return None
    return cause.finding(
        statement=f"Requests were sent late: p99 {p99:.0f} ms after their intended time (n = {late.size}); latencies "
        "from the send hide that wait.",
        evidence=[
            Evidence(
                text=f"p99 of intended -> sent is {p99:.0f} ms (n = {late.size})",
                source="record:intended_to_sent_ns",
                name="late.p99",
                value=p99,
                unit="ms",
            )
        ],
        explains_ms=None,
        relation=f"{p99:.0f} ms late at p99, {whole:.0f} ms from the send to the end at p99",
        n=int(late.size),
        advice="Read the latencies from the schedule (from_schedule).",
        price="None.",
        verify=evidence.verify_command,
    )
