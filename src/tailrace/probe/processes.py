"""Several processes that generate one load: started together, watched, ended together.

They share nothing while the load runs. Whatever happens to this process, none of them outlives it: the end of their
standard input is a stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import Final, Self

import msgspec

import tailrace
from tailrace.model.errors import InputError, TailraceError
from tailrace.model.thresholds import MS
from tailrace.probe.merge import Part
from tailrace.probe.progress import OnProgress, Progress
from tailrace.probe.protocol import (
    Assignment,
    Ended,
    Failed,
    Going,
    Inflow,
    Ready,
    Start,
    Stop,
    ToWorker,
    encode,
    read_from_worker,
)
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target
from tailrace.stats.histogram import ExponentialHistogram
from tailrace.store.run_file import RunHeader

WORKER: Final = "tailrace.probe.worker"
LEAD_NS: Final = 250 * MS
"""From the word to the start: long enough for each to have built its generator when it comes."""
READY_S: Final = 30.0
"""A worker that is not ready by then is lost; a busy machine imports for seconds."""
GRACE_S: Final = 5.0
"""From a stop to a kill."""
_PHASES: Final = ("look", "warm-up", "measuring", "draining")
_READ: Final = 1 << 16


class _Worker:
    """One child: its pipes, and what it has said."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.ready = False
        self.progress = Progress(phase="look")
        self.ended: Ended | None = None
        self.failed: Failed | None = None
        self.over = False

    def say(self, message: ToWorker) -> None:
        pipe = self.process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(encode(message))

    def hear(self, data: bytes) -> None:
        message = read_from_worker(data)
        if isinstance(message, Ready):
            self.ready = True
        elif isinstance(message, Going):
            self.progress = message.progress
        elif isinstance(message, Ended):
            self.ended = message
        else:
            self.failed = message

    @property
    def why_lost(self) -> str:
        """Why there is no share of it."""
        if self.failed is not None:
            return self.failed.message
        code = self.process.returncode
        if code is not None and code < 0:
            return f"killed by signal {-code}"
        return "it never answered" if code is None else f"it ended with exit code {code}"


class Processes:
    """The workers of one run. Enter it before the look at the target: they load while that goes on."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: list[_Worker] = []
        self._listening: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        source = str(Path(tailrace.__file__).parent.parent)
        others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != source]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([source, *others]))
        try:
            for number in range(self._count):
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", WORKER),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=env,
                    # A terminal's Ctrl-C goes to this process alone, which then tells them.
                    start_new_session=True,
                )
                worker = _Worker(number, process)
                self._workers.append(worker)
                self._listening.append(asyncio.ensure_future(self._listen(worker)))
        except OSError as error:
            await self._end()
            raise TailraceError(f"cannot start {self._count} processes: {error.strerror or error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    @property
    def pids(self) -> list[int]:
        """Of the workers, in order of their parts."""
        return [worker.process.pid for worker in self._workers]

    async def run(
        self,
        spec: BenchSpec,
        target: Target,
        header: RunHeader,
        paths: Sequence[Path],
        *,
        stop: asyncio.Event,
        on_progress: OnProgress | None = None,
    ) -> list[Part]:
        """Have each worker send its share of `spec`, all from one moment on, and write it to its path.

        `stop`, once set, ends them all within a moment. A worker that is lost leaves the others at work. Raises the
        InputError of a worker that cannot begin for want of something that the user has to give.
        """
        parts = [Part(number=worker.number, path=paths[worker.number]) for worker in self._workers]
        count = len(self._workers)
        for worker in self._workers:
            share = msgspec.structs.replace(spec, part=(worker.number, count))
            worker.say(Assignment(spec=share, target=target, header=header, path=str(paths[worker.number])))
        watch = asyncio.ensure_future(self._stop_with(stop))
        try:
            await self._all_ready()
            self._refuse()
            start = Start(at_ns=monotonic_ns() + LEAD_NS)
            for worker in self._workers:
                worker.say(start)
            while not all(worker.over for worker in self._workers):
                self._changed.clear()
                await self._changed.wait()
                if on_progress is not None:
                    on_progress(joint_progress([worker.progress for worker in self._workers], spec))
        finally:
            watch.cancel()
        for worker, part in zip(self._workers, parts, strict=True):
            if worker.ended is not None:
                part.share = worker.ended.share
            else:
                part.lost = worker.why_lost
        return parts

    async def _all_ready(self) -> None:
        """Every worker that is still there could begin; those that could not in time are taken away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                while not all(worker.ready or worker.over for worker in self._workers):
                    self._changed.clear()
                    await self._changed.wait()
        for worker in self._workers:
            if not worker.ready and not worker.over:
                worker.process.kill()

    def _refuse(self) -> None:
        for worker in self._workers:
            failed = worker.failed
            if failed is not None and (failed.place or failed.remedy):
                raise InputError(failed.message, place=failed.place, remedy=failed.remedy)

    async def _listen(self, worker: _Worker) -> None:
        pipe, inflow = worker.process.stdout, Inflow()
        assert pipe is not None
        try:
            while data := await pipe.read(_READ):
                for message in inflow.feed(data):
                    worker.hear(message)
                self._changed.set()
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            worker.failed = worker.failed or Failed(message=f"it cannot be understood: {error}")
            worker.process.kill()
        await worker.process.wait()
        worker.over = True
        self._changed.set()

    async def _stop_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for worker in self._workers:
            worker.say(Stop())
        await asyncio.sleep(GRACE_S)
        for worker in self._workers:
            if not worker.over:
                worker.process.kill()

    async def _end(self) -> None:
        for worker in self._workers:
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        if self._listening:
            await asyncio.wait(self._listening, timeout=GRACE_S / 2)
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()
        await asyncio.gather(*self._listening, return_exceptions=True)


def joint_progress(each: Sequence[Progress], spec: BenchSpec) -> Progress:
    """How far the whole run is: counts added, the phase of the one that is least far, percentiles of all."""
    ttft = ExponentialHistogram()
    for one in each:
        for place, count in one.ttft_bins.items():
            ttft.counts[place] = ttft.counts.get(place, 0) + count
            ttft.count += count
    ttft.minimum, ttft.maximum = 0.0, float("inf")
    return Progress(
        phase=min((one.phase for one in each), key=_PHASES.index),
        elapsed_s=max(one.elapsed_s for one in each),
        planned_s=each[0].planned_s,
        planned_requests=spec.requests,
        sent=sum(one.sent for one in each),
        in_flight=sum(one.in_flight for one in each),
        done=sum(one.done for one in each),
        errors=sum(one.errors for one in each),
        tokens=sum(one.tokens for one in each),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p99_ms=ttft.quantile(0.99),
    )
