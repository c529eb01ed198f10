"""Requests that did not complete, by outcome, reason and the stage in which they ended."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from tailrace.analyze.counted import completed
from tailrace.stats.quantiles import quantile
from tailrace.store.table import RecordTable

__all__ = ["FailureRow", "failures_by_stage"]


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One outcome, reason and stage."""

    outcome: str
    reason: str
    stage: str
    """`unknown` where the record does not say."""
    n: int
    share: float
    """Of all requests, completed ones included."""
    median_age_ms: float
    """How old these requests were when they ended; equal ages point at a timer."""


def failures_by_stage(table: RecordTable) -> list[FailureRow]:
    """The failures, most frequent first (then by name, so the order is stable)."""
    bad = np.flatnonzero(~completed(table))
    keys = [
        (str(table.column("outcome")[i]), str(table.column("reason")[i]), str(table.column("died_in")[i]) or "unknown")
        for i in bad
    ]
    ages = table.ms("e2e")[bad]
    rows = []
    for key, n in sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0])):
        inside = ages[[other == key for other in keys]]
        rows.append(
            FailureRow(
                outcome=key[0],
                reason=key[1],
                stage=key[2],
                n=n,
                share=n / len(table),
                median_age_ms=quantile(inside, 0.5),
            )
        )
    return rows
