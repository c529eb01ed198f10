"""A load test as a program: its event loop, its signals, its end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import uvloop

from tailrace.model.measurement import BenchSummary
from tailrace.probe.progress import OnProgress
from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a load test gave, and whether Ctrl-C (or SIGTERM) ended it early."""

    summary: BenchSummary
    interrupted: bool


def bench(
    spec: BenchSpec, *, out: str | Path, on_progress: OnProgress | None = None, processes: int = 1
) -> BenchResult:
    """Run a load test to its end, or to SIGINT or SIGTERM; what was measured is in `out` either way.

    `processes` as in `run_bench`. Call it from the main thread. Raises what `run_bench` raises.
    """

    async def main() -> BenchResult:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stop.set)
        try:
            summary = await run_bench(spec, out=out, on_progress=on_progress, stop=stop, processes=processes)
        finally:
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(one)
        return BenchResult(summary=summary, interrupted=stop.is_set())

    return uvloop.run(main())
