"""METRIC_BUG of a client that lists the first token among the gaps: the longest gap of each stream is its TTFT."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding, Level, Proof

__all__ = ["first_token_among_gaps"]

LEAST_STREAMS: Final = 5
SHARE: Final = 0.9
EXACT: Final = 1e-3
LOOKED_AT: Final = 2000


def first_token_among_gaps(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """First gap = TTFT to 0.1 %, and the longest of its stream, in nine of ten streams."""
    table = evidence.table
    ttft = table.column("ttft_ns")
    same = seen = 0
    for row, timeline in enumerate(table.timelines):
        if timeline is None or len(timeline.at_ns) < 3 or not ttft[row] > 0:
            continue
        gaps = np.diff(np.asarray(timeline.at_ns, dtype=np.float64))
        seen += 1
        same += int(np.argmax(gaps)) == 0 and abs(float(gaps[0]) - float(ttft[row])) <= EXACT * float(ttft[row])
        if seen >= LOOKED_AT or (seen >= LEAST_STREAMS and same == 0):
            break
    if seen < LEAST_STREAMS or same < SHARE * seen:
        return None
    return cause.finding(
        statement=f"The longest gap (ITL) of a stream is its TTFT in {same} of {seen} streams: the client counts the "
        "first token among the gaps, so ITL's mean and p99 are not the engine's.",
        evidence=[
            Evidence(
                text=f"first gap = TTFT, and the longest of its stream, in {same} of {seen} streams",
                source="timeline + record:ttft_ns",
                name="same",
                value=float(same),
            )
        ],
        explains_ms=None,
        relation=f"max ITL = TTFT in {same}/{seen}",
        n=seen,
        advice="Drop the first gap of each stream and compute ITL again; repair the client (an `else` that is missing "
        "between the first chunk and the others).",
        price="None: nothing can be concluded from these gaps.",
        verify=evidence.verify_command,
        level=Level.PROVEN,
        proof=Proof.IMPOSSIBLE,
    )
