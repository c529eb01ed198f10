"""The gateway as one object: its ports, its table of requests in flight, its one sweeper."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.gateway.aliases import Aliases
from tailrace.gateway.amendments import AmendmentFork
from tailrace.gateway.backends import Backends
from tailrace.gateway.callers import Callers
from tailrace.gateway.config import Config, to_plain
from tailrace.gateway.degradation import LOOK_EVERY, Degradation
from tailrace.gateway.engine_priority import EnginePriority
from tailrace.gateway.entrance import Entrance, split_address
from tailrace.gateway.fixed_keys import check_change
from tailrace.gateway.foresight import Foresight
from tailrace.gateway.gaps import GapDesk
from tailrace.gateway.hangup import HangupWatch
from tailrace.gateway.happenings import HappeningKind, Happenings, changed_keys
from tailrace.gateway.hindsight import Hindsight
from tailrace.gateway.history import History
from tailrace.gateway.in_flight import InFlight
from tailrace.gateway.lane_room import follow_engines, rooms_of
from tailrace.gateway.lanes import LaneDesk
from tailrace.gateway.reception import Reception
from tailrace.gateway.record_desk import Measured, RecordDesk, RecordObserver, RecordSink
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.routing import Routing
from tailrace.gateway.server import ClientConnection
from tailrace.gateway.session import Listeners
from tailrace.gateway.shaping import Shaping
from tailrace.gateway.standstill import Standstill
from tailrace.gateway.streams import stream_view
from tailrace.gateway.trace_share import TraceShare
from tailrace.gateway.verdict import Verdict
from tailrace.govern.peak_load import PeakLoad
from tailrace.govern.shared_state import SharedState
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.summary import StreamSummary
from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import Budgets

if TYPE_CHECKING:
    from tailrace.gateway.cache_desk import CacheDesk
    from tailrace.gateway.rpc.port import GrpcPort

log = logging.getLogger(__name__)

SWEEP_NS: Final = 50_000_000
"""How late a budget may be noticed."""
_CONNECTIONS_EVERY: Final = 20
"""Sweeps between two looks at idle and slow clients: one second."""
_OBJECTIVES_EVERY: Final = 20
"""Sweeps between two looks at which objectives have been passed in flight: one second."""
SHUT_RETRY_S: Final = 5
"""When a client may ask again whose engine takes no new requests."""
RETIRE_QUIET_NS: Final = 200_000_000
"""How long a connection must have been idle before a process that is replaced closes it."""


class Counters(msgspec.Struct):
    """What has no record, or goes beyond records."""

    connections_total: int = 0
    connections_refused: int = 0
    records: int = 0
    records_dropped: int = 0
    record_errors: int = 0
    cut_at_shutdown: int = 0


class Gateway:
    """One data port in front of its engines.

    `start` binds and begins; `close` drains and ends. Records go to `sink`, and to `observer` where there is one;
    the last of them stay in `history`.
    """

    def __init__(  # noqa: PLR0915  (one statement a part)
        self,
        config: Config,
        sink: RecordSink,
        *,
        observer: RecordObserver | None = None,
        shared: SharedState | None = None,
    ) -> None:
        """`shared`: the way to the keeper of limits that hold over several processes."""
        self.config = config
        self.callers = Callers(config)
        room = config.engine_room
        self.lanes = LaneDesk(
            config.lane_policies(),
            total_running=config.total_running,
            shared=shared,
            sharing=config.governor(),
            processes=1 if shared is None else config.workers,
            rooms=None if room is None else rooms_of(room, config),
        )
        self.foresight = Foresight(self.lanes, config.predictions)
        self.shaping = Shaping(self.lanes)
        self.kept = History()
        """The last records; `history` reads it up to date."""
        self.amendments = AmendmentFork(self.kept.amendments)
        """Takes what becomes known of requests after their records were made; shown from memory at once."""
        self.counters = Counters()
        self.happenings = Happenings()
        """What changed while it served."""
        self.listeners: Listeners | None = None
        """Who listens to the WebSocket sessions that begin; nobody, unless a composition says so."""
        self.in_flight: dict[str, InFlight] = {}
        self.backends = Backends(config, self.in_flight.values, self.amendments)
        self.hindsight = Hindsight()
        self.peak_load = PeakLoad()
        self.gaps, self.standstill = GapDesk(), Standstill()
        self.degradation: Degradation | None = None
        """The degradation ladder, where the configuration has one."""
        reception = Reception(self)
        self.open, self.open_malformed = reception.open, reception.open_malformed
        self._desk = RecordDesk(self, sink, observer)
        self.gpu_busy: Callable[[Collection[str]], float | None] = lambda _: None
        """The busiest of these GPUs (share of 1; of all, where none is named), where a composition can tell."""
        self.routing: Routing | None = None
        """Canary and shadow, where the configuration has them."""
        self.connections: set[ClientConnection] = set()
        self.hangups = HangupWatch()
        self.loop_lag_ns = 0
        self.loop_lag_max_ns = 0
        """The largest lag of the last minute or so: it decays by a tenth a second."""
        self.started_unix_ns = 0
        self._entrance = Entrance(config, lambda: ClientConnection(self))
        self.closing = False
        self.retiring = False
        """Requests are served to their end, and each is the last of its connection."""
        self._retire_until = 0.0
        self._hurry = False
        self.rpc: GrpcPort | None = None
        """The gRPC port, where the configuration has one."""
        self._asks_engines = False
        self._tick: asyncio.TimerHandle | None = None
        self._due = 0
        self._ticks = 0
        self.traces = TraceShare(config.traces, config.workers)
        self.cache: CacheDesk | None = None
        """Answers that are given again; `None` where the configuration has no such route."""
        self._apply(config)
        self._apply_degradation(config)

    def _apply(self, config: Config) -> None:
        self.config = config
        # First: whatever goes on because of a change goes to the backends that are there now.
        if self.routing is not None:
            self.routing.apply(config)
        elif config.canary is not None or config.shadow is not None:
            self.routing = Routing(self, config)
        if config.cache.routes or self.cache is not None:
            # Only here: without routes nothing of a cache is loaded.
            from tailrace.gateway.cache_desk import fitted  # noqa: PLC0415

            self.cache = fitted(self.cache, config)
        self.default_budgets: Budgets = config.budgets.resolve()
        self.thresholds = config.slow.resolve()
        self.header_hold_ns = max(0, int(config.header_hold) - SWEEP_NS)
        """The sweeper is up to one period late, so it is told to come one period early."""
        self.aliases = Aliases(config.aliases)
        self.foresight.apply(config.predictions)
        self.callers.apply(config)
        self.priorities = EnginePriority(config.lane_policies())
        self.traces.reconfigure(config.traces, config.workers)
        self.lanes.windows = config.alerts.policy().windows()
        self.shaping.apply(config)
        self.backends.hear_gaps(self.gaps.listeners)
        limits = config.limits
        self.max_head_bytes = limits.header_bytes
        self.max_body_bytes = limits.body_bytes
        self.max_upload_bytes = limits.upload_bytes
        self.upload_stall_ns = int(limits.upload_stall)
        self.header_stall_ns = int(limits.header_stall)
        self.client_idle_ns = int(limits.client_idle)
        self.upload_total_ns = int(limits.upload_total)
        self.max_event_bytes = limits.event_bytes
        self.max_connections = limits.connections
        self.client_buffer_bytes = limits.client_buffer_bytes
        self.timeline_limit = config.records.timeline_events
        self.sample_rate = config.records.sample

    def _apply_degradation(self, config: Config) -> None:
        now = monotonic_ns()
        ladder = self.degradation
        if config.degradation.enabled and ladder is None:
            self.degradation = Degradation(self, config, now)
        elif config.degradation.enabled and ladder is not None:
            ladder.apply(config, now)
        elif ladder is not None:
            self.degradation = None
            ladder.close(now)

    # -- life

    async def start(self, *, sock: socket.socket | None = None, scrape: bool = True) -> None:
        """Bind the data port, begin to scrape and to sweep. InputError when the address cannot be bound.

        `sock` is bound already, and is closed with the gateway. Without `scrape`, another process asks the engine, and
        `engine.take` brings what it learns.
        """
        await self._entrance.open(sock)
        if self.config.grpc_listen is not None:
            # Only here: without this key nothing of gRPC is loaded.
            from tailrace.gateway.rpc.port import GrpcPort  # noqa: PLC0415

            self.rpc = GrpcPort(self)
            await self.rpc.start(split_address(self.config.grpc_listen, "grpc_listen"))
        self.started_unix_ns = time_ns()
        self._asks_engines = scrape
        self._due = monotonic_ns() + SWEEP_NS
        self._tick = asyncio.get_running_loop().call_later(SWEEP_NS / 1e9, self._sweep)
        if scrape:
            self.backends.start()
        else:
            for backend in self.backends:
                backend.waits.partial = "each worker sees only the tokens of its own requests"

    @property
    def port(self) -> int:
        """The data port's number; 0 for a Unix socket."""
        return self._entrance.port

    @property
    def url(self) -> str:
        """Where clients reach the data port."""
        return self._entrance.url

    async def close(self, drain_s: float | None = None) -> int:
        """Stop accepting, let requests end for `drain_s` seconds, end the rest; returns how many were cut."""
        if self.closing:
            return self.counters.cut_at_shutdown
        self.closing = True
        drain_s = int(self.config.drain) / 1e9 if drain_s is None else drain_s
        self._entrance.close()
        cut = await self._drain(drain_s)
        if self._tick is not None:
            self._tick.cancel()
        if self.rpc is not None:
            await self.rpc.close()
        if self.routing is not None:
            self.routing.close()
        self._desk.flush()
        self.shaping.close()
        await self.backends.close()
        if self.cache is not None:
            await self.cache.close()
        self.hangups.close()
        await asyncio.sleep(0)
        return cut

    async def _drain(self, drain_s: float) -> int:
        for connection in list(self.connections):
            connection.close_when_idle()
        loop = asyncio.get_running_loop()
        until = loop.time() + drain_s
        while self.in_flight and loop.time() < until and not self._hurry:  # noqa: ASYNC110  (polled: a stop is rare)
            await asyncio.sleep(0.02)
        now = monotonic_ns()
        left = list(self.in_flight.values())
        for exchange in left:
            exchange.cancel(now, Reason.SHUTDOWN, "the gateway is shutting down")
        self.counters.cut_at_shutdown += len(left)
        if left:
            await asyncio.sleep(0.05)  # the last events leave
        for connection in list(self.connections):
            connection.abort()
        return len(left)

    async def retire(self, within_s: float) -> int:
        """Another process takes over: accept nothing more, serve what is here to its end, then close.

        A connection is closed after its answer, or at once where it is idle. Returns how many requests were cut
        because they took longer than `within_s`.
        """
        self.retiring = True
        self.lanes.retire()
        loop = asyncio.get_running_loop()
        not_before = loop.time() + self._entrance.withdraw()
        if self.rpc is not None:
            self.rpc.retire(within_s)
        for exchange in self.in_flight.values():
            exchange.keep_alive = False
        self._retire_until = loop.time() + within_s
        while (self._serving() or loop.time() < not_before) and loop.time() < self._retire_until and not self._hurry:
            # One that has just come may have its request in the kernel, unread.
            quiet_since = monotonic_ns() - RETIRE_QUIET_NS
            for connection in list(self.connections):
                if connection.last_activity < quiet_since:
                    connection.close_when_idle()
            await asyncio.sleep(0.02)
        return await self.close(0)

    def _serving(self) -> bool:
        return bool(self.connections) or (self.rpc is not None and not self.rpc.idle)

    def hasten(self, within_s: float) -> None:
        """What retires has no more time than this."""
        self._retire_until = min(self._retire_until, asyncio.get_running_loop().time() + within_s)

    def cut_now(self) -> None:
        """A drain that is under way ends at once."""
        self._hurry = True

    # -- the connections' host

    def connected(self, connection: ClientConnection) -> bool:
        """A client is there."""
        self.counters.connections_total += 1
        if self.closing or len(self.connections) >= self.max_connections:
            self.counters.connections_refused += 1
            return False
        self.connections.add(connection)
        return True

    def disconnected(self, connection: ClientConnection) -> None:
        """A client is gone."""
        self.connections.discard(connection)

    # -- what exchanges ask

    def finished(
        self,
        ledger: RequestLedger,
        measured: Measured | StreamSummary | None,
        verdict: Verdict,
        now: int,
    ) -> None:
        """The one place where a request leaves the table; its record is made with the next batch."""
        exchange = self.in_flight.pop(ledger.request_id, None)
        if self.routing is not None and self.routing.shadow is not None:
            self.routing.shadow.original_ended(ledger.request_id, verdict)
        # The sweep may be overdue right now: after a pause, what has come meanwhile is read before any timer runs.
        lag = now - self._due
        if ledger.loop_lag_ns is None:
            ledger.loop_lag_ns = max(self.loop_lag_ns, lag)
        elif lag > ledger.loop_lag_ns:
            ledger.loop_lag_ns = lag
        if exchange is not None and (verdict.outcome is not OutcomeKind.COMPLETED or not exchange.keep_alive):
            self.hindsight.look(exchange, verdict)
        if self.degradation is not None:
            self.degradation.ended(ledger, verdict, now)
        self._desk.add(ledger, measured, verdict, now, exchange)

    def turned_away(self) -> Refusal | None:
        """Why no new request is taken at the moment; `None` where they are."""
        if self.closing:
            text = "the gateway is shutting down"
            return Refusal(status=503, message=text, reason=Reason.NO_BACKEND, retry_after_s=1)
        if self.backends.shut:
            # Addresses and models are the operator's to know, not every client's.
            text = "the engine takes no new requests at the moment"
            return Refusal(status=503, message=text, reason=Reason.NO_BACKEND, retry_after_s=SHUT_RETRY_S)
        return None

    def flush_records(self) -> None:
        """Make the records of the requests that have ended; otherwise the next sweep does."""
        self._desk.flush()

    @property
    def history(self) -> History:
        """The last records, whatever has ended included."""
        self._desk.flush()
        return self.kept

    def cancel(self, request_id: str, reason: Reason, why: str) -> str:
        """End a request in flight from outside; returns the stage that it was in, or nothing where there is none.

        InputError for one that cannot be ended without its neighbour: it waits behind another on its connection.
        """
        exchange = self.in_flight.get(request_id)
        if exchange is None:
            return ""
        line = exchange.connection.pipeline
        if line and line[0] is not exchange:
            raise InputError(
                "waits behind another request on the same connection, whose end would be its own",
                place=request_id,
                remedy="Cancel the one before it, or wait until it has begun.",
            )
        now = monotonic_ns()
        stage = exchange.stage(now)
        exchange.cancel(now, reason, why)
        return stage

    # -- time

    def _sweep(self) -> None:
        try:
            self._look_around()
        finally:
            # Whatever happened: without the next sweep no budget would ever be enforced again.
            self._due = monotonic_ns() + SWEEP_NS
            self._tick = asyncio.get_running_loop().call_later(SWEEP_NS / 1e9, self._sweep)

    def _check(self, exchange: InFlight, now: int) -> None:
        try:
            exchange.sweep(now)
        except Exception:
            log.exception("the budgets of request %s could not be checked", exchange.ledger.request_id)
            exchange.broken(now)

    def _look_around(self) -> None:
        now = monotonic_ns()
        self.hindsight.measure_cpu(now)
        lag = max(0, now - self._due)
        self.loop_lag_ns = lag
        self.loop_lag_max_ns = max(lag, self.loop_lag_max_ns)
        for exchange in list(self.in_flight.values()):
            seen = exchange.loop_lag_ns
            if seen is None or lag > seen:
                exchange.loop_lag_ns = lag
            if exchange.next_check <= now:
                self._check(exchange, now)
        self.standstill.look(self.in_flight.values(), now)
        follow_engines(self.lanes, self.backends, now)
        self.lanes.sweep(now)
        self.peak_load.saw(len(self.in_flight), now)
        self._desk.flush()
        if self.routing is not None:
            self.routing.sweep(now)
        self._ticks += 1
        if self.degradation is not None and self._ticks % LOOK_EVERY == 0:
            self.degradation.look(now)
        if self._ticks % _OBJECTIVES_EVERY == 0:
            self.standstill.pass_objectives(self.in_flight.values(), self.lanes, now)
        if self._ticks % _CONNECTIONS_EVERY == 0:
            self.loop_lag_max_ns = self.loop_lag_max_ns * 9 // 10
            self.backends.sweep(now)
            self.look_around(now)
            if self.cache is not None:
                self.cache.sweep(now)
            for connection in list(self.connections):
                connection.sweep(
                    now, idle_ns=self.client_idle_ns, head_ns=self.header_stall_ns, upload_ns=self.upload_stall_ns
                )

    # -- control and views

    def reconfigure(self, config: Config, by: str = "") -> None:
        """Apply a new configuration to the requests that come; those in flight keep their budgets. `by`: who wants it.

        InputError when it changes what was fixed at the start: that takes a restart.
        """
        check_change(self.config, config)
        self.backends.check(config)
        self._entrance.renew(config)
        self.happenings.note(HappeningKind.CONFIGURATION, changed_keys(to_plain(self.config), to_plain(config)), by)
        self.backends.apply(config)
        self._apply(config)
        self.lanes.replace(config.lane_policies(), monotonic_ns(), config.governor())
        # Last: it may let those go who wait, and they go by the new lanes.
        self._apply_degradation(config)

    def check(self, config: Config) -> None:
        """InputError where `reconfigure` would raise one; changes nothing."""
        check_change(self.config, config)
        self.backends.check(config)
        self._entrance.check(config)

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and why not."""
        if self.closing:
            return False, "shutting down"
        why = self.backends.unready()
        return not why, why

    def look_around(self, now: int) -> None:
        """Note what has changed of the engines and their breakers since the last look."""
        self.happenings.look_at_breakers(self.backends, now)
        if self._asks_engines:
            self.happenings.look_at_engines((backend.name, backend.engine) for backend in self.backends)

    def over_objective(self, now: int) -> dict[str, int]:
        """Lane -> requests in flight that have passed its TTFT objective without a token: a hang shows here first."""
        bounds = {
            lane: min(self.lanes.policy(lane).objectives.bounds.get("ttft", {}).values(), default=None)
            for lane in self.lanes.snapshot(now)
        }
        out = {lane: 0 for lane, bound in bounds.items() if bound is not None}
        for exchange in self.in_flight.values():
            bound = bounds.get(exchange.lane)
            if bound is not None and exchange.waits_for_token and now - exchange.received > bound:
                out[exchange.lane] += 1
        return out

    def live(self) -> dict[str, Any]:
        """Gauges of this moment."""
        self._desk.flush()
        now = monotonic_ns()
        return {
            "in_flight": len(self.in_flight),
            "connections": len(self.connections),
            **self.backends.connections(),
            "backends": {backend.name: self.backends.load(backend) for backend in self.backends},
            "balance": self.backends.balancing.whole_view(now),
            "load": {"requests": self.peak_load.now, "recent_peak": self.peak_load.peak},
            "cpu": self.hindsight.cpu,
            "loop_lag_ms": self.loop_lag_ns / 1e6,
            "loop_lag_max_ms": self.loop_lag_max_ns / 1e6,
            "lanes": self.lanes.snapshot(now),
            "engine": self.backends.first.engine.view(now),
            "inference": self.backends.first.waits.view(),
            "tokens": self.shaping.view(),
            **({} if self.cache is None else {"cache": self.cache.view()}),
            "counters": msgspec.to_builtins(self.counters),
        }

    def degradation_view(self) -> dict[str, Any]:
        """Where the ladder stands, and the gaps in mid-stream that its lanes did not allow."""
        now = monotonic_ns()
        ladder: dict[str, Any] = {"enabled": False} if self.degradation is None else self.degradation.view(now)
        return {**ladder, "gaps": self.gaps.view(now), "stalls": self.standstill.view(now)}

    def streams(self) -> list[dict[str, Any]]:
        """The requests in flight, oldest first."""
        now = monotonic_ns()
        return [stream_view(exchange, self.standstill, now) for exchange in self.in_flight.values()]
