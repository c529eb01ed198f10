"""The gateway as one object: its ports, its table of requests in flight, its one sweeper."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator, Mapping
from os import urandom
from time import monotonic_ns, time_ns
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tailrace.gateway.accept import Accepting
from tailrace.gateway.config import Config
from tailrace.gateway.engine_link import EngineLink
from tailrace.gateway.exchange import SMALL_UPLOAD, GatewayExchange
from tailrace.gateway.head import Header, HeadError, check_head
from tailrace.gateway.history import History
from tailrace.gateway.lanes import LaneDesk
from tailrace.gateway.record_desk import Measured, RecordDesk, RecordObserver, RecordSink
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.routes import PASSTHROUGH_LANE, Route, RouteKind, route
from tailrace.gateway.server import ClientConnection
from tailrace.gateway.streams import stream_view
from tailrace.gateway.upstream import UpstreamPool
from tailrace.gateway.verdict import Verdict
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.summary import StreamSummary
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import Budgets

log = logging.getLogger(__name__)

SWEEP_NS: Final = 50_000_000
"""How late a budget may be noticed."""
_CONNECTIONS_EVERY: Final = 20
"""Sweeps between two looks at idle and slow clients: one second."""
CLIENT_IDLE_NS: Final = 75_000_000_000
HEAD_NS: Final = 10_000_000_000
UPLOAD_NS: Final = 30_000_000_000
MAX_TARGET: Final = 16 * 1024
MAX_CLIENT_ID: Final = 200
_METHODS: Final = {
    RouteKind.READ: frozenset({b"POST"}),
    RouteKind.RELAY: frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"}),
}

_FIXED: Final = (
    "listen",
    "admin",
    "admin_token",
    "backends",
    "total_running",
    "scrape",
    "records.dir",
    "records.queue",
    "records.seal_rows",
    "records.seal_after",
    "records.retention",
)
"""Keys of the configuration that are read once, at the start."""
_REFUSED: Final = {
    RouteKind.DENIED: (403, "the engine's own administration is not relayed"),
    RouteKind.MALFORMED: (400, "the path is ambiguous"),
    RouteKind.UNKNOWN: (404, "there is no such path here; the configuration's `passthrough` can add it"),
}


class LaneHeaders(Mapping[str, str]):
    """Request headers as lane matches read them; decoded only when one asks."""

    __slots__ = ("_named",)

    def __init__(self, named: dict[bytes, bytes]) -> None:
        self._named = named

    def __getitem__(self, name: str) -> str:
        return self._named[name.encode("latin-1", "replace")].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._named)

    def __len__(self) -> int:
        return len(self._named)


class Counters(msgspec.Struct):
    """What has no record, or goes beyond records."""

    connections_total: int = 0
    connections_refused: int = 0
    records: int = 0
    records_dropped: int = 0
    record_errors: int = 0
    cut_at_shutdown: int = 0


class Gateway:
    """One data port in front of one engine.

    `start` binds and begins; `close` drains and ends. Records go to `sink`, and to `observer` where there is one;
    the last of them stay in `history`.
    """

    def __init__(self, config: Config, sink: RecordSink, *, observer: RecordObserver | None = None) -> None:
        self.config = config
        self.backend = config.backends[0]
        self.engine = EngineLink(self.backend, config.scrape)
        self.pool = UpstreamPool(
            self.backend.url,
            connect_timeout_ns=int(config.connect_timeout),
            keep_alive_ns=int(config.upstream_keepalive),
        )
        self.lanes = LaneDesk(config.lane_policies(), total_running=config.total_running)
        self.kept = History()
        """The last records; `history` reads it up to date."""
        self.counters = Counters()
        self.in_flight: dict[str, GatewayExchange] = {}
        self._desk = RecordDesk(self, sink, observer)
        self.connections: set[ClientConnection] = set()
        self.loop_lag_ns = 0
        self.loop_lag_max_ns = 0
        """The largest lag of the last minute or so: it decays by a tenth a second."""
        self.started_unix_ns = 0
        self.port = 0
        self.host = ""
        self.closing = False
        self._hurry = False
        self._server: asyncio.Server | None = None
        self._accepting = Accepting(lambda: ClientConnection(self))
        self._tick: asyncio.TimerHandle | None = None
        self._due = 0
        self._ticks = 0
        self._apply(config)

    def _apply(self, config: Config) -> None:
        self.config = config
        self.default_budgets: Budgets = config.budgets.resolve()
        self.thresholds = config.slow.resolve()
        self.header_hold_ns = max(0, int(config.header_hold) - SWEEP_NS)
        """The sweeper is up to one period late, so it is told to come one period early."""
        limits = config.limits
        self.max_head_bytes = limits.header_bytes
        self.max_body_bytes = limits.body_bytes
        self.max_event_bytes = limits.event_bytes
        self.max_connections = limits.connections
        self.client_buffer_bytes = limits.client_buffer_bytes
        self.timeline_limit = config.records.timeline_events
        self.sample_rate = config.records.sample

    # -- life

    async def start(self) -> None:
        """Bind the data port, begin to scrape and to sweep. InputError when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        host, port = split_address(self.config.listen, "listen")
        try:
            self._server = await loop.create_server(self._accepting, host, port, backlog=4096)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver can be asked for
            raise bind_error(error, self.config.listen, "--listen") from None
        self._accepting.watch(self._server)
        sockname = self._server.sockets[0].getsockname()
        self.host, self.port = sockname[0], sockname[1]
        self.started_unix_ns = time_ns()
        self._due = monotonic_ns() + SWEEP_NS
        self._tick = loop.call_later(SWEEP_NS / 1e9, self._sweep)
        self.engine.watch.start()

    @property
    def url(self) -> str:
        """Where clients reach the data port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def close(self, drain_s: float | None = None) -> int:
        """Stop accepting, let requests end for `drain_s` seconds, end the rest; returns how many were cut."""
        if self.closing:
            return self.counters.cut_at_shutdown
        self.closing = True
        drain_s = int(self.config.drain) / 1e9 if drain_s is None else drain_s
        self._accepting.close()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        loop = asyncio.get_running_loop()
        until = loop.time() + drain_s
        while self.in_flight and loop.time() < until and not self._hurry:  # noqa: ASYNC110  (polled: a stop is rare)
            await asyncio.sleep(0.02)
        now = monotonic_ns()
        left = list(self.in_flight.values())
        for exchange in left:
            exchange.stop(now)
        self.counters.cut_at_shutdown += len(left)
        if left:
            await asyncio.sleep(0.05)  # the last events leave
        for connection in list(self.connections):
            connection.abort()
        if self._tick is not None:
            self._tick.cancel()
        self._desk.flush()
        await self.engine.watch.close()
        await self.pool.close()
        await asyncio.sleep(0)
        return len(left)

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

    def open(
        self,
        connection: ClientConnection,
        method: bytes,
        target: bytes,
        version: str,
        headers: list[Header],
        *,
        received: int,
        now: int,
    ) -> GatewayExchange:
        """A request's head is complete. Raises `HeadError` for one that cannot be followed."""
        named = check_head(version, headers)
        if len(target) > MAX_TARGET:
            raise HeadError(414, f"the target is longer than {MAX_TARGET} bytes")
        if not target.startswith(b"/"):
            target = _origin_form(target)
        where = route(target, self.config.passthrough)
        exchange = self._exchange(
            connection, method, target, where, version, headers, named, received=received, now=now
        )
        length = int(named.get(b"content-length", b"0"))
        refusal = self._judge_head(method, where, length)
        expect = named.get(b"expect", b"").lower()
        if expect and expect != b"100-continue":
            refusal = Refusal(status=417, message=f"cannot meet the expectation {expect!r}", reason=Reason.BAD_REQUEST)
        if refusal is not None:
            too_much = length > min(SMALL_UPLOAD, self.max_body_bytes)
            exchange.refuse_head(refusal, close=too_much or bool(expect))
        else:
            exchange.expects_continue = bool(expect) and version != "1.0"
        return exchange

    def open_malformed(
        self, connection: ClientConnection, error: HeadError, *, received: int, now: int, version: str
    ) -> GatewayExchange:
        """What came is no request."""
        nowhere = Route(RouteKind.MALFORMED, "")
        exchange = self._exchange(connection, b"", b"", nowhere, version, [], {}, received=received, now=now)
        exchange.refuse_head(Refusal(status=error.status, message=str(error), reason=Reason.BAD_REQUEST), close=True)
        return exchange

    def _exchange(
        self,
        connection: ClientConnection,
        method: bytes,
        target: bytes,
        where: Route,
        version: str,
        headers: list[Header],
        named: dict[bytes, bytes],
        *,
        received: int,
        now: int,
    ) -> GatewayExchange:
        client_id = named.get(b"x-request-id", b"")[:MAX_CLIENT_ID].decode("latin-1")
        request_id = urandom(12).hex()
        if client_id and self.config.trust_request_id and client_id.isprintable() and client_id not in self.in_flight:
            request_id = client_id
        ledger = RequestLedger(
            request_id=request_id,
            client_request_id=client_id,
            session_id=named.get(b"x-session-id", b"")[:MAX_CLIENT_ID].decode("latin-1"),
            start_unix_ns=time_ns() - (now - received),
            received=received,
            endpoint=where.endpoint,
            backend=self.backend.name,
            lane=PASSTHROUGH_LANE,
            blocked=[],
            passages=[],
        )
        exchange = GatewayExchange(
            self,
            connection,
            ledger,
            method=method,
            target=target,
            route=where,
            version=version,
            headers=headers,
            named=named,
            received=received,
        )
        self.in_flight[request_id] = exchange
        return exchange

    def _judge_head(self, method: bytes, where: Route, length: int) -> Refusal | None:
        if where.kind in _REFUSED:
            status, message = _REFUSED[where.kind]
            return Refusal(status=status, message=message, reason=Reason.BAD_REQUEST)
        if method not in _METHODS[where.kind]:
            name = method.decode("latin-1")
            return Refusal(status=405, message=f"{name} is not possible here", reason=Reason.BAD_REQUEST)
        if length > self.max_body_bytes:
            text = f"the body of {length} bytes is larger than {self.max_body_bytes} bytes"
            return Refusal(status=413, message=text, reason=Reason.BAD_REQUEST)
        if self.closing:
            return Refusal(
                status=503, message="the gateway is shutting down", reason=Reason.NO_BACKEND, retry_after_s=1
            )
        return None

    # -- what exchanges ask

    def lane_headers(self, named: dict[bytes, bytes]) -> Mapping[str, str]:
        """Headers for lane matches."""
        return LaneHeaders(named)

    def finished(
        self,
        ledger: RequestLedger,
        measured: Measured | StreamSummary | None,
        verdict: Verdict,
        now: int,
    ) -> None:
        """The one place where a request leaves the table; its record is made with the next batch."""
        self.in_flight.pop(ledger.request_id, None)
        if ledger.loop_lag_ns is None:
            ledger.loop_lag_ns = self.loop_lag_ns
        self._desk.add(ledger, measured, verdict, now)

    def flush_records(self) -> None:
        """Make the records of the requests that have ended; otherwise the next sweep does."""
        self._desk.flush()

    @property
    def history(self) -> History:
        """The last records, whatever has ended included."""
        self._desk.flush()
        return self.kept

    # -- time

    def _sweep(self) -> None:
        try:
            self._look_around()
        finally:
            # Whatever happened: without the next sweep no budget would ever be enforced again.
            self._due = monotonic_ns() + SWEEP_NS
            self._tick = asyncio.get_running_loop().call_later(SWEEP_NS / 1e9, self._sweep)

    def _check(self, exchange: GatewayExchange, now: int) -> None:
        try:
            exchange.sweep(now)
        except Exception:
            log.exception("the budgets of request %s could not be checked", exchange.ledger.request_id)
            exchange.broken(now)

    def _look_around(self) -> None:
        now = monotonic_ns()
        lag = max(0, now - self._due)
        self.loop_lag_ns = lag
        self.loop_lag_max_ns = max(lag, self.loop_lag_max_ns)
        for exchange in list(self.in_flight.values()):
            seen = exchange.loop_lag_ns
            if seen is None or lag > seen:
                exchange.loop_lag_ns = lag
            if exchange.next_check <= now:
                self._check(exchange, now)
        self.lanes.sweep(now)
        self._desk.flush()
        self._ticks += 1
        if self._ticks % _CONNECTIONS_EVERY == 0:
            self.loop_lag_max_ns = self.loop_lag_max_ns * 9 // 10
            self.pool.sweep(now)
            for connection in list(self.connections):
                connection.sweep(now, idle_ns=CLIENT_IDLE_NS, head_ns=HEAD_NS, upload_ns=UPLOAD_NS)

    # -- control and views

    def reconfigure(self, config: Config) -> None:
        """Apply a new configuration to the requests that come; those in flight keep their budgets.

        InputError when it changes what was fixed at the start: that takes a restart.
        """
        for name in _FIXED:
            if _at(config, name) != _at(self.config, name):
                raise InputError(
                    "cannot be changed while serving", place=name, remedy="Restart `tailrace serve` to change it."
                )
        self._apply(config)
        self.pool.connect_timeout_ns = int(config.connect_timeout)
        self.pool.keep_alive_ns = int(config.upstream_keepalive)
        self.lanes.replace(config.lane_policies(), monotonic_ns())

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and why not."""
        if self.closing:
            return False, "shutting down"
        if self.engine.reachable is False:
            return False, f"the engine at {self.backend.url} does not answer: {self.engine.error}"
        return True, ""

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
            "upstream_connections": len(self.pool.open),
            "upstream_idle": len(self.pool.idle),
            "loop_lag_ms": self.loop_lag_ns / 1e6,
            "loop_lag_max_ms": self.loop_lag_max_ns / 1e6,
            "lanes": self.lanes.snapshot(now),
            "engine": self.engine.view(now),
            "counters": msgspec.to_builtins(self.counters),
        }

    def streams(self) -> list[dict[str, Any]]:
        """The requests in flight, oldest first."""
        now = monotonic_ns()
        return [stream_view(exchange, now) for exchange in self.in_flight.values()]


def split_address(text: str, place: str) -> tuple[str, int]:
    """`host:port` -> its parts. InputError when it is none."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        port = None
        parts = urlsplit("//")
    if port is None or not parts.hostname:
        raise InputError(f"{text!r} is no address", place=place, remedy="Write HOST:PORT, for example 127.0.0.1:8080.")
    return parts.hostname, port


def bind_error(error: OSError | UnicodeError, address: str, option: str) -> InputError:
    """A port that cannot be had, with what to do about it."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        port = address.rpartition(":")[2]
        return InputError(
            f"port {port} is in use",
            place=address,
            remedy=f"Stop whatever listens there, or choose another with {option} HOST:PORT (port 0 takes a free one).",
        )
    return InputError(
        f"cannot listen there: {getattr(error, 'strerror', None) or error}",
        place=address,
        remedy=f"Choose another with {option} HOST:PORT.",
    )


def _at(config: Config, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _origin_form(target: bytes) -> bytes:
    """`http://host/path` -> `/path`: a client that takes us for a forward proxy still means our path."""
    lower = target[:8].lower()
    if lower.startswith((b"http://", b"https://")):
        rest = target.partition(b"//")[2]
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"
    return target
