"""Running the load generator inside a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tailrace.model.measurement import BenchSummary
from tailrace.model.record import broken_invariants
from tailrace.model.thresholds import MS
from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec, Limits
from tailrace.store.run_file import Run, read_run
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload


def spec_for(url: str, *, mix: str = "a=10/3", rate: float | None = None, **more: Any) -> BenchSpec:
    """A closed loop of one worker and three requests, unless said otherwise."""
    kind = more.pop("kind", ArrivalKind.CLOSED if rate is None else ArrivalKind.CONSTANT)
    concurrency = more.pop("concurrency", 1 if rate is None else None)
    limits = Limits(**{f"{name}_ns": round(more.pop(f"{name}_ms") * MS) for name in _LIMITS if f"{name}_ms" in more})
    workload = Workload(arrivals=Arrivals(kind=kind, rate=rate, concurrency=concurrency), mix=parse_mix(mix))
    given = {"model": "m", "requests": 3, "chars_per_token": 4.0, "limits": limits, "workload": workload} | more
    return BenchSpec(url=url, **given)


_LIMITS = ("connect", "first_token", "idle", "total", "done_grace")


class Result(msgspec.Struct):
    summary: BenchSummary
    run: Run

    @property
    def records(self):
        return self.run.records

    @property
    def counters(self):
        assert self.run.trailer is not None
        return self.run.trailer.counters


def run(spec: BenchSpec, folder: Path, **more: Any) -> Result:
    """Run `spec` to its end; every record of the run file is sound."""
    out = folder / "probe.run"
    summary = uvloop.run(run_bench(spec, out=out, **more))
    whole = read_run(out)
    assert [broken for record in whole.records for broken in broken_invariants(record)] == []
    assert whole.trailer is not None
    assert whole.trailer.n == len(whole.records)
    return Result(summary, whole)
