"""One load test from its spec to its run file and summary."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from tailrace import __version__
from tailrace.analyze.bench_summary import summarise_run
from tailrace.engines.registry import adapter, detect
from tailrace.model.errors import TailraceError
from tailrace.model.measurement import BenchSummary, ClientHealth
from tailrace.model.thresholds import S
from tailrace.probe.driver import Driver
from tailrace.probe.exchange import Exchange
from tailrace.probe.health import HealthSampler, check_open_files
from tailrace.probe.line import lines_of
from tailrace.probe.pool import ConnectionPool
from tailrace.probe.progress import OnProgress, Progress
from tailrace.probe.record import record_of
from tailrace.probe.spec import BenchSpec
from tailrace.probe.tally import Tally
from tailrace.probe.target import Target, find_target
from tailrace.stats.quantiles import quantile_interval
from tailrace.store.run_arrival import arrival_of
from tailrace.store.run_file import RunHeader, RunTrailer, RunWriter, read_run
from tailrace.workload.arrivals import ArrivalKind
from tailrace.workload.length import describe
from tailrace.workload.mix import render_mix


class Interrupted(TailraceError):  # noqa: N818  (named for what happened)
    """The run was stopped before its first request was sent; there is no run file."""


async def run_bench(
    spec: BenchSpec,
    *,
    out: str | Path,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
) -> BenchSummary:
    """Run a load test, write every request and event to the run file `out`, and summarise it.

    `stop`, once set, ends the run within a moment: requests under way are recorded as cancelled by the operator, and
    the trailer says that the run was interrupted. Raises `TargetError` when the target does not answer as it should
    and `InputError` for limits of this machine, both before any load; `Interrupted` when `stop` came that early.
    """
    stop = stop or asyncio.Event()
    room = check_open_files(spec.workers)
    if not spec.nonce:
        # Not part of the seed: two runs of one workload must not answer each other from a prefix cache.
        spec = msgspec.structs.replace(spec, nonce=secrets.token_hex(4))
    if on_progress is not None:
        on_progress(Progress(phase="look"))
    target = await _look(spec, stop)
    # The first interval loads scipy. Now, rather than after Ctrl-C, when somebody waits for the summary.
    quantile_interval(np.arange(300.0), 0.99)
    found = detect(target.headers, target.metric_names)
    engine = adapter(found.name)
    header = header_of(spec, target)
    pool = ConnectionPool(target.address, connect_timeout_s=spec.limits.connect_ns / S)
    lines = lines_of(spec, target)
    tally = Tally()
    with RunWriter(out, header) as file:

        def on_end(exchange: Exchange) -> None:
            record = record_of(
                exchange,
                adapter=engine,
                engine_version=found.version,
                began=driver.began,
                open_loop=spec.workload.arrivals.open_loop,
            )
            tally.note(exchange.planned, exchange.planned_tokens, record)
            file.write(record)

        driver = Driver(
            spec,
            pool,
            adapter=engine,
            lines=lines,
            on_end=on_end,
            on_progress=on_progress,
            max_connections=room,
        )
        health = HealthSampler()
        with _quiet_collector():
            health.start()
            try:
                await driver.run(stop)
            finally:
                health.stop()
                pool.close()
        file.close(_trailer(driver, health, pool, tally.counters()))
    return summarise_run(read_run(out))


async def _look(spec: BenchSpec, stop: asyncio.Event) -> Target:
    look = asyncio.ensure_future(find_target(spec))
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


def header_of(spec: BenchSpec, target: Target) -> RunHeader:
    """What the run file says about the run."""
    arrivals = spec.workload.arrivals
    chars_per_token, overhead = target.calibration
    origin = "counted by the server" if target.calibrated else "assumed"
    if target.options.state_prompt_tokens:
        origin = "assumed; the simulated engine is told the planned number"
    notes = [
        *spec.notes,
        *target.notes,
        f"prompts: {chars_per_token:.2f} characters a token and {overhead:.0f} tokens of overhead ({origin})",
    ]
    notes += _too_long(spec, target)
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
        classes={
            one.name: {
                "weight": one.weight,
                "prompt": describe(one.prompt),
                "output": describe(one.output),
                "correlation": one.correlation,
            }
            for one in spec.workload.mix
        },
        objectives=spec.objectives,
        notes=notes,
    )


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


def _trailer(driver: Driver, health: HealthSampler, pool: ConnectionPool, counts: dict[str, float]) -> RunTrailer:
    p99 = driver.ttft.quantile(0.99)
    client: ClientHealth = health.report(
        late_ns=driver.late_ns, ttft_p99_ms=p99, connections_opened=pool.opened, not_sent=driver.not_sent
    )
    return RunTrailer(
        n=driver.done,
        client=client,
        duration_s=max(0, driver.last_end - driver.began) / S if driver.done else 0.0,
        interrupted=driver.interrupted,
        counters={
            "sent": float(driver.sent),
            "warm_up": float(driver.warmed_up),
            "not_sent": float(driver.not_sent),
            "left_as_planned": float(driver.left),
            "turns_not_sent": float(driver.turns_lost),
            **counts,
        },
    )


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keep full garbage collections out of the stamps: what exists now is set aside, and young objects die young."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
