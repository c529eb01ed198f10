"""One load test from its spec to its run file and summary."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

import msgspec
import numpy as np

from tailrace import __version__
from tailrace.model.conditions import Conditions
from tailrace.model.errors import TailraceError
from tailrace.model.measurement import BenchSummary
from tailrace.probe.conditions import conditions_of
from tailrace.probe.engine_scrape import Scraping, scraping
from tailrace.probe.generator import generate
from tailrace.probe.health import check_open_files
from tailrace.probe.progress import OnProgress, Progress
from tailrace.probe.shares import processes_for
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target, find_target
from tailrace.store.run_arrival import arrival_of
from tailrace.store.run_file import RunHeader, RunTrailer, RunWriter, read_run
from tailrace.workload.arrivals import ArrivalKind
from tailrace.workload.mix import render_mix, stated
from tailrace.workload.prefix import MOST


class Interrupted(TailraceError):  # noqa: N818  (named for what happened)
    """The run was stopped before its first request was sent; there is no run file."""


async def run_bench(
    spec: BenchSpec,
    *,
    out: str | Path,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
    processes: int = 1,
) -> BenchSummary:
    """Run a load test, write every request and event to the run file `out`, and summarise it.

    `stop`, once set, ends the run within a moment: requests under way are recorded as cancelled by the operator, and
    the trailer says that the run was interrupted. Raises `TargetError` when the target does not answer as it should
    and `InputError` for limits of this machine, both before any load; `Interrupted` when `stop` came that early.

    `processes` generate the load: 1 is this one, more are children of it, `AUTO` is what `processes_for` says. Their
    part run files stand beside `out` until they are merged into it.
    """
    stop = stop or asyncio.Event()
    out = Path(out)
    count = processes_for(spec, processes)
    if not spec.nonce:
        # Not part of the seed: two runs of one workload must not answer each other from a prefix cache.
        spec = msgspec.structs.replace(spec, nonce=secrets.token_hex(4))
    if on_progress is not None:
        on_progress(Progress(phase="look"))
    if count == 1:
        room = check_open_files(spec.workers)
        target, conditions = await _look(spec, stop)
        with RunWriter(out, header_of(spec, target, conditions)) as file:
            async with scraping(spec, target, file.write_state, on_progress) as (scrapes, watch):
                share = await generate(spec, target, file, room=room, stop=stop, on_progress=watch)
            file.close(_trailer(share.trailer(), scrapes))
        return _summary(out)
    from tailrace.probe.merge import merge, remove  # noqa: PLC0415  (one process is on its way without them)
    from tailrace.probe.processes import Processes  # noqa: PLC0415

    async with Processes(count) as workers:
        target, conditions = await _look(spec, stop)
        header = header_of(spec, target, conditions)
        header = msgspec.structs.replace(header, notes=[*header.notes, f"{count} processes sent the load"])
        paths = [out.with_name(f"{out.name}.part-{number + 1}") for number in range(count)]
        with RunWriter(out, header) as file:
            async with scraping(spec, target, file.write_state, on_progress) as (scrapes, watch):
                parts = await workers.run(spec, target, header, paths, stop=stop, on_progress=watch)
            file.close(_trailer(merge(parts, file), scrapes))
        remove(parts)
    return _summary(out)


def _summary(out: Path) -> BenchSummary:
    # Now, and not on the way to the first request.
    from tailrace.analyze.bench_summary import summarise_run  # noqa: PLC0415

    return summarise_run(read_run(out))


def _trailer(trailer: RunTrailer, scrapes: Scraping) -> RunTrailer:
    counts = {"engine_scrapes": float(scrapes.seen), "engine_scrapes_missed": float(scrapes.missed)}
    notes = [*trailer.notes, f"engine state: {scrapes.note}"] if scrapes.note else trailer.notes
    return msgspec.structs.replace(trailer, counters={**trailer.counters, **counts}, notes=notes)


async def _ask(spec: BenchSpec) -> tuple[Target, Conditions]:
    target = await find_target(spec)
    return target, await conditions_of(spec, target)


async def _look(spec: BenchSpec, stop: asyncio.Event) -> tuple[Target, Conditions]:
    look = asyncio.ensure_future(_ask(spec))
    watch = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((look, watch), return_when=asyncio.FIRST_COMPLETED)
        if look.done():
            return look.result()
        raise Interrupted("interrupted before the first request was sent")
    finally:
        for task in (look, watch):
            task.cancel()
        await asyncio.gather(look, watch, return_exceptions=True)


def header_of(spec: BenchSpec, target: Target, conditions: Conditions) -> RunHeader:
    """What the run file says about the run."""
    arrivals = spec.workload.arrivals
    chars_per_token, overhead = target.calibration
    origin = "counted by the server" if target.calibrated else "assumed"
    if target.options.state_prompt_tokens and not spec.template:
        origin = "assumed; the simulated engine is told the planned number"
    notes = [
        *spec.notes,
        *spec.workload.trace_notes,
        *target.notes,
        f"prompts: {chars_per_token:.2f} characters a token and {overhead:.0f} tokens of overhead ({origin})",
    ]
    notes += _too_long(spec, target)
    notes += _out_of_reach(spec)
    if arrivals.kind is ArrivalKind.GAMMA or arrivals.shape is not None or arrivals.clients is not None:
        notes.append(str(arrivals))
    if spec.part != (0, 1):
        notes.append(f"part {spec.part[0] + 1} of {spec.part[1]}")
    return RunHeader(
        version=__version__,
        kind="bench",
        target=target.url,
        model=target.options.model,
        started_unix_ns=time.time_ns(),
        arrival=arrival_of(arrivals, spec.seed),
        mix=spec.mix_text or (render_mix(spec.workload.mix) if spec.workload.mix else ""),
        classes=stated(spec.workload.mix),
        objectives=spec.objectives,
        notes=notes,
        conditions=conditions,
    )


def _out_of_reach(spec: BenchSpec) -> list[str]:
    """A note for each class whose prefixes are used too seldom for the share that was asked for."""
    each = [(f"class {one.name}: ", one.traits.prefixes) for one in spec.workload.mix]
    return [
        f"{name}so few requests for {prefixes.pool} prefixes let a cache find {MOST / prefixes.scale:.0%} "
        f"of the prompt tokens at most, not {prefixes.hit:.0%}: send more, or share fewer"
        for name, prefixes in [*each, ("", spec.workload.traits.prefixes)]
        if prefixes is not None and prefixes.hit is not None and prefixes.hit * prefixes.scale > MOST + 0.005
    ]


def _too_long(spec: BenchSpec, target: Target) -> list[str]:
    """A note for each class of which one request in a hundred does not fit the model."""
    limit = target.max_model_len
    if limit is None:
        return []
    high = np.array([2.33])  # the normal deviate of the 99th percentile
    return [
        f"class {one.name} reaches beyond the model's {limit} tokens; the server will refuse such requests"
        for one in spec.workload.mix
        if int(one.prompt.at(high)[0]) + int(one.output.at(high)[0]) > limit
    ]
