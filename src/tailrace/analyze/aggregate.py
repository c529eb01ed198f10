"""A load test of which only the summary is left: percentiles without the requests they came from."""

from __future__ import annotations

import msgspec

from tailrace.model.measurement import BenchSummary
from tailrace.store.run_file import RunHeader

__all__ = ["Aggregate"]


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """What another tool says of a run in all. Nothing more can be computed from it: no interval, no other percentile.

    `summary.metrics` has only what is defined as ours is; a statistic that the file does not hold is `None`. Where the
    file does not say how many values a metric has, its `n` is 0 and its `reason` says so.
    """

    path: str
    header: RunHeader
    summary: BenchSummary
    theirs: dict[str, dict[str, float]] = {}
    """What has another definition than ours, by the tool's own name -> statistic -> value (milliseconds)."""
