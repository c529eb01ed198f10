"""The driver of one run: sends what the plan says when it says so, and takes in what ends.

Open loop: each request has its absolute time, and no answer is waited for. Closed loop: each worker sends its next
request when its last has ended. No task and no timer per request: replies arrive as calls, one sweep enforces every
bound, and only the opening of a connection takes a task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic_ns
from typing import Final

from tailrace.engines.base import EngineAdapter
from tailrace.measure.dialect import Dialect
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, S
from tailrace.probe.connection import Connection
from tailrace.probe.exchange import Ending, Exchange
from tailrace.probe.pacing import Pacer
from tailrace.probe.pool import ConnectError, ConnectionPool
from tailrace.probe.progress import OnProgress, Progress
from tailrace.probe.request import body
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target
from tailrace.stats.histogram import ExponentialHistogram
from tailrace.workload.plan import PlannedRequest, generators, part, plan
from tailrace.workload.text import PromptWriter

SWEEP_S: Final = 0.1
PROGRESS_NS: Final = 500 * MS
BACK_OFF_S: Final = 0.2
"""Pause of a closed-loop worker after a refused connection; without it a dead server is asked thousands of times."""

MEASURED, WARM_UP = 0, 1


class Driver:
    """Runs one spec against one target. `on_end` gets each measured exchange once, when it is over."""

    def __init__(
        self,
        spec: BenchSpec,
        target: Target,
        pool: ConnectionPool,
        *,
        adapter: EngineAdapter,
        writer: PromptWriter,
        on_end: Callable[[Exchange], None],
        on_progress: OnProgress | None = None,
        max_connections: int,
    ) -> None:
        self.spec = spec
        self.target = target
        self.adapter = adapter
        self.path = target.path
        self.dialect: Dialect = adapter.dialect(target.path)
        self.limits = spec.limits
        self.stream = spec.stream
        self.thresholds = spec.thresholds
        self.began = 0
        """When the measured part began (monotonic ns)."""
        self.last_end = 0
        self.sent = self.done = self.errors = self.tokens = self.not_sent = self.warmed_up = 0
        self.late_ns: list[int] = []
        self.interrupted = False
        self.ttft = ExponentialHistogram()
        self._pool = pool
        self._writer = writer
        self._on_end = on_end
        self._on_progress = on_progress
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._pacer = Pacer()
        self._flying: set[Exchange] = set()
        self._waiting: deque[Exchange] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._progressed = 0
        self._phase = "warm-up" if spec.warmup_requests or spec.warmup_ns else "measuring"
        self._sending = True
        self._empty: asyncio.Future[None] = self._loop.create_future()
        self._broken: Exception | None = None
        pool.inbox.on_error = self._fail
        self._open_loop = spec.workload.arrivals.open_loop
        self._plans = {phase: self._requests(phase) for phase in (MEASURED, WARM_UP)}
        self._warms_up = bool(spec.warmup_requests or spec.warmup_ns)
        self._start = 0
        self._first_due = self._first_taken = self._last_due = self._last_taken = 0

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._flying)

    @property
    def schedule_kept(self) -> float | None:
        """Open loop: the rate at which requests were taken up, as a share of the planned one."""
        planned, took = self._last_due - self._first_due, self._last_taken - self._first_taken
        return planned / took if planned > 0 and took > 0 else None

    def _requests(self, phase: int) -> Iterator[PlannedRequest]:
        spec = self.spec
        whole = plan(spec.workload, generators(spec.seed, phase))
        limit = spec.requests if phase == MEASURED else (spec.warmup_requests or None)
        return part(islice(whole, limit), *spec.part)

    # -- the run

    async def run(self, stop: asyncio.Event, *, start_ns: int | None = None) -> None:
        """Send everything and wait for every answer; `stop` ends it within a moment, keeping what was measured.

        `start_ns`: when to begin (monotonic), so that several processes begin together; `None` is now.
        """
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            watch = tasks.create_task(self._watch(stop))
            self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
            self._report()
            try:
                if start_ns is not None:
                    await self._pacer.until(start_ns)
                self._start = start_ns or monotonic_ns()
                if self._open_loop:
                    await self._run_open()
                else:
                    self._run_closed()
                    await self._pacer.until(None)
                self._sending = False
                self._phase = "draining"
                if self._flying or self._waiting:
                    await self._empty
            finally:
                self._sweep_handle.cancel()
                watch.cancel()
                for task in self._connecting:
                    task.cancel()
        self._report()
        if self._broken is not None:
            raise self._broken

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.interrupted = True
        self._abort("interrupted")

    def _abort(self, why: str) -> None:
        self._sending = False
        self._pacer.stop()
        now = monotonic_ns()
        self._waiting.clear()
        for exchange in list(self._flying):
            exchange.stop(now, Ending(Reason.OPERATOR, why))
        self._settle()

    def _fail(self, error: Exception) -> None:
        """A fault of our own: end the run with it."""
        self._broken = self._broken or error
        self._abort("the load generator failed")

    def _begin(self, at: int) -> None:
        self.began = at
        self._phase = "measuring"

    # -- open loop

    async def _run_open(self) -> None:
        spec = self.spec
        start = self._start
        if self._warms_up:
            over = start + spec.warmup_ns if spec.warmup_ns else self._last_warm_up(start)
            bound = over if spec.warmup_ns else None
            await self._send_on_schedule(self._plans[WARM_UP], start, bound, measured=False)
            start = over
        if self._pacer.stopped:
            return
        self._begin(start)
        end = None if spec.duration_ns is None else start + spec.duration_ns
        await self._send_on_schedule(self._plans[MEASURED], start, end, measured=True)

    def _last_warm_up(self, start: int) -> int:
        """When the last request of the whole warm-up is due, whichever process sends it: all begin to measure then."""
        whole = islice(plan(self.spec.workload, generators(self.spec.seed, WARM_UP)), self.spec.warmup_requests)
        due = 0
        for planned in whole:
            due = planned.at_ns or 0
        return start + due

    async def _send_on_schedule(
        self, requests: Iterator[PlannedRequest], start: int, end: int | None, *, measured: bool
    ) -> None:
        for planned in requests:
            assert planned.at_ns is not None
            due = start + planned.at_ns
            if end is not None and due >= end:
                break
            exchange = self._prepare(planned, measured=measured)
            exchange.intended = due
            if not await self._pacer.until(due):
                break
            exchange.queued = now = monotonic_ns()
            if measured:
                self.late_ns.append(now - due)
                if not self._first_due:
                    self._first_due, self._first_taken = due, now
                self._last_due, self._last_taken = due, now
            cap = self.spec.workers
            if cap is not None and len(self._flying) >= cap:
                self._waiting.append(exchange)
                continue
            self._launch(exchange)

    # -- closed loop

    def _run_closed(self) -> None:
        workers = self.spec.workers or 0
        if not self._warms_up:
            self._begin(self._start)
        for _ in range(workers):
            self._next()

    def _next(self) -> None:
        """A worker is free: send the next request, or let the worker rest."""
        exchange = self._take() if self._sending else None
        if exchange is not None:
            exchange.intended = exchange.queued = monotonic_ns()
            self._launch(exchange)
            return
        self._sending = False
        self._pacer.stop()

    def _take(self) -> Exchange | None:
        spec, now = self.spec, monotonic_ns()
        if self._phase == "warm-up":
            if not spec.warmup_ns or now < self._start + spec.warmup_ns:
                planned = next(self._plans[WARM_UP], None)
                if planned is not None:
                    return self._prepare(planned, measured=False)
            self._begin(now)
        if spec.duration_ns is not None and now >= self.began + spec.duration_ns:
            return None
        planned = next(self._plans[MEASURED], None)
        return None if planned is None else self._prepare(planned, measured=True)

    # -- one request

    def _prepare(self, planned: PlannedRequest, *, measured: bool) -> Exchange:
        target = self.target
        number = planned.number if measured else -1 - planned.number
        text = self._writer.write(number, planned.prompt_tokens)
        content = body(
            target.api, target.options, text, prompt_tokens=planned.prompt_tokens, output_tokens=planned.output_tokens
        )
        phase = "" if measured else "w"
        request_id = f"{self._writer.nonce}-{phase}{planned.number}"
        return Exchange(
            self,
            planned,
            request_id=request_id,
            payload=target.envelope.post(content, request_id),
            prompt_bytes=len(content),
            measured=measured,
        )

    def _launch(self, exchange: Exchange) -> None:
        self._flying.add(exchange)
        if exchange.measured:
            self.sent += 1
        self._dispatch(exchange, self._pool.take())

    def _dispatch(self, exchange: Exchange, connection: Connection | None) -> None:
        if connection is not None:
            exchange.send(connection)
        elif len(self._flying) > self._max_connections:
            self.not_sent += 1
            why = f"no more than {self._max_connections} connections can be open (ulimit -n)"
            self._loop.call_soon(exchange.fail, why, Reason.CLIENT_ERROR)
        else:
            assert self._tasks is not None
            task = self._tasks.create_task(self._connect(exchange))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: Exchange) -> None:
        exchange.connect_start = monotonic_ns()
        try:
            connection = await self._pool.open()
        except ConnectError as error:
            if exchange.ending is None:
                exchange.fail(str(error), Reason.ENGINE_UNREACHABLE)
            return
        exchange.connected = monotonic_ns()
        if exchange.ending is None:
            exchange.send(connection)
        else:
            connection.abandon()

    def again(self, exchange: Exchange) -> None:
        """A kept-alive connection turned out to be closed: send once more, on a new one."""
        self._dispatch(exchange, None)

    def ended(self, exchange: Exchange) -> None:
        """Take in an exchange that is over, and let its worker or slot go on first."""
        self._flying.discard(exchange)
        ending = exchange.ending
        assert ending is not None
        if not self._open_loop:
            if ending.reason is Reason.ENGINE_UNREACHABLE and self._sending:
                self._loop.call_later(BACK_OFF_S, self._next)
            else:
                self._next()
        elif self._waiting and not self.interrupted:
            self._launch(self._waiting.popleft())
        if exchange.measured:
            self.done += 1
            self.last_end = max(self.last_end, exchange.ended_at)
            summary = exchange.summary
            if ending.reason:
                self.errors += 1
            elif summary is not None:
                self.tokens += summary.output_tokens or 0
                if summary.ttft_ns is not None:
                    self.ttft.add(summary.ttft_ns / MS)
            if self._broken is None:
                self._on_end(exchange)
        else:
            self.warmed_up += 1
        self._settle()

    def _settle(self) -> None:
        if not self._sending and not self._flying and not self._waiting and not self._empty.done():
            self._empty.set_result(None)

    # -- the sweep

    def _sweep(self) -> None:
        now = monotonic_ns()
        self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
        try:
            for exchange in list(self._flying):
                exchange.check(now)
        except Exception as error:  # noqa: BLE001  (a timer's error would vanish in the loop's log)
            self._fail(error)
        if now - self._progressed >= PROGRESS_NS:
            self._report()

    def _report(self) -> None:
        self._progressed = now = monotonic_ns()
        if self._on_progress is None:
            return
        spec = self.spec
        self._on_progress(
            Progress(
                phase=self._phase,
                elapsed_s=(now - self.began) / S if self.began else 0.0,
                planned_s=None if spec.duration_ns is None else spec.duration_ns / S,
                planned_requests=spec.requests,
                sent=self.sent,
                in_flight=len(self._flying),
                done=self.done,
                errors=self.errors,
                tokens=self.tokens,
                ttft_p50_ms=self.ttft.quantile(0.5),
                ttft_p99_ms=self.ttft.quantile(0.99),
                ttft_bins=dict(self.ttft.counts),
            )
        )
