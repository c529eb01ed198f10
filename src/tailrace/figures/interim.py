"""Stand-ins for `tailrace.analyze` until its modules are here."""

from __future__ import annotations

import numpy as np
import msgspec

from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, STAGES
from tailrace.store.table import RecordTable


class StageBar(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    n: int
    total_ms: float
    stages: dict[str, float]


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    bars: list[StageBar]
    sources: dict[str, dict[str, int]]


PARTS = (QUEUE_GATEWAY, QUEUE_ENGINE)


def stage_columns(table: RecordTable) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for stage in STAGES:
        if stage == "queue":
            parts = {p: np.nan_to_num(table.ms(p)) for p in PARTS}
            rest = np.nan_to_num(table.ms("queue")) - sum(parts.values())
            out |= parts
            out["queue"] = np.maximum(rest, 0)
        else:
            out[str(stage)] = np.nan_to_num(table.ms(stage))
    return {k: v for k, v in out.items() if v.any()}


def decompose(table: RecordTable) -> Decomposition:
    done = table.where(table.column("outcome") == "completed")
    n = len(done)
    cols = stage_columns(done)
    total = done.ms("e2e")
    bars = []
    if n:
        bars.append(StageBar(name="mean", n=n, total_ms=float(total.mean()), stages={k: float(v.mean()) for k, v in cols.items()}))
        order = np.argsort(total, kind="stable")
        for label, p, h in (("p50", 0.5, 0.025), ("p99", 0.99, 0.005)):
            lo = max(0, int((p - h) * n))
            hi = min(n, max(lo + 1, int((p + h) * n)))
            rows = order[lo:hi]
            bars.append(StageBar(name=label, n=len(rows), total_ms=float(total[rows].mean()), stages={k: float(v[rows].mean()) for k, v in cols.items()}))
    sources: dict[str, dict[str, int]] = {}
    for row in done.column("stage_sources"):
        for stage, source in row.items():
            per = sources.setdefault(stage, {})
            per[source] = per.get(source, 0) + 1
    return Decomposition(n=n, bars=bars, sources=sources)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    prompt: int
    output: int
    n: int
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float


class TailTable(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    n: int
    unknown: int
    prompt_edges: list[int]
    output_edges: list[int]
    cells: list[Cell]


def tail_by_length(table: RecordTable, metric: str) -> TailTable:
    pe = [0, 256, 1024, 4096, 16384]
    oe = [0, 64, 256, 1024]
    done = table.where(table.column("outcome") == "completed")
    p, o, v = done.column("prompt_tokens"), done.column("output_tokens"), done.ms(metric)
    known = ~(np.isnan(p) | np.isnan(o) | np.isnan(v))
    p, o, v = p[known], o[known], v[known]
    pi, oi = np.searchsorted(pe, p, "right") - 1, np.searchsorted(oe, o, "right") - 1
    cells = []
    for i in range(len(pe)):
        for j in range(len(oe)):
            x = v[(pi == i) & (oi == j)]
            if len(x):
                cells.append(Cell(prompt=i, output=j, n=len(x), max_ms=float(x.max()),
                    p95_ms=float(np.quantile(x, .95)) if len(x) >= 100 else None,
                    p99_ms=float(np.quantile(x, .99)) if len(x) >= 500 else None))
    return TailTable(metric=metric, n=len(v), unknown=int((~known).sum()), prompt_edges=pe, output_edges=oe, cells=cells)


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    counts: dict[str, dict[str, int]]
    outcomes: dict[str, str]


def failures(table: RecordTable) -> Failures:
    counts: dict[str, dict[str, int]] = {}
    outcomes: dict[str, str] = {}
    for outcome, reason, stage in zip(table.column("outcome"), table.column("reason"), table.column("died_in"), strict=True):
        if outcome != "completed":
            per = counts.setdefault(reason, {})
            per[stage or "unknown"] = per.get(stage or "unknown", 0) + 1
            outcomes[reason] = outcome
    return Failures(n=len(table), counts=counts, outcomes=outcomes)
