"""The stages of three groups of requests side by side: all of them, those around the median, those that make the tail.

Each group's value is a mean over its requests, so its stages add up to its total (`stats.decomposition`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.decompose import half_width, stage_columns
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY
from tailrace.stats.decomposition import conditional_stage_mean
from tailrace.stats.quantiles import supported
from tailrace.store.table import RecordTable

__all__ = ["StageGroup", "StageGroups", "split_queue", "stage_groups"]

Floats = NDArray[np.float64]

_PARTS: Final = (QUEUE_GATEWAY, QUEUE_ENGINE)
_ROUNDING_MS: Final = 1e-6
"""One nanosecond: what is left of a stage below this is the rounding of a difference."""
_MEDIAN_HALF_WIDTH: Final = 0.05
_SOURCE_ROWS: Final = 2000
"""Sources are counted in an even sample of about this many rows: they are dicts, and a share needs no more."""


class StageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of requests (ms)."""

    name: str
    """`mean`, `p50`, `p99`; `slowest` where the table is too small for a p99."""
    rows: int
    total_ms: float
    stages_ms: dict[str, float]
    """In the order of a request's life; `queue` is split into its known parts and what is left of it."""


class StageGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups, and how the stages of these requests are known."""

    total: str
    """`e2e`, or `ttft`: the stages before the first token."""
    n: int
    groups: list[StageGroup]
    sources: dict[str, dict[str, int]]
    """Stage or part -> source -> requests, in an even sample of the rows."""


def split_queue(table: RecordTable, stages: dict[str, Floats]) -> dict[str, Floats]:
    """`stages` (ms) with `queue` replaced, in place, by its known parts and the rest that nobody split."""
    out: dict[str, Floats] = {}
    for name, values in stages.items():
        if name != "queue":
            out[name] = values
            continue
        parts = {part: np.nan_to_num(table.ms(part), nan=0.0) for part in _PARTS}
        rest = values - sum(parts.values())
        rest = np.where(rest > _ROUNDING_MS, rest, 0.0)
        out |= {part: ms for part, ms in (*parts.items(), (name, rest)) if np.any(ms)}
    return out


def stage_groups(table: RecordTable, total: str = "e2e") -> StageGroups:
    """Groups of the rows that have the total; no groups when none has."""
    table = table.where(~np.isnan(table.ms(total)))
    n = len(table)
    if not n:
        return StageGroups(total=total, n=0, groups=[], sources={})
    stages, whole = stage_columns(table, total)
    stages = split_queue(table, stages)
    means = {name: float(values.mean()) for name, values in stages.items()}
    groups = [StageGroup(name="mean", rows=n, total_ms=float(whole.mean()), stages_ms=means)]
    tail = "p99" if supported(0.99, n) else "slowest"
    for name, p, h in (("p50", 0.5, _MEDIAN_HALF_WIDTH), (tail, 0.99, half_width(0.99, n))):
        near = conditional_stage_mean(stages, whole, p, h)
        groups.append(StageGroup(name=name, rows=near.rows, total_ms=near.total, stages_ms=near.stages))
    sources: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in table.column("stage_sources")[:: max(1, n // _SOURCE_ROWS)]:
        for stage, source in row.items():
            sources[stage][_kind_of_source(source)] += 1
    return StageGroups(
        total=total,
        n=n,
        groups=groups,
        sources={stage: dict(seen) for stage, seen in sources.items()},
    )


def _kind_of_source(source: str) -> str:
    """`reported(field; clamped from 12.6 ms)` -> `reported(field)`: what differs from request to request is no kind."""
    head, remark, _ = source.partition(";")
    return f"{head})" if remark and "(" in head else head
