"""One process's share of a load test: drives it, samples its own health, writes its records."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import msgspec

from tailrace.engines.registry import adapter, detect
from tailrace.model.measurement import ClientHealth
from tailrace.model.thresholds import S
from tailrace.probe.afterwards import Afterwards
from tailrace.probe.driver import Driver
from tailrace.probe.exchange import Exchange
from tailrace.probe.health import Counts, HealthSampler
from tailrace.probe.line import lines_of
from tailrace.probe.pool import ConnectionPool
from tailrace.probe.progress import OnProgress
from tailrace.probe.record import record_of
from tailrace.probe.spec import BenchSpec
from tailrace.probe.tally import Tally
from tailrace.probe.target import Target
from tailrace.store.run_file import RunTrailer, RunWriter


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How one process's share of a load test ended. Times are monotonic (ns) on its host."""

    n: int
    """Records written."""
    began_ns: int = 0
    """When its measured part began: what its records' `run_offset_ns` count from; 0 where it never did."""
    last_end_ns: int = 0
    client: ClientHealth = ClientHealth()
    interrupted: bool = False
    counters: dict[str, float] = {}

    def trailer(self) -> RunTrailer:
        """The trailer of a run that this share is the whole of."""
        return RunTrailer(
            n=self.n,
            client=self.client,
            duration_s=max(0, self.last_end_ns - self.began_ns) / S if self.n else 0.0,
            interrupted=self.interrupted,
            counters=self.counters,
        )


async def generate(
    spec: BenchSpec,
    target: Target,
    file: RunWriter,
    *,
    room: int,
    stop: asyncio.Event,
    on_progress: OnProgress | None = None,
    start_ns: int | None = None,
) -> Share:
    """Send this process's part of `spec` to `target` and write each measured request to `file`, which stays open.

    `room`: connections that may be open at once. `start_ns`: when to begin (monotonic), so that several processes
    begin together; `None` is now.
    """
    found = detect(target.headers, target.metric_names)
    engine = adapter(found.name)
    pool = ConnectionPool(target.address, connect_timeout_s=spec.limits.connect_ns / S, reuse=not spec.new_connections)
    tally = Tally()

    def on_end(exchange: Exchange) -> None:
        record = record_of(
            exchange,
            adapter=engine,
            engine_version=found.version,
            began=driver.began,
            open_loop=spec.workload.arrivals.open_loop,
        )
        tally.note(exchange.planned, exchange.planned_tokens, record)
        if exchange.sent is not None and not record.reason:
            if record.ttft_ns is not None:
                health.note_latency(record.ttft_ns, exchange.sent + record.ttft_ns)
            elif not record.stream:
                health.note_latency(record.e2e_ns, exchange.ended_at)
        file.write(record)

    def on_error(error: Exception) -> None:
        driver.fail(error)

    afterwards = Afterwards(on_end, on_error, asyncio.get_running_loop())
    driver = Driver(
        spec,
        pool,
        adapter=engine,
        lines=lines_of(spec, target),
        on_end=afterwards.put,
        on_progress=on_progress,
        max_connections=room,
    )

    def count(counts: Counts) -> None:
        counts.in_flight, counts.sent, counts.done = driver.in_flight, driver.sent, driver.done
        counts.tokens, counts.connections = driver.tokens, pool.open_now

    health = HealthSampler(count, process=spec.part[0])
    with _quiet_collector():
        health.start()
        try:
            await driver.run(stop, start_ns=start_ns)
            afterwards.finish()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                afterwards.finish()
            raise
        finally:
            health.stop()
            pool.close()
    client = health.report(
        late_ns=driver.late_ns,
        ttft_p99_ms=driver.ttft.quantile(0.99),
        kept=driver.schedule_kept,
        connections_opened=pool.opened,
        not_sent=driver.not_sent,
        streamed=spec.stream,
    )
    for sample in health.samples(driver.began):
        file.write_sample(sample)
    counters: dict[str, Any] = {
        "sent": driver.sent,
        "warm_up": driver.warmed_up,
        "not_sent": driver.not_sent,
        "left_as_planned": driver.left,
        "turns_not_sent": driver.turns_lost,
        **tally.counters(),
    }
    return Share(
        n=driver.done,
        began_ns=driver.began,
        last_end_ns=driver.last_end,
        client=client,
        interrupted=driver.interrupted,
        counters={name: float(value) for name, value in counters.items()},
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
