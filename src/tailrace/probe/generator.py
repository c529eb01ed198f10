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
from tailrace.probe.driver import Driver
from tailrace.probe.exchange import Exchange
from tailrace.probe.health import Counts, HealthSampler
from tailrace.probe.pool import ConnectionPool
from tailrace.probe.progress import OnProgress
from tailrace.probe.record import record_of
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target
from tailrace.store.run_file import RunTrailer, RunWriter
from tailrace.workload.text import PromptWriter


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
    chars_per_token, overhead = target.calibration
    writer = PromptWriter(
        seed=spec.seed,
        nonce=spec.nonce,
        chars_per_token=chars_per_token,
        overhead_tokens=overhead,
        shared_prefix=spec.shared_prefix,
    )
    planned = counted = 0

    def on_end(exchange: Exchange) -> None:
        nonlocal planned, counted
        record = record_of(
            exchange,
            target=target,
            adapter=engine,
            engine_version=found.version,
            began=driver.began,
            open_loop=spec.workload.arrivals.open_loop,
        )
        if record.prompt_tokens_source == "usage" and record.prompt_tokens is not None:
            planned += exchange.planned.prompt_tokens
            counted += record.prompt_tokens
        if exchange.sent is not None and not record.reason:
            if record.ttft_ns is not None:
                health.note_latency(record.ttft_ns, exchange.sent + record.ttft_ns)
            elif not record.stream:
                health.note_latency(record.e2e_ns, exchange.ended_at)
        file.write(record)

    driver = Driver(
        spec,
        target,
        pool,
        adapter=engine,
        writer=writer,
        on_end=on_end,
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
        "planned_prompt_tokens": planned,
        "counted_prompt_tokens": counted,
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
