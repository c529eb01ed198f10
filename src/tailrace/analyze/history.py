"""Many runs of the same work in the order of time: levels, and where they changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.analyze.bench_summary import summarise_run
from tailrace.analyze.other_changes import work_of
from tailrace.model.errors import InputError
from tailrace.model.measurement import BenchSummary
from tailrace.stats.change_points import MIN_VALUES, change_points, noise
from tailrace.store.history_file import HistoryPoint
from tailrace.store.run_file import Run

__all__ = ["DEFAULT_METRICS", "History", "LevelChange", "MetricHistory", "as_json", "history", "point_of"]

DEFAULT_METRICS: Final = ("ttft_ms.p50", "ttft_ms.p99", "chunk_gap_ms.p99", "e2e_ms.p99", "tokens_per_s", "error_rate")
_MORE_IS_BETTER: Final = frozenset({"tokens_per_s", "requests_per_s", "goodput_per_s"})
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
RECENT: Final = 5
"""A change within this many of the last runs is news."""


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of level: the first run of the new one, and what changed."""

    index: int
    """Place among the runs of its series, 0 the oldest."""
    run: str
    label: str
    started_unix_ns: int
    before: float
    after: float
    """Geometric means of the levels on both sides (of `error_rate`: shares)."""
    change_pct: float
    worse: bool
    runs_since: int
    """Runs on the new level, this one included."""


class MetricHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one series of runs."""

    metric: str
    values: list[float | None]
    """One a run; `None` where the run cannot tell (too few requests for the quantile)."""
    noise_pct: float | None = None
    """Standard deviation of a run about its level."""
    changes: list[LevelChange] = []
    missing: str = ""
    """Why no changes were looked for, where none were."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one work."""

    work: str
    runs: list[HistoryPoint]
    metrics: list[MetricHistory]

    def regressions(self, recent: int = RECENT) -> list[tuple[str, LevelChange]]:
        """(metric, change) of every last change that made it worse and lies within the last `recent` runs."""
        last = [(metric.metric, metric.changes[-1]) for metric in self.metrics if metric.changes]
        return [(name, change) for name, change in last if change.worse and change.runs_since <= recent]


def point_of(run: Run, *, label: str = "") -> HistoryPoint:
    """Reduce a run to its point."""
    header = run.header
    summary = summarise_run(run)
    arrival = header.arrival
    load = f"{arrival.kind} {arrival.rate:g}/s" if arrival.rate is not None else arrival.kind
    if arrival.concurrency is not None:
        load += f" x{arrival.concurrency}"
    # A plain load keeps the words that histories began with; whatever else makes it another load is added.
    load += f" '{arrival.shape}'" if arrival.shape else ""
    load += f" burstiness {arrival.burstiness:g}" if arrival.burstiness is not None else ""
    load += f", {arrival.clients}" if arrival.clients else ""
    special = [one for one in work_of(header).values() if one != "plain"]
    return HistoryPoint(
        run=run.path.rpartition("/")[2],
        started_unix_ns=header.started_unix_ns,
        work=" · ".join(part for part in (header.model or "model unknown", load, header.mix, *special) if part),
        n=summary.n,
        values=_values(summary),
        label=label,
        limited=summary.client.limited,
    )


def _values(summary: BenchSummary) -> dict[str, float]:
    out = {name: float(getattr(summary, name)) for name in sorted(_MORE_IS_BETTER)}
    if summary.n:
        out["error_rate"] = sum(summary.errors.values()) / summary.n
    for name, metric in {**summary.metrics, **summary.from_schedule}.items():
        for statistic in _STATISTICS:
            value: float | None = getattr(metric, statistic)
            if value is not None:
                out[f"{name}.{statistic}"] = round(value, 4)
    return out


def history(points: Sequence[HistoryPoint], metrics: Sequence[str] = DEFAULT_METRICS) -> list[History]:
    """The series in `points`, one a work, the one with most runs first; a run that occurs twice counts once.

    Raises `InputError` for a metric that no run has.
    """
    known = {name for point in points for name in point.values}
    for name in metrics:
        if name not in known and metrics is not DEFAULT_METRICS:
            some = ", ".join(sorted(known)[:8])
            raise InputError(f"no run has {name!r}", place="--metric", remedy=f"They have {some}, …")
    unique = {point.identity: point for point in points}
    groups: dict[str, list[HistoryPoint]] = {}
    for point in sorted(unique.values(), key=lambda point: point.started_unix_ns):
        groups.setdefault(point.work, []).append(point)
    return [
        History(work=work, runs=runs, metrics=[_series(name, runs) for name in metrics if name in known])
        for work, runs in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _series(name: str, runs: Sequence[HistoryPoint]) -> MetricHistory:
    values = [point.values.get(name) for point in runs]
    used = [i for i, value in enumerate(values) if value is not None and not runs[i].limited]
    at = np.array([_scaled(name, runs[i]) for i in used])
    spread = None if len(used) < 3 else round(math.expm1(noise(at)) * 100, 2)
    if len(used) < MIN_VALUES:
        have = "run has" if len(used) == 1 else "runs have"
        why = f"{len(used)} {have} it; a change of level is looked for from {MIN_VALUES} on"
        return MetricHistory(metric=name, values=values, noise_pct=spread, missing=why)
    edges = [0, *change_points(at), len(used)]
    changes = []
    for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = float(at[low:middle].mean()), float(at[middle:high].mean())
        point = runs[used[middle]]
        changes.append(
            LevelChange(
                index=used[middle],
                run=point.run,
                label=point.label,
                started_unix_ns=point.started_unix_ns,
                before=math.exp(before),
                after=math.exp(after),
                change_pct=round(math.expm1(after - before) * 100, 2),
                worse=(after < before) if name in _MORE_IS_BETTER else (after > before),
                runs_since=len(used) - middle,
            )
        )
    return MetricHistory(metric=name, values=values, noise_pct=spread, changes=changes)


def _scaled(name: str, point: HistoryPoint) -> float:
    """Logarithm, because noise is relative. A rate of errors may be 0: half an error is added, as Jeffreys would."""
    value = point.values[name]
    if name == "error_rate":
        return math.log((value * point.n + 0.5) / (point.n + 1.0))
    return math.log(max(value, 1e-6))


def as_json(found: Sequence[History]) -> dict[str, Any]:
    """What `tailrace history --json` prints."""
    return {"schema": 1, "histories": msgspec.to_builtins(list(found))}
