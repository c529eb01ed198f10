"""Records that cannot be: stages that are negative or do not add up, a missing stamp, a token before the start."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding, Level, Proof
from tailrace.model.stage import STAGES
from tailrace.stats.quantiles import or_zero
from tailrace.store.table import RecordTable

__all__ = ["MOST", "impossible_records", "impossible_rows"]

MOST: Final = 0.05
"""A larger share of them says that nothing of the source can be trusted."""
LONGEST_NS: Final = 7 * 86_400 * 1_000_000_000
"""No request takes a week; a value above it is a missing stamp read as the epoch."""


def impossible_rows(table: RecordTable) -> dict[str, np.ndarray]:
    """Rule -> mask of the rows that break it."""
    total = np.zeros(len(table))
    negative = np.zeros(len(table), dtype=bool)
    for stage in STAGES:
        if table.lacks(f"{stage}_ns"):
            continue
        value = or_zero(table.column(f"{stage}_ns"))
        negative |= value < 0
        total += value
    e2e = table.column("e2e_ns").astype(np.float64)
    ttft, last = table.column("ttft_ns"), table.column("e2e_last_token_ns")
    longest = table.column("chunk_gap_max_ns")
    has_stage = total != 0
    with np.errstate(invalid="ignore"):
        return {
            "a stage is negative": negative,
            "the stages do not add up to the end-to-end time": has_stage & (np.abs(total - e2e) >= 1.0),
            "the end-to-end time is negative or longer than a week": (e2e < 0) | (e2e > LONGEST_NS),
            "the first token comes before the start or after the end": (ttft < 0) | (ttft > e2e),
            "the last token comes before the first": last < ttft,
            "TTFT and every gap are 0 although the request took time": (ttft == 0) & (longest == 0) & (e2e > 0),
        }


def impossible_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """METRIC_BUG of records that were left out of `evidence` because of what is in them."""
    if not evidence.left_out:
        return None
    every = len(evidence.table) + evidence.left_out_rows
    rules = sorted(evidence.left_out.items(), key=lambda item: -item[1])
    return cause.finding(
        statement=f"{evidence.left_out_rows} of {every} records hold values that cannot be; they were left out.",
        evidence=[
            *(
                Evidence(text=f"{count} records: {rule}", source="record", name="impossible", value=float(count))
                for rule, count in rules
            ),
            Evidence(text=f"{evidence.left_out_rows} of {every} records", source="record", value=float(every)),
        ],
        explains_ms=None,
        relation=f"{evidence.left_out_rows}/{every} = {evidence.left_out_rows / every:.1%}",
        n=every,
        advice="Repair the source of these stamps before reading anything else from them.",
        price="None: nothing can be concluded from these records.",
        verify=evidence.verify_command,
        level=Level.PROVEN,
        proof=Proof.IMPOSSIBLE,
    )
