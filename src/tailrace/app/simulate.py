"""A simulated load test: a workload on the engine in virtual time, written and summarised as a real one is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec

from tailrace import __version__
from tailrace.analyze.bench_summary import summarise
from tailrace.app.governed_simulation import Governance, calls_of, governed_run, lane_objectives
from tailrace.model.errors import InputError
from tailrace.model.measurement import BenchSummary
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import Objectives
from tailrace.simulate.governed import GovernedRun
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.lane_figures import LaneFigures, RefusalFigures, lane_figures, refusal_figures
from tailrace.simulate.presets import Preset
from tailrace.simulate.records import Keep
from tailrace.simulate.request import SimRequest
from tailrace.simulate.run import VirtualRun, from_plan, from_trace
from tailrace.simulate.tries import DecisionNote
from tailrace.store.run_arrival import arrival_of
from tailrace.store.run_file import RunHeader, RunTrailer, RunWriter
from tailrace.store.table import RecordTable
from tailrace.workload.arrivals import ArrivalKind
from tailrace.workload.mix import render_mix, stated
from tailrace.workload.plan import Workload, generators, plan

OnProgress = Callable[[int, float], None]
"""(requests ended, simulated seconds)."""
_PROGRESS_EVERY = 2000


class SimulationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated: an engine, its knobs, and an open-loop workload."""

    preset: Preset
    knobs: EngineKnobs
    workload: Workload
    seed: int = 0
    requests: int | None = None
    """End after so many; a trace ends with itself."""
    duration_ns: int | None = None
    """Nothing arrives after this (simulated time)."""
    time_scale: float = 1.0
    step_overhead_ms: float | None = None
    """The engine's overhead a step instead of the preset's (ms)."""
    prefill_overhead_ms: float = 0.0
    """Further overhead of a step that carries prefill, as fitted from a recorded run (ms)."""
    keep_timelines: Keep = "all"
    objectives: Objectives = msgspec.field(default_factory=Objectives)
    mix_text: str = ""
    governance: Governance | None = None
    """A gateway before the engine; its lanes' objectives are then the run's."""
    keep_decisions: bool = False
    """Of a governed simulation: remember every decision with its time."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    summary: BenchSummary
    counters: dict[str, float]
    simulated_s: float
    cpu_s: float
    lanes: dict[str, LaneFigures] = {}
    """Of a simulation with lanes."""
    refusals: RefusalFigures | None = None
    calls: int = 0
    served_calls: int = 0
    """Calls that got their answer, at whichever try."""
    decisions: list[DecisionNote] = []


def simulate(spec: SimulationSpec, *, out: Path | None = None, on_progress: OnProgress | None = None) -> Simulation:
    """Run the simulation; write the run file `out`, if given, and summarise.

    Raises:
        InputError: a closed-loop workload, one that never ends, or a run file that cannot be written.
    """
    began = time.process_time()
    accelerator = spec.preset.accelerator
    if spec.step_overhead_ms is not None:
        accelerator = msgspec.structs.replace(accelerator, step_s=spec.step_overhead_ms / 1000)
    if spec.prefill_overhead_ms:
        accelerator = msgspec.structs.replace(accelerator, prefill_step_s=spec.prefill_overhead_ms / 1000)
    chosen = msgspec.structs.replace(spec.preset, accelerator=accelerator)
    header = _header(spec)
    run, source = _run(spec, chosen, header.started_unix_ns)
    records: list[RequestRecord] = []
    writer = RunWriter(out, header) if out is not None else None
    try:
        for record in source:
            records.append(record)
            if writer is not None:
                writer.write(record)
            if on_progress is not None and len(records) % _PROGRESS_EVERY == 0:
                on_progress(len(records), run.now_ns / 1e9)
        first = min((record.run_offset_ns or 0 for record in records), default=0)
        trailer = RunTrailer(n=len(records), duration_s=(run.now_ns - first) / 1e9, counters=_counters(run))
        if writer is not None:
            writer.close(trailer)
    finally:
        if writer is not None:
            writer.close()
    summary = summarise(
        RecordTable.from_records(records),
        name=str(out) if out is not None else "",
        objectives=_objectives(spec),
        duration_s=trailer.duration_s,
    )
    cpu_s = time.process_time() - began
    simulation = Simulation(summary=summary, counters=trailer.counters, simulated_s=run.now_ns / 1e9, cpu_s=cpu_s)
    if spec.governance is None or not isinstance(run, GovernedRun):
        return simulation
    last = max((record.run_offset_ns or 0 for record in records if not record.retries), default=0)
    return msgspec.structs.replace(
        simulation,
        lanes=lane_figures(records, spec.governance.policies, max(last - first, 1) / 1e9),
        refusals=refusal_figures(run.refusals),
        calls=run.calls,
        served_calls=run.served_calls,
        decisions=run.decisions,
    )


def _run(
    spec: SimulationSpec, chosen: Preset, unix_ns: int
) -> tuple[VirtualRun | GovernedRun, Iterator[RequestRecord]]:
    """The engine alone, or with a gateway before it, and the records that it will give."""
    cost = chosen.cost(speed=spec.time_scale)
    if spec.governance is None:
        alone = VirtualRun(
            spec.knobs,
            cost,
            model=chosen.model_name,
            backend=chosen.name,
            unix_ns=unix_ns,
            keep_timelines=spec.keep_timelines,
        )
        return alone, alone.records(_requests(spec))
    run = governed_run(
        spec.governance,
        spec.knobs,
        cost,
        model=chosen.model_name,
        backend=chosen.name,
        unix_ns=unix_ns,
        seed=spec.seed,
        keep_timelines=spec.keep_timelines,
        keep_decisions=spec.keep_decisions,
    )
    calls = calls_of(
        spec.workload,
        seed=spec.seed,
        requests=spec.requests,
        duration_ns=spec.duration_ns,
        max_model_len=spec.knobs.max_model_len,
        max_tokens=spec.governance.max_tokens,
    )
    return run, run.records(calls)


def _requests(spec: SimulationSpec) -> Iterator[SimRequest]:
    workload = spec.workload
    if workload.arrivals.kind is ArrivalKind.CLOSED:
        raise InputError("a simulation needs arrivals", place="--rate", remedy="Give --rate 5, or --trace FILE.")
    requests: Iterator[SimRequest]
    if workload.arrivals.kind is ArrivalKind.TRACE:
        requests = from_trace(workload.trace)
    else:
        if spec.requests is None and spec.duration_ns is None:
            raise InputError("the workload never ends", place="--requests", remedy="Give --requests or --duration.")
        requests = from_plan(plan(workload, generators(spec.seed)), max_model_len=spec.knobs.max_model_len)
    if spec.requests is not None:
        requests = islice(requests, spec.requests)
    if spec.duration_ns is not None:
        end = spec.duration_ns * 1000
        requests = takewhile(lambda request: request.arrival < end, requests)
    return requests


def _objectives(spec: SimulationSpec) -> Objectives:
    return spec.objectives if spec.governance is None else lane_objectives(spec.governance.policies)


def _header(spec: SimulationSpec) -> RunHeader:
    arrivals = spec.workload.arrivals
    knobs: dict[str, Any] = {"preset": spec.preset.name, **msgspec.structs.asdict(spec.knobs)}
    if spec.time_scale != 1.0:
        knobs["time_scale"] = spec.time_scale
    if spec.step_overhead_ms is not None:
        knobs["step_overhead_ms"] = spec.step_overhead_ms
    if spec.prefill_overhead_ms:
        knobs["prefill_overhead_ms"] = spec.prefill_overhead_ms
    if spec.governance is not None:
        knobs["governed"] = spec.governance.governed
        knobs["engines"] = len(spec.governance.engines)
        knobs["lanes"] = [
            {"name": one.name, "running": one.running, "queued": one.queued, "priority": one.priority}
            for one in spec.governance.policies
        ]
    return RunHeader(
        version=__version__,
        kind="simulate",
        target=spec.preset.name,
        model=spec.preset.model_name,
        started_unix_ns=time.time_ns(),
        arrival=arrival_of(arrivals, spec.seed),
        mix=spec.mix_text or (render_mix(spec.workload.mix) if spec.workload.mix else ""),
        classes=stated(spec.workload.mix),
        knobs=knobs,
        objectives=_objectives(spec),
        notes=["simulated: no engine was measured; times are a model's"],
    )


def _counters(run: VirtualRun | GovernedRun) -> dict[str, float]:
    """Of all engines together; busy time is that of the busiest."""
    parts = [run.counters] if isinstance(run, VirtualRun) else [seat.engine.counters for seat in run.seats]
    return {
        "steps": float(sum(part.steps for part in parts)),
        "computed_tokens": float(sum(part.computed_tokens for part in parts)),
        "generation_tokens": float(sum(part.generation_tokens for part in parts)),
        "preemptions": float(sum(part.preemptions for part in parts)),
        "prefix_hit_tokens": float(sum(part.prefix_hit_tokens for part in parts)),
        "refused": float(sum(part.refused for part in parts)),
        "busy_s": max(part.busy_ps for part in parts) / 1e12,
        "queue_s": sum(part.queue_ps for part in parts) / 1e12,
    }
