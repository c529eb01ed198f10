"""The workers of one gateway: started, given their leases, restarted, replaced and ended together.

The fleet keeps the book of leases (`govern.leases`) and the one watch on each engine. A worker that dies is missed by
nobody but its own clients: its leases are free the moment its link closes, its socket is closed so that new connections
go to the others, and another one is started.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic_ns
from typing import Any, Final

import msgspec

from tailrace.app.engine_metrics import SENT, sent_so_far
from tailrace.app.fleet_cancels import PATIENCE_S
from tailrace.app.fleet_engines import FleetEngines
from tailrace.app.listening import TcpPort, port_for
from tailrace.app.worker_handle import READY_S, NoAnswerError, State, WorkerHandle
from tailrace.app.worker_link import (
    Built,
    Cancelled,
    Counts,
    Ended,
    Follow,
    Grant,
    Lack,
    News,
    Retire,
    Stop,
    ToSupervisor,
    Unreachable,
)
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.amendments import AmendmentFork
from tailrace.gateway.config import Config, parse_objectives, to_plain
from tailrace.gateway.engine_link import EngineNews
from tailrace.gateway.fixed_keys import check_change
from tailrace.gateway.happenings import HappeningKind, Happenings, changed_keys
from tailrace.gateway.history import Follower, Followers
from tailrace.gateway.tls import tls_shape
from tailrace.govern.leases import LeaseBook, Orders
from tailrace.model.errors import InputError

_SWEEP_S: Final = 0.05
_LOOK_S: Final = 1.0
"""How exact the time is of what is only seen by looking."""
_SOUND_S: Final = 10.0
"""A worker that lived for so long did not die of its start."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_LEAVE_S: Final = 1.5
"""Beyond the drain: how long a worker may take to write its last records and go."""


class Fleet:
    """All workers. `start` returns when every one serves; `close` when none is left."""

    def __init__(self, config: Config) -> None:
        """Take the data port's address. InputError where it is taken."""
        self.config = config
        self.port = port_for(config)
        self.grpc: TcpPort | None = None
        """The port for gRPC, which each worker's gRPC opens itself."""
        try:
            if config.grpc_listen is not None:
                self.grpc = TcpPort(config.grpc_listen, "grpc_listen")
        except InputError:
            self.port.close()
            raise
        self.book = LeaseBook(
            config.lane_policies(),
            total_running=config.total_running,
            processes=config.workers,
            ageing_ns=config.governor().age_ns,
        )
        self.followers = Followers()
        self.workers: dict[str, WorkerHandle] = {}
        """Every process that is not gone."""
        self.past = Counts()
        """What those that are gone have counted."""
        self.past_metrics = GatewayMetrics(parse_objectives(config.objectives))
        self.amendments = AmendmentFork()
        """Takes what becomes known of any worker's requests later; a composition says where it goes."""
        self.engines = FleetEngines(
            config,
            at_engine=self._at_engine,
            tally=self._tally,
            told=self._spread_news,
            amendments=self.amendments,
            metrics=self.past_metrics,
        )
        self.happenings = Happenings()
        """What changed for all workers together."""
        self.restarts = 0
        self.cut = 0
        self.closing = False
        self.started_unix_ns = 0
        self._slots: list[socket.socket | None] = [None] * config.workers
        self._failures = [0] * config.workers
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_look = 0.0
        self._up = False
        """Every worker has served once."""
        self._changing = asyncio.Lock()

    # -- life

    async def start(self) -> None:
        """Start all workers and wait until they serve. InputError with the words of the first that cannot."""
        self.started_unix_ns = time.time_ns()
        self.engines.start()
        self._own(self._sweep())
        begun = [await self._begin(slot, self.config) for slot in range(len(self._slots))]
        for worker in begun:
            await self._serves(worker)
        self._up = True

    async def close(self, hurry: asyncio.Event) -> int:
        """Let every worker drain and end, at once when `hurry` is set; returns how many requests were cut."""
        self.closing = True
        self.port.withdraw()
        for worker in self.workers.values():
            worker.send(Stop())
        left = list(self.workers.values())
        within_s = int(self.config.drain) / 1e9 + _LEAVE_S
        ends = asyncio.ensure_future(asyncio.gather(*(worker.wait(within_s) for worker in left)))
        hurrying = asyncio.ensure_future(hurry.wait())
        waits: set[asyncio.Future[Any]] = {ends, hurrying}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if hurry.is_set():
            for worker in self.workers.values():
                worker.send(Stop(hurry=True))
        await ends
        hurrying.cancel()
        # The last words of the processes are in their sockets.
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self.workers:  # noqa: ASYNC110  (polled: a stop is rare)
                    await asyncio.sleep(0.005)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engines.close()
        for listener in self._slots:
            if listener is not None:
                listener.close()
        self.port.close()
        if self.grpc is not None:
            self.grpc.close()
        return self.cut

    @property
    def pids(self) -> list[int]:
        """The process ids of those that serve, by slot."""
        serving = sorted(self.serving(), key=lambda worker: worker.slot)
        return [worker.pid for worker in serving]

    def serving(self) -> list[WorkerHandle]:
        """The workers that take new requests."""
        return [worker for worker in self.workers.values() if worker.state is State.SERVING]

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and why not."""
        if self.closing:
            return False, "shutting down"
        if not self.serving():
            return False, "no worker serves"
        why = self.engines.unready()
        return not why, why

    # -- changes

    async def reconfigure(self, config: Config, by: str = "") -> None:
        """Apply a configuration to every worker without dropping a stream, or to none. `by`: who wants it.

        InputError where it changes what is fixed at the start, or a worker does not answer.
        """
        async with self._changing:
            await self._reconfigure(config, by)

    async def _reconfigure(self, config: Config, by: str) -> None:
        if not self._up or self.closing:
            raise InputError("the gateway does not serve at the moment", remedy="Try again when it does.")
        check_change(self.config, config)
        self.engines.check_tls()
        serving = self.serving()
        await asyncio.gather(*(worker.ask("check", None, config=config) for worker in serving))
        self.happenings.note(HappeningKind.CONFIGURATION, changed_keys(to_plain(self.config), to_plain(config)), by)
        self.config = config
        self.engines.renew_tls()
        self._tell(self.book.replace(config.lane_policies(), config.total_running, monotonic_ns()))
        for worker in serving:
            worker.config = config
        applied = await asyncio.gather(
            *(worker.ask("apply", None, config=config) for worker in serving), return_exceptions=True
        )
        for error in applied:
            # One that is late applies it when it comes to it; one that is gone is followed by one that has it.
            if error is not None and not isinstance(error, NoAnswerError):
                raise error

    async def replace(self, config: Config, by: str = "") -> None:
        """Put a new worker in the place of each, one after the other; the old ones serve their requests to the end.

        So new code and keys that are fixed for the life of a process take effect without a dropped stream. InputError
        where the configuration moves a port or the number of workers, or a new worker does not come up: then the old
        ones stay.
        """
        async with self._changing:
            await self._reconfigure(_as_far_as_possible(self.config, config), by)
            for old in sorted(self.serving(), key=lambda worker: worker.slot):
                new = await self._begin(old.slot, config, on_trial=True)
                await self._serves(new)
                new.on_trial = False
                old.state = State.RETIRING
                old.send(Retire(_longest(config)))
                self.happenings.note(HappeningKind.WORKER, f"worker {old.pid} is replaced by worker {new.pid}", by)
                if self.config is not config:
                    await self._take_over(config)

    async def _take_over(self, config: Config) -> None:
        """A worker serves with it: from now on it is the one in force."""
        engine_changed = any(getattr(self.config, name) != getattr(config, name) for name in ("backends", "scrape"))
        self.config = config
        self._tell(self.book.replace(config.lane_policies(), config.total_running, monotonic_ns()))
        if engine_changed:
            await self.engines.follow_configuration(config)

    # -- one worker

    async def _begin(self, slot: int, config: Config, *, on_trial: bool = False) -> WorkerHandle:
        listener = self._slots[slot]
        if listener is None:
            listener = self._slots[slot] = self.port.open()
        self._count += 1
        grpc = None if self.grpc is None else self.grpc.address
        worker = WorkerHandle(f"w{self._count}", slot, listener, self, grpc=grpc)
        worker.on_trial = on_trial
        await worker.start(config)
        self.workers[worker.name] = worker
        return worker

    @staticmethod
    async def _serves(worker: WorkerHandle) -> None:
        try:
            async with asyncio.timeout(READY_S):
                await worker.ready
        except TimeoutError:
            await worker.wait(0)
            raise InputError(f"did not serve within {READY_S:g} s", place=f"worker {worker.pid}") from None

    async def _again(self, slot: int, pause_s: float) -> None:
        while not self.closing:
            await asyncio.sleep(pause_s)
            try:
                await self._serves(await self._begin(slot, self.config))
            except (InputError, OSError) as error:
                _say(f"a worker could not be started: {error}")
                if self._slots[slot] is None or isinstance(error, OSError):
                    pause_s = _LONGEST_PAUSE_S
                    continue  # nothing was started: nobody's end will bring us here again
            return

    def said(self, worker: WorkerHandle, message: ToSupervisor) -> None:
        """A worker's message that is no answer."""
        if isinstance(message, Lack):
            now = monotonic_ns()
            for report in message.reports:
                self._tell(self.book.report(worker.name, report, now))
        elif isinstance(message, Ended):
            for record in message.records:
                self.followers.offer(record)
            self.followers.missed(message.missed)
        elif isinstance(message, Cancelled):
            self.engines.follow_cancel(message.cancel)
        elif isinstance(message, Unreachable):
            self.engines.unreachable(message.backend)
        elif isinstance(message, Built):
            for engine in self.engines:
                worker.send(News(engine.name, engine.link.news()))
            worker.send(Follow(bool(self.followers)))
            self._tell(self.book.join(worker.name))
            if worker.config is not self.config and worker.state is State.STARTING:
                self._own(self._catch_up(worker))

    async def _catch_up(self, worker: WorkerHandle) -> None:
        """The configuration changed while it started."""
        config = worker.config = self.config
        try:
            await worker.ask("apply", None, config=config)
        except InputError as error:
            _say(f"worker {worker.pid} keeps its configuration: {error}")

    def ended(self, worker: WorkerHandle) -> None:
        """A worker's link closed: it serves nothing any more."""
        del self.workers[worker.name]
        self._tell(self.book.leave(worker.name, monotonic_ns()))
        self.cut += worker.cut
        _add_past(self.past, worker.counts)
        self.past_metrics.absorb(worker.counts.metrics.ended())
        unasked = self._up and not (self.closing or worker.on_trial or worker.state is State.RETIRING)
        self._own(self._bury(worker, unasked=unasked))
        if not unasked:
            return
        self.restarts += 1
        listener, self._slots[worker.slot] = self._slots[worker.slot], None
        if listener is not None:
            listener.close()
        lived_s = time.monotonic() - worker.started_at
        if worker.state is State.SERVING and lived_s >= _SOUND_S:
            self._failures[worker.slot] = 0
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** self._failures[worker.slot])
        self._failures[worker.slot] += 1
        self._own(self._again(worker.slot, pause_s))

    async def _bury(self, worker: WorkerHandle, *, unasked: bool) -> None:
        status = await worker.wait(_LEAVE_S)
        if unasked:
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            _say(f"worker {worker.pid} {how}; another one is started")
            self.happenings.note(HappeningKind.WORKER, f"worker {worker.pid} {how}; another one is started")

    # -- what is told to all

    def _tell(self, orders: Orders) -> None:
        by_worker: dict[str, Grant] = {}
        for name, order in orders:
            by_worker.setdefault(name, Grant([])).orders.append(order)
        for name, grant in by_worker.items():
            worker = self.workers.get(name)
            if worker is not None:
                worker.send(grant)

    def _tally(self, backend: str) -> dict[str, int]:
        """What was sent to an engine so far, as the workers said last: up to a second ago."""
        workers = (worker.counts.metrics.numbers.get(SENT, []) for worker in self.workers.values())
        return sent_so_far([self.past_metrics.series(SENT), *workers], backend)

    def _spread_news(self, backend: str, learnt: EngineNews) -> None:
        news = News(backend, learnt)
        for worker in self.workers.values():
            worker.send(news)

    async def _at_engine(self, backend: str) -> list[int] | None:
        workers = [worker for worker in self.workers.values() if worker.built]
        said = await asyncio.gather(
            *(worker.ask("at_engine", list[int], backend=backend, within_s=PATIENCE_S) for worker in workers),
            return_exceptions=True,
        )
        out: list[int] = []
        for one in said:
            if isinstance(one, BaseException):
                return None
            out += one
        return out

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._tell(self.book.sweep(monotonic_ns()))
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _LOOK_S
                self.look_at_engines()

    def look_at_engines(self) -> None:
        """Note what has changed of them."""
        self.happenings.look_at_engines(self.engines.links().items())

    @contextmanager
    def follow(self) -> Iterator[Follower]:
        """Receive every record that ends in any worker from now on."""
        try:
            with self.followers.follow() as follower:
                self._spread_follow()
                yield follower
        finally:
            self._spread_follow()

    def _spread_follow(self) -> None:
        for worker in self.workers.values():
            worker.send(Follow(bool(self.followers)))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _say(f"{task.exception()}")


def _add_past(past: Counts, counts: Counts) -> None:
    past.store_error = counts.store_error or past.store_error
    past.counters = _sum((past.counters, counts.counters))
    # What waited when it died is not waiting any more.
    past.store = _sum((past.store, {name: n for name, n in counts.store.items() if name != "waiting"}))


def _sum(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            out[name] = out.get(name, 0) + value
    return out


def _as_far_as_possible(old: Config, new: Config) -> Config:
    """`new` where a running worker can follow it. InputError for what no worker can change."""
    for name in ("listen", "listen_mode", "admin", "admin_token", "grpc_listen", "workers", "signals"):
        if getattr(old, name) != getattr(new, name):
            raise InputError(
                "cannot be changed by replacing workers", place=name, remedy="Restart `tailrace serve` to change it."
            )
    if (old.tls is None) != (new.tls is None):
        raise InputError(
            "cannot be switched on or off by replacing workers: old and new ones serve the same port for a while",
            place="tls",
            remedy="Restart `tailrace serve` to change it.",
        )
    return msgspec.structs.replace(
        new,
        backends=old.backends,
        total_running=old.total_running,
        scrape=old.scrape,
        records=old.records,
        tls=new.tls if tls_shape(new) == tls_shape(old) else old.tls,
        limits=msgspec.structs.replace(new.limits, grpc_message_bytes=old.limits.grpc_message_bytes),
    )


def _longest(config: Config) -> float:
    """Seconds that a request may last: a worker that is replaced cuts none, but sessions without a bound."""
    budgets = [config.budgets.resolve(), *(policy.budgets for policy in config.lane_policies())]
    longest = max(max(one.total_ns, one.unstreamed_total_ns) + one.queue_ns for one in budgets)
    return max(longest, int(config.websocket.session or 0)) / 1e9


def _say(text: str) -> None:
    sys.stderr.write(f"tailrace serve: {text}\n")
    sys.stderr.flush()
