"""Objectives as they bind requests: which share of whom must keep what, and what each request waited."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.counted import completed, left_by_plan
from tailrace.model.measurement import ObjectiveResult
from tailrace.model.thresholds import MS, Objectives
from tailrace.stats.quantiles import supported, wilson_interval
from tailrace.store.table import RecordTable

__all__ = ["Bounds", "bounds_of", "judge_objectives", "objective_ms", "waits_of"]

Floats = NDArray[np.float64]

_FROM_SCHEDULE: Final = frozenset({"ttft", "ttft_content", "first_partial", "e2e", "e2e_last_token"})
"""What a user waits for from the moment at which the request was meant to be sent."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """One objective: a share of the requests (of a class, if named) keeps a metric within a bound."""

    metric: str
    lane: str
    share: float
    bound_ns: int

    def __str__(self) -> str:
        lane = f"{self.lane}/" if self.lane else ""
        return f"{lane}{self.metric} p{self.share * 100:g} ≤ {self.bound_ns / MS:g} ms"


def bounds_of(objectives: Objectives) -> list[Bounds]:
    """Every bound of the objectives."""
    return [
        Bounds(metric=name.rpartition("/")[2], lane=name.rpartition("/")[0], share=share, bound_ns=bound)
        for name, bounds in objectives.bounds.items()
        for share, bound in bounds.items()
    ]


def objective_ms(table: RecordTable, metric: str, *, intended: bool = False) -> Floats:
    """What an objective on `metric` binds in each request (ms): of the chunk gaps the longest, so that all keep it.

    With `intended`, waits count from the time at which a request was meant to be sent, where the records know one.
    """
    values = table.ms("chunk_gap_max" if metric == "chunk_gap" else metric)
    if intended and metric in _FROM_SCHEDULE:
        values = values + np.nan_to_num(table.column("intended_to_sent_ns").astype(np.float64)) / MS
    return values


def waits_of(table: RecordTable, one: Bounds) -> Floats:
    """The waits (ms, from the intended time) that an objective binds, in the table's order; a failure waits for ever.

    A stream without a first token missed; a metric that cannot exist for a request (TPOT of one token) binds nothing.
    """
    if one.lane:
        table = table.where((table.column("lane") == one.lane).astype(bool))
    done = completed(table)
    waits = objective_ms(table, one.metric, intended=True).astype(np.float64).copy()
    missing = np.isnan(waits)
    lost = missing & (table.column("stream").astype(bool) if one.metric == "ttft" else np.zeros(len(table), dtype=bool))
    waits[~done | lost] = np.inf
    bound: Floats = waits[~(missing & done & ~lost)]
    return bound


def judge_objectives(table: RecordTable, objectives: Objectives) -> dict[str, ObjectiveResult]:
    """Each objective: which share kept it. A share that is large enough is proof only where n supports the quantile."""
    table = table.where(~left_by_plan(table))
    out = {}
    for one in bounds_of(objectives):
        waits = waits_of(table, one)
        n, kept = int(waits.size), int((waits <= one.bound_ns / MS).sum())
        interval = wilson_interval(kept, n)
        met: bool | None = None
        if n and kept < one.share * n:
            met = False
        elif supported(one.share, n):
            met = True
        out[str(one)] = ObjectiveResult(
            n=n,
            asked=one.share,
            share=kept / n if n else None,
            ci=None if interval is None else list(interval),
            met=met,
        )
    return out
