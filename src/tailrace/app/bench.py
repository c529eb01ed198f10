"""A load test as a program: its event loop, its signals, its end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from tailrace.model.measurement import BenchSummary
from tailrace.probe.progress import OnProgress
from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec

EXIT_INTERRUPTED: Final = 130
"""Of the process, when a second signal comes after the run has ended with the first."""


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a load test gave, and whether Ctrl-C (or SIGTERM) ended it early."""

    summary: BenchSummary
    interrupted: bool


def bench(
    spec: BenchSpec, *, out: str | Path, on_progress: OnProgress | None = None, processes: int = 1
) -> BenchResult:
    """Run a load test to its end, or to SIGINT or SIGTERM; what was measured is in `out` either way.

    `processes` as in `run_bench`. Call it from the main thread. After a signal has ended the run, another one ends the
    process at once, with code 130. Raises what `run_bench` raises.
    """
    stopped: list[bool] = []

    async def main() -> BenchResult:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stop.set)
        try:
            summary = await run_bench(spec, out=out, on_progress=on_progress, stop=stop, processes=processes)
            # A signal during the summary, which gives the loop no turn, must not get lost: another run may follow.
            await asyncio.sleep(0.001)
        finally:
            if stop.is_set():
                stopped.append(True)  # further signals stay without effect until the loop is down
            else:
                for one in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(one)
        return BenchResult(summary=summary, interrupted=stop.is_set())

    try:
        return uvloop.run(main())
    finally:
        if stopped:
            # The file is whole by now; what follows is the printing, and a second Ctrl-C means: not that either.
            for one in (signal.SIGINT, signal.SIGTERM):
                signal.signal(one, lambda *_: os._exit(EXIT_INTERRUPTED))
