"""The driver of one run: sends what the plan says when it says so, and takes in what ends.

Open loop: each request has its absolute time, and no answer is waited for. Closed loop: each worker sends its next
request when its last has ended. A session is one entry of the plan: in the open loop it arrives by the schedule, in the
closed loop a worker is one session after the other; a later turn is due when its user has thought about the answer
before it, and counts from then. No task and no timer per request: replies arrive as calls, one sweep enforces every
bound, and only the opening of a connection takes a task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic_ns
from typing import Final

from tailrace.engines.base import EngineAdapter
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, S
from tailrace.probe.connection import Connection
from tailrace.probe.exchange import Ending, Exchange
from tailrace.probe.line import Line, number_of
from tailrace.probe.pacing import SHORT_NS, Pacer
from tailrace.probe.pool import ConnectError, ConnectionPool
from tailrace.probe.progress import OnProgress, Progress
from tailrace.probe.spec import BenchSpec
from tailrace.probe.talk import Talk
from tailrace.probe.watched import WatchedExchange, text_hash
from tailrace.stats.histogram import ExponentialHistogram
from tailrace.workload.arrivals import worker_starts
from tailrace.workload.plan import PlannedRequest, first, generators, part, plan

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
        pool: ConnectionPool,
        *,
        adapter: EngineAdapter,
        lines: dict[str, Line],
        on_end: Callable[[Exchange], None],
        on_progress: OnProgress | None = None,
        max_connections: int,
    ) -> None:
        self.spec = spec
        self.adapter = adapter
        self.limits = spec.limits
        self.thresholds = spec.thresholds
        self.began = 0
        """When the measured part began (monotonic ns)."""
        self.last_end = 0
        self.sent = self.done = self.errors = self.tokens = self.not_sent = self.warmed_up = self.left = 0
        self.turns_lost = 0
        """Turns that were not sent, because one before them failed or the run's time was over."""
        self.late_ns: list[int] = []
        self.interrupted = False
        self.ttft = ExponentialHistogram()
        self._pool = pool
        self._lines = lines
        self._line = lines[""]
        self._on_end = on_end
        self._on_progress = on_progress
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._pacer = Pacer()
        self._flying: set[Exchange] = set()
        self._waiting: deque[Exchange] = deque()
        self._thinking: dict[Exchange, asyncio.Handle] = {}
        """Turns whose time has not come."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._progressed = 0
        self._phase = "warm-up" if spec.warmup_requests or spec.warmup_ns else "measuring"
        self._sending = True
        self._empty: asyncio.Future[None] = self._loop.create_future()
        self._broken: Exception | None = None
        pool.inbox.on_error = self.fail
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
        return part(first(whole, limit), *spec.part)

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
                if self._flying or self._waiting or self._thinking:
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
        for timer in self._thinking.values():
            timer.cancel()
        self._thinking.clear()
        for exchange in list(self._flying):
            try:
                exchange.stop(now, Ending(Reason.OPERATOR, why))
            except Exception as error:  # noqa: BLE001  (what broke once breaks again; the run has to end all the same)
                self._broken = self._broken or error
                self._flying.discard(exchange)
        self._settle()

    def fail(self, error: Exception) -> None:
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
        whole = first(plan(self.spec.workload, generators(self.spec.seed, WARM_UP)), self.spec.warmup_requests)
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
            self._submit(exchange)

    def _submit(self, exchange: Exchange) -> None:
        """Its time has come: send it, unless as many are in flight as may be."""
        cap = self.spec.workers
        if self._open_loop and cap is not None and len(self._flying) >= cap:
            self._waiting.append(exchange)
            return
        self._launch(exchange)

    # -- closed loop

    def _run_closed(self) -> None:
        if not self._warms_up:
            self._begin(self._start)
        index, count = self.spec.part
        for at in worker_starts(self.spec.workload.arrivals)[index::count]:
            if at:
                self._loop.call_later(at / S, self._next)
            else:
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

    def _prepare(self, planned: PlannedRequest, *, measured: bool, talk: Talk | None = None) -> Exchange:
        line = self._lines.get(planned.name, self._line)
        target = line.target
        number = number_of(planned, measured=measured)
        request_id = f"{self.spec.nonce}-{'' if measured else 'w'}{planned.number}"
        session_id = ""
        if planned.turn is not None:
            talk = talk or Talk(planned, f"{request_id}-session", measured=measured)
            request_id, session_id = f"{request_id}.{planned.turn}", talk.session_id
        ask = line.ask(planned, number, request_id, session_id, None if talk is None else talk.history)
        content = line.compose(ask)
        payload = target.envelope.post(content, request_id, session_id)
        exchange: Exchange
        if talk is None and planned.leave is None and not self.spec.hash_answers:
            exchange = Exchange(
                self,
                planned,
                target=target,
                request_id=request_id,
                payload=payload,
                prompt_bytes=len(content),
                measured=measured,
            )
        else:
            exchange = WatchedExchange(
                self,
                planned,
                target=target,
                request_id=request_id,
                payload=payload,
                prompt_bytes=len(content),
                measured=measured,
                keeps_text=self.spec.hash_answers or (talk is not None and talk.left > 0),
            )
            exchange.talk = talk
            exchange.text = ask.text
        exchange.planned_tokens = line.planned_tokens(planned)
        if talk is not None and exchange.planned_tokens is not None:
            exchange.planned_tokens += talk.tokens
        exchange.audio_seconds = line.audio_seconds(ask)
        return exchange

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
        goes_on = isinstance(exchange, WatchedExchange) and self._go_on(exchange, ending)
        if not self._open_loop:
            if goes_on:
                pass  # the worker is this session until its end
            elif ending.reason is Reason.ENGINE_UNREACHABLE and self._sending:
                self._loop.call_later(BACK_OFF_S, self._next)
            else:
                self._next()
        elif self._waiting and not self.interrupted:
            self._launch(self._waiting.popleft())
        if exchange.measured:
            self._count(exchange, ending.reason)
            if self._broken is None:
                self._on_end(exchange)
        else:
            self.warmed_up += 1
        self._settle()

    def _count(self, exchange: Exchange, reason: Reason) -> None:
        self.done += 1
        self.last_end = max(self.last_end, exchange.ended_at)
        summary = exchange.summary
        if reason is Reason.LEFT_AS_PLANNED:
            self.left += 1
        elif reason:
            self.errors += 1
        elif summary is not None:
            self.tokens += summary.output_tokens or 0
            if summary.ttft_ns is not None:
                self.ttft.add(summary.ttft_ns / MS)

    def _settle(self) -> None:
        idle = not (self._flying or self._waiting or self._thinking)
        if not self._sending and idle and not self._empty.done():
            self._empty.set_result(None)

    # -- sessions

    def _go_on(self, exchange: WatchedExchange, ending: Ending) -> bool:
        """Plan the session's next turn; False where there is none, or nobody to ask it."""
        text = exchange.take_text()
        if self.spec.hash_answers and ending.reason is Reason.NONE:
            exchange.answer_hash = text_hash(text)
        talk = exchange.talk
        if talk is None or not talk.left:
            return False
        if ending.reason not in (Reason.NONE, Reason.LEFT_AS_PLANNED) or self.interrupted or self._broken is not None:
            self.turns_lost += talk.left * talk.measured
            return False
        summary, planned = exchange.summary, exchange.planned
        prompt, output = (None, None) if summary is None else (summary.prompt_tokens, summary.output_tokens)
        talk.said(
            exchange.text,
            text,
            prompt_tokens=exchange.planned_tokens or 0 if prompt is None else prompt,
            output_tokens=planned.output_tokens if output is None else output,
        )
        turn = talk.next()
        assert turn is not None
        due = exchange.ended_at + turn.think_ns
        end = self._end_of(measured=talk.measured)
        if end is not None and due >= end:
            self.turns_lost += (talk.left + 1) * talk.measured
            return False
        following = self._prepare(talk.as_planned(turn), measured=talk.measured, talk=talk)
        following.intended = due
        # Also without a pause: what else ended in this turn of the loop is taken in first.
        self._wait_to_send(following)
        return True

    def _wait_to_send(self, exchange: Exchange) -> None:
        """Have `_thought` called when its time has come, or a little before. Never at once: what else ended in this
        turn of the loop is taken in first.
        """
        left = exchange.intended - monotonic_ns()
        wait = self._loop.call_soon if left < SHORT_NS else partial(self._loop.call_later, left / S)
        self._thinking[exchange] = wait(self._thought, exchange)

    def _thought(self, exchange: Exchange) -> None:
        """The user of a session has thought long enough."""
        del self._thinking[exchange]
        if monotonic_ns() < exchange.intended:
            # The loop's timers count in milliseconds, and round.
            self._wait_to_send(exchange)
            return
        exchange.queued = monotonic_ns()
        if exchange.measured:
            self.late_ns.append(exchange.queued - exchange.intended)
        try:
            self._submit(exchange)
        except Exception as error:  # noqa: BLE001  (a timer's error would vanish in the loop's log)
            self.fail(error)

    def _end_of(self, *, measured: bool) -> int | None:
        """When sending ends in the measured part, or in the warm-up."""
        spec = self.spec
        if measured:
            return None if spec.duration_ns is None else self.began + spec.duration_ns
        return self._start + spec.warmup_ns if spec.warmup_ns else None

    # -- the sweep

    def _sweep(self) -> None:
        now = monotonic_ns()
        self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
        try:
            for exchange in list(self._flying):
                exchange.check(now)
        except Exception as error:  # noqa: BLE001  (a timer's error would vanish in the loop's log)
            self.fail(error)
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
