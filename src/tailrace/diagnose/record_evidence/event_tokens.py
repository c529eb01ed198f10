"""METRIC_UNIT of records: the tokens of the events against the engine's own count."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding

__all__ = ["event_tokens"]

LEAST: Final = 20
LOW, HIGH = 0.9, 1.1


def event_tokens(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The median of (tokens of the events / usage), of requests whose events all say theirs."""
    table = evidence.table
    ratios = []
    totals, sources = table.column("output_tokens"), table.column("output_tokens_source")
    for row, timeline in enumerate(table.timelines):
        if timeline is None or sources[row] != "usage" or not totals[row] > 0:
            continue
        said = [count for count in timeline.tokens if count > 0]
        if said and len(said) == sum(kind <= 3 for kind in timeline.kind):
            ratios.append(sum(said) / totals[row])
    if len(ratios) < LEAST:
        return None
    ratio = float(np.median(ratios))
    if LOW <= ratio <= HIGH:
        return None
    return cause.finding(
        statement=f"The tokens of the events add up to {ratio:.2f} x the engine's own count: ITL per token is off by "
        "that factor.",
        evidence=[
            Evidence(
                text=f"event tokens / usage = {ratio:.2f} (median of {len(ratios)} requests)",
                source="timeline + record:output_tokens",
                name="token_ratio",
                value=ratio,
            )
        ],
        explains_ms=None,
        relation=f"event tokens / usage = {ratio:.2f}, not 1.00",
        n=len(ratios),
        advice="Use gaps per chunk, or TPOT, which counts by usage.",
        price="Numbers per token and per chunk of older runs cannot be compared.",
        verify=evidence.verify_command,
    )
