"""Goodput: which requests met every objective, in all and by class, each class by its own objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.counted import completed, left_by_plan
from tailrace.analyze.objective_waits import objective_ms
from tailrace.model.measurement import Attainment
from tailrace.model.thresholds import MS, Objectives
from tailrace.stats.quantiles import wilson_interval
from tailrace.store.table import RecordTable

__all__ = ["ALL", "Throughput", "attainments", "met_objectives", "throughput"]

Floats = NDArray[np.float64]

ALL = "all"
"""The key of all requests together, beside the names of classes."""


class Throughput(NamedTuple):
    """What got done a second."""

    requests_per_s: float
    tokens_per_s: float
    goodput_per_s: float


def throughput(table: RecordTable, objectives: Objectives, duration_s: float) -> Throughput:
    """The rates of a table's completed requests over `duration_s`; zeros where that is 0."""
    if not duration_s:
        return Throughput(0.0, 0.0, 0.0)
    done = completed(table)
    tokens = float(np.nansum(table.column("output_tokens")[done]))
    good = int(met_objectives(table, objectives).sum())
    return Throughput(int(done.sum()) / duration_s, tokens / duration_s, good / duration_s)


def met_objectives(table: RecordTable, objectives: Objectives) -> NDArray[np.bool_]:
    """Which requests completed within every bound.

    A bound at a quantile binds each request with the bound itself (the strictest of a metric's), counted from the time
    at which it was meant to be sent, where that is known. A completed stream
    without a first token missed; a metric that cannot exist for a request (TPOT of a single token) binds nothing.
    A class's own bounds on a metric (`"documents/ttft"`) stand in the place of those for all, as a lane's do in the
    gateway.
    """
    met = completed(table)
    lanes = table.column("lane").astype(str)
    for metric, bounds in objectives.bounds.items():
        lane, _, name = metric.rpartition("/")
        if not bounds:
            continue
        if lane:
            bound = lanes == lane
        else:
            own = [other.rpartition("/")[0] for other, at in objectives.bounds.items() if at and _is_own(other, name)]
            bound = ~np.isin(lanes, own)
        met &= ~bound.astype(bool) | _within(table, name, min(bounds.values()))
    return met


def _is_own(metric: str, name: str) -> bool:
    lane, _, plain = metric.rpartition("/")
    return bool(lane) and plain == name


def attainments(table: RecordTable, objectives: Objectives, duration_s: float) -> dict[str, Attainment]:
    """`all`, then every class of which there are several. What the load itself gave up neither met nor missed."""
    judged = table.where(~left_by_plan(table))
    met = met_objectives(judged, objectives)
    lanes = judged.column("lane").astype(str)
    everyone = [(ALL, np.ones(len(judged), dtype=bool))]
    names = np.unique(lanes)
    each = [(str(name), (lanes == name).astype(bool)) for name in names] if names.size > 1 else []
    bounds = objectives.bounds
    out: dict[str, Attainment] = {}
    for name, rows in (*each, *everyone):
        own = {metric.rpartition("/")[2]: at for metric, at in bounds.items() if metric.rpartition("/")[0] == name}
        shared = {metric: at for metric, at in bounds.items() if "/" not in metric}
        applied = {**shared, **{metric: at for metric, at in own.items() if at}}
        n, good = int(rows.sum()), int(met[rows].sum())
        interval = wilson_interval(good, n)
        out[name] = Attainment(
            n=n,
            met=good,
            share=good / n if n else None,
            ci=None if interval is None else list(interval),
            goodput_per_s=good / duration_s if duration_s else 0.0,
            objectives=_named(applied if name != ALL else bounds),
        )
    return {ALL: out[ALL], **{name: one for name, one in out.items() if name != ALL}}


def _named(bounds: Mapping[str, Mapping[float, int]]) -> dict[str, dict[str, float]]:
    return {
        metric: {f"p{p * 100:g}".replace(".", ""): bound / MS for p, bound in at.items()}
        for metric, at in bounds.items()
        if at
    }


def _within(table: RecordTable, metric: str, bound_ns: int) -> NDArray[np.bool_]:
    values = objective_ms(table, metric, intended=True) * 1e6
    streamed = table.column("stream").astype(bool)
    absent = np.isnan(values)
    ok: NDArray[np.bool_] = np.where(absent, (metric != "ttft") | ~streamed, values <= bound_ns)
    return ok
