"""Sweeps and searches: one load test after the other, each a whole run with its own warm-up, in one directory.

A point begins when every answer of the one before has come, and a moment later: the server has nothing left to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tailrace import __version__
from tailrace.analyze.bench_summary import completed, measured
from tailrace.analyze.objective_waits import Bounds, bounds_of, waits_of
from tailrace.analyze.rate_search import Outcome, RateSearch, Trial, outcome_of
from tailrace.analyze.saturation import saturation
from tailrace.analyze.timebase import starts_ns
from tailrace.app.bench import BenchResult
from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.probe.spec import BenchSpec
from tailrace.store.run_file import Run, read_run
from tailrace.store.sweep import Sweep, SweepRun, is_sweep, write_sweep
from tailrace.store.table import RecordTable
from tailrace.workload.axis import Axis, arrivals_at

__all__ = ["Bounds", "SearchPlan", "bounds_of", "make_directory", "outcomes", "search", "sweep"]

Measure = Callable[[BenchSpec, Path], BenchResult]
"""Runs one load test into a file: `app.bench.bench` with its progress and processes."""
OnPoint = Callable[[SweepRun], None]

REST_S: Final = 1.0
"""Between a point's last answer and the next point."""
_WARM_SHARE: Final = 0.2
_WARM_MOST_S: Final = 30.0
_NO_GAIN: Final = 0.03
"""A closed loop that completes no more than this beyond what fewer workers did is saturated."""
_LIMITED: Final = 3
"""Trials of a search in which the load generator may be the limit before the search gives up."""
_LIMITED_WORDS: Final = "the load generator was the limit"


def make_directory(path: Path) -> Path:
    """The directory of a sweep, made if need be. InputError where there is something else, or a sweep already."""
    if path.exists() and (not path.is_dir() or is_sweep(path) or any(path.iterdir())):
        what = "is a file" if not path.is_dir() else "has a sweep in it" if is_sweep(path) else "is not empty"
        raise InputError(f"{what}", place=str(path), remedy="Give --out a new directory for the sweep")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made ({error.strerror})", place=str(path), remedy="Choose another --out") from None
    return path


def sweep(
    spec: BenchSpec, axis: Axis, directory: Path, measure: Measure, *, on_point: OnPoint | None = None,
    rest_s: float = REST_S,
) -> Sweep:  # fmt: skip
    """Measure each point in turn, until one is beyond what the server or the client can do; `stopped` says why."""
    specs = [point_spec(spec, axis.name, value) for value in axis.values]
    done = Sweep(version=__version__, axis=axis.name, started_unix_ns=time.time_ns(), asked=list(axis.values))
    for number, (value, one) in enumerate(zip(axis.values, specs, strict=True)):
        if number:
            time.sleep(rest_s)
        point, result = _point(one, axis.name, value, directory, measure, number)
        if point is not None and point.summary.client.limited and not result.interrupted:
            # A busy moment of this machine is no reason to end a sweep; two in a row are.
            time.sleep(rest_s)
            point, result = _point(one, axis.name, value, directory, measure, number)
        if point is None:
            return _stop(done, directory, "interrupted")
        why = _beyond(point, done.runs, axis.name)
        point = msgspec.structs.replace(point, saturated=why) if why else point
        done = _add(done, point, directory)
        if on_point is not None:
            on_point(point)
        stopped = _why_stop(point, result)
        if stopped:
            return _stop(done, directory, stopped if number < len(specs) - 1 or result.interrupted else "")
    return done


def point_spec(spec: BenchSpec, axis: str, value: float) -> BenchSpec:
    """The load test of one point, with a warm-up of its own where none was asked for."""
    workload = msgspec.structs.replace(spec.workload, arrivals=arrivals_at(spec.workload.arrivals, axis, value))
    warm = spec.warmup_ns
    if not spec.warmup_requests and not warm and spec.duration_ns is not None:
        warm = round(min(_WARM_SHARE * spec.duration_ns, _WARM_MOST_S * S))
    return msgspec.structs.replace(spec, workload=workload, warmup_ns=warm)


def _point(
    spec: BenchSpec, axis: str, value: float, directory: Path, measure: Measure, number: int
) -> tuple[SweepRun | None, BenchResult]:
    name = f"{number + 1:02d}-{axis}-{value:g}.run"
    result = measure(spec, directory / name)
    run = read_run(directory / name)
    if not run.records:
        return None, result
    duration = run.trailer.duration_s if run.trailer else 0.0
    found = saturation(run.table()) if spec.workload.arrivals.open_loop else None
    point = SweepRun(
        value=value,
        run=name,
        summary=result.summary,
        duration_s=duration,
        saturated="" if found is None else found.why,
    )
    return point, result


def _beyond(point: SweepRun, before: list[SweepRun], axis: str) -> str:
    if axis == "rate" or point.saturated or not before:
        return point.saturated
    best = max(before, key=lambda one: one.summary.requests_per_s)
    if point.summary.requests_per_s > best.summary.requests_per_s * (1 + _NO_GAIN):
        return ""
    if len(before) < 2 or before[-1].summary.requests_per_s > best.summary.requests_per_s:
        return ""
    return f"{point.value:g} at once completed no more a second than {best.value:g} did"


def _why_stop(point: SweepRun, result: BenchResult) -> str:
    if result.interrupted:
        return "interrupted"
    if point.summary.client.limited:
        return f"{_LIMITED_WORDS} at {point.value:g}: {point.summary.client.why}"
    if point.saturated:
        return f"saturated at {point.value:g}: {point.saturated}"
    return ""


def _add(done: Sweep, point: SweepRun, directory: Path) -> Sweep:
    if not done.runs:
        header = read_run(directory / point.run).header
        done = msgspec.structs.replace(done, target=header.target, model=header.model)
    done = msgspec.structs.replace(done, runs=[*done.runs, point])
    write_sweep(directory, done)
    return done


def _stop(done: Sweep, directory: Path, why: str) -> Sweep:
    done = msgspec.structs.replace(done, stopped=why)
    write_sweep(directory, done)
    return done


# -- search


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched, and how far the search may go."""

    axis: str = "rate"
    start: float = 1.0
    most: float = math.inf
    budget_s: float = 600.0
    precision: float = 0.05


def outcomes(run: Run, bounds: list[Bounds]) -> list[Outcome]:
    """What a run says of each objective. In an open loop waits count from the intended time; a failure is a miss."""
    table = measured(run.table())
    table = table.where(np.argsort(starts_ns(table), kind="stable")) if len(table) else table
    return [_outcome(table, one) for one in bounds]


def _outcome(table: RecordTable, one: Bounds) -> Outcome:
    return outcome_of(waits_of(table, one), one.bound_ns / 1e6, one.share)


def search(
    spec: BenchSpec, plan: SearchPlan, directory: Path, measure: Measure, *, on_point: OnPoint | None = None,
    rest_s: float = REST_S,
) -> Sweep:  # fmt: skip
    """Find the highest load that meets the spec's objectives; `found` is the answer with its interval."""
    bounds = bounds_of(spec.objectives)
    machine = RateSearch(
        [one.share for one in bounds],
        start=plan.start,
        most=plan.most,
        budget_s=plan.budget_s,
        precision=plan.precision,
        whole=plan.axis == "concurrency",
    )
    done = Sweep(version=__version__, kind="search", axis=plan.axis, started_unix_ns=time.time_ns())
    stopped = ""
    number = limited = 0
    while not stopped and (trial := machine.next()) is not None:
        if number:
            time.sleep(rest_s)
        began = time.monotonic()
        one = _trial_spec(spec, plan.axis, trial, number)
        point, result = _point(one, plan.axis, trial.value, directory, measure, number)
        number += 1
        if point is None:
            stopped = "interrupted"
            break
        run = read_run(directory / point.run)
        client = point.summary.client
        took = time.monotonic() - began
        if result.interrupted:
            stopped = "interrupted"
        elif client.limited:
            # Nothing can be said from such a run; it counts as time, and may be tried again.
            machine.left_s -= took
            limited += 1
            if limited > _LIMITED:
                stopped = f"{_LIMITED_WORDS} at {trial.value:g}: {client.why}"
        else:
            standing = machine.take(trial, outcomes(run, bounds), took)
            _settle(machine, run)
            point = msgspec.structs.replace(point, standing=standing.value)
        done = _add(done, point, directory)
        if on_point is not None:
            on_point(point)
    found = msgspec.to_builtins(machine.found())
    found |= {
        "why": stopped or found["why"],
        "objectives": [str(one) for one in bounds],
        "loads": machine.describe(),
    }
    return _finish(done, directory, found, stopped)


def _finish(done: Sweep, directory: Path, found: dict[str, object], stopped: str) -> Sweep:
    done = msgspec.structs.replace(done, found=found, stopped=stopped)
    write_sweep(directory, done)
    return done


def _trial_spec(spec: BenchSpec, axis: str, trial: Trial, number: int) -> BenchSpec:
    """A trial: so long, after a warm-up, from a seed of its own, so that repeats are new requests."""
    warm = round(max(2.0, min(_WARM_SHARE * trial.seconds, _WARM_MOST_S)) * S)
    one = msgspec.structs.replace(
        spec,
        seed=spec.seed + number,
        requests=None,
        duration_ns=round(trial.seconds * S),
        warmup_requests=0,
        warmup_ns=spec.warmup_ns or warm,
    )
    return point_spec(one, axis, trial.value)


def _settle(machine: RateSearch, run: Run) -> None:
    """A trial that is to prove something lasts ten answers at least: a queue needs that long to show itself."""
    table = measured(run.table())
    done = table.where(completed(table))
    if len(done):
        machine.settled_s = max(machine.settled_s, min(120.0, 10 * float(np.median(done.column("e2e_ns"))) / 1e9))
