"""METRIC_UNIT of records: the tokens of the events against the engine's own count."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding
from tailrace.store.timelines import Events

__all__ = ["HIGH", "LOW", "PRICE_OF_A_UNIT", "event_tokens"]

LEAST: Final = 20
LOW, HIGH = 0.9, 1.1
"""Tokens that a client counts over those that the engine counts, where both count tokens."""
PRICE_OF_A_UNIT: Final = "Numbers per token and per chunk of older runs cannot be compared."


def event_tokens(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The median of (tokens of the events / usage), of requests whose events all say theirs."""
    table = evidence.table
    totals = table.column("output_tokens")
    with np.errstate(invalid="ignore"):
        counted = np.flatnonzero(
            table.timelines.kept & among(table.column("output_tokens_source"), {"usage"}) & (totals > 0)
        )
    if counted.size < LEAST:
        return None
    ratios = np.concatenate([_ratios(block, totals) for block in table.timelines.blocks(counted)])
    if ratios.size < LEAST:
        return None
    ratio = float(np.median(ratios))
    if LOW <= ratio <= HIGH:
        return None
    return cause.finding(
        statement=f"The tokens of the events add up to {ratio:.2f} x the engine's own count: ITL per token is off by "
        "that factor.",
        evidence=[
            Evidence(
                text=f"event tokens / usage = {ratio:.2f} (median of {ratios.size} requests)",
                source="timeline + record:output_tokens",
                name="token_ratio",
                value=ratio,
            )
        ],
        explains_ms=None,
        relation=f"event tokens / usage = {ratio:.2f}, not 1.00",
        n=int(ratios.size),
        advice="Use gaps per chunk, or TPOT, which counts by usage.",
        price=PRICE_OF_A_UNIT,
        verify=evidence.verify_command,
    )


def _ratios(seen: Events, totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """(tokens of the events / usage) of each timeline whose events all say theirs."""
    of = np.repeat(np.arange(seen.rows.size), seen.sizes)
    said, carrying = (np.bincount(of[mask], minlength=seen.rows.size) for mask in (seen.tokens > 0, seen.kind <= 3))
    brought = np.bincount(of, weights=np.maximum(seen.tokens, 0), minlength=seen.rows.size)
    whole = (said > 0) & (said == carrying)
    found: NDArray[np.float64] = brought[whole] / totals[seen.rows[whole]]
    return found
