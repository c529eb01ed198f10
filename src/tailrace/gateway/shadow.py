"""Copies of requests for test backends: sent beside the original, read, recorded, and given to nobody.

A copy never delays its original: it begins in a turn of the loop of its own, after the original was sent or has begun
to connect; it waits for no connection; and beyond `at_once` copies there is none. It takes no place in a lane. It ends
with its original where that is cancelled or fails; where the original completes, the copy may end its own answer,
within the total budget.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final

from tailrace.gateway.canary_keys import ShadowConfig
from tailrace.gateway.forward import forward_request, length_line, onward_head
from tailrace.gateway.head import Header
from tailrace.gateway.ids import random_hex
from tailrace.gateway.routes import RouteKind
from tailrace.gateway.verdict import COMPLETED, Verdict
from tailrace.gateway.work import with_fields
from tailrace.govern.canary_policy import SHADOW
from tailrace.govern.route_share import place
from tailrace.measure.dialect import EngineFault
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import Timeline

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.gateway import Gateway
    from tailrace.gateway.upstream import UpstreamConnection

log = logging.getLogger(__name__)

_MAX_BODY: Final = 4 * 1024 * 1024
_ID_BYTES: Final = 12


class ShadowDesk:
    """Decides which requests are copied, and owns the copies in flight."""

    def __init__(self, gateway: Gateway, config: ShadowConfig) -> None:
        self._gateway = gateway
        self.config = config
        self.copies: dict[str, Copy] = {}
        """By the original's id."""
        self.sent = 0
        self.skipped = 0
        """Copies that were not made: too many at once, or no test backend took requests."""
        self.outcomes: dict[str, int] = {}

    def offer(self, exchange: GatewayExchange, body: bytes) -> None:
        """A request is on its way to its own engine: copy it, where it is among the share."""
        request_id = exchange.ledger.request_id
        if (
            exchange.route.kind is not RouteKind.READ
            or exchange.upload is not None
            or request_id in self.copies
            or place(request_id, SHADOW) >= self.config.share
        ):
            return
        gateway = self._gateway
        if len(self.copies) >= self.config.at_once or gateway.closing:
            self.skipped += 1
            return
        backend = self._least_busy()
        if backend is None:
            self.skipped += 1
            return
        copy = Copy(self, gateway, exchange, backend, body)
        self.copies[request_id] = copy
        self.sent += 1
        asyncio.get_running_loop().call_soon(copy.start)

    def _least_busy(self) -> Backend | None:
        """The test backend with the fewest copies, of those that take requests and have a connection left."""
        named = [self._gateway.backends.named(name) for name in self.config.backends]
        able = [backend for backend in named if backend is not None and not (backend.shut or backend.pool.full())]
        busy = [copy.backend for copy in self.copies.values()]
        return min(able, key=busy.count, default=None)

    def original_ended(self, request_id: str, verdict: Verdict) -> None:
        """An original is over; unless it completed, nobody wants to know what the copy would have done."""
        copy = self.copies.get(request_id)
        if copy is not None and verdict.outcome is not OutcomeKind.COMPLETED:
            copy.cancel(verdict.reason)

    def sweep(self, now: int) -> None:
        """End copies that are beyond the total budget."""
        for copy in list(self.copies.values()):
            if now > copy.until:
                copy.time_out()

    def over(self, copy: Copy, verdict: Verdict) -> None:
        """A copy has ended."""
        if self.copies.get(copy.original_id) is copy:
            del self.copies[copy.original_id]
        name = verdict.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1

    def view(self) -> dict[str, Any]:
        """Its numbers."""
        return {
            "backends": self.config.backends,
            "share": self.config.share,
            "at_once": self.config.at_once,
            "in_flight": len(self.copies),
            "sent": self.sent,
            "skipped": self.skipped,
            "outcomes": dict(self.outcomes),
        }

    def close(self) -> None:
        """End every copy."""
        for copy in list(self.copies.values()):
            copy.cancel(Reason.SHUTDOWN)


class Copy:
    """One copy on its way: what a pool and a connection drive."""

    __slots__ = (
        "_body",
        "_connection",
        "_desk",
        "_done",
        "_endpoint",
        "_gateway",
        "_ledger",
        "_meter",
        "_method",
        "_onward",
        "_read",
        "_read_size",
        "_seeking",
        "_whole",
        "_work",
        "backend",
        "original_id",
        "until",
    )

    def __init__(
        self, desk: ShadowDesk, gateway: Gateway, exchange: GatewayExchange, backend: Backend, body: bytes
    ) -> None:
        self._desk, self._gateway, self.backend = desk, gateway, backend
        self._work = work = exchange.work
        self._endpoint = exchange.route.endpoint
        now = monotonic_ns()
        original = exchange.ledger
        self.original_id = original.request_id
        self.until = now + exchange.clock.budgets.total_ns
        self._ledger = ledger = RequestLedger(
            request_id=random_hex(_ID_BYTES),
            client_request_id=original.request_id,
            session_id=original.session_id,
            start_unix_ns=time_ns(),
            received=now,
            parsed=now,
            endpoint=self._endpoint,
            backend=backend.name,
            lane=exchange.lane,
            route=SHADOW,
            blocked=[],
            passages=[],
            prompt_bytes=original.prompt_bytes,
        )
        work.enter_in(ledger)
        head = exchange.head
        self._method = head.method
        self._onward = onward_head(
            head.method,
            backend.pool.prefix + head.target,
            head.headers,
            authority=backend.pool.authority,
            read=True,
            api_key=backend.config.api_key,
            secret=gateway.callers.ours(head.named),
        )
        self._body = body
        self._connection: UpstreamConnection | None = None
        self._seeking = False
        self._meter: StreamMeter | None = None
        self._read: list[bytes] = []
        self._read_size = 0
        self._whole = b""
        self._done = False

    def start(self) -> None:
        """Get a connection, in a turn of the loop of our own."""
        if self._done:
            return
        now = monotonic_ns()
        self._ledger.admitted = now
        self._ledger.at_admission = self.backend.engine.watch.state(now)
        connection = self.backend.pool.take(now)
        if connection is not None:
            self._ledger.connection_reused = True
            self._send(connection)
        else:
            self._seeking = True
            self.backend.pool.connect(self)

    # -- the pool

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:
        """A fresh connection for us."""
        self._ledger.connect_start, self._ledger.connect_end = started, now
        self._ledger.connection_reused = False
        self._send(connection)

    def upstream_free(self, connection: UpstreamConnection, now: int) -> None:
        """We stand in no line; a pool that thinks so gets its connection used all the same."""
        del now
        self._ledger.connection_reused = True
        self._send(connection)

    def upstream_unreachable(self, error: str, now: int) -> None:
        """Nobody answers there."""
        self._seeking = False
        self._end(now, Verdict(OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE, stage="ingress", error=error))

    def _send(self, connection: UpstreamConnection) -> None:
        self._seeking = False
        self._connection = connection
        ledger, work, body, engine = self._ledger, self._work, self._body, self.backend.engine
        self._body = b""
        if work.stream or engine.names_requests:
            body = with_fields(body, work, engine.additions(self._endpoint, work, body, ledger.request_id).body)
        request = forward_request(
            self._onward,
            body,
            request_id=ledger.request_id,
            traceparent=b"",
            framing=length_line(self._method, body),
        )
        ledger.sent = monotonic_ns()
        connection.send(self, request, without_body=False)

    # -- the connection

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The status line."""
        ledger, gateway = self._ledger, self._gateway
        ledger.headers = ledger.first_byte = ledger.client_first_write = now
        ledger.http_status = status
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
        if 200 <= status < 300 and kind.lower().startswith(b"text/event-stream"):
            self._meter = StreamMeter(
                self.backend.engine.adapter.dialect(self._endpoint),
                origin_ns=ledger.received,
                thresholds=gateway.thresholds,
                timeline_limit=gateway.timeline_limit,
                max_event_bytes=gateway.max_event_bytes,
            )

    def upstream_body(self, data: bytes, now: int) -> None:
        """A part of the answer: measured, and dropped."""
        meter = self._meter
        if meter is None:
            self._read_size += len(data)
            if self._read_size <= _MAX_BODY:
                self._read.append(data)
            return
        meter.feed(data, now)
        ledger = self._ledger
        if ledger.client_first_token is None and meter.first_token_ns is not None:
            # Nobody reads it: what a client's side would show ends where ours does.
            ledger.client_first_token = now
            ledger.at_first_token = self.backend.engine.watch.state(now)

    def steady(self) -> None:
        """Every read is read."""
        return

    def upstream_complete(self, now: int) -> None:
        """The answer is whole."""
        self._connection = None
        meter, ledger = self._meter, self._ledger
        adapter = self.backend.engine.adapter
        if meter is not None:
            meter.end(now, clean=True)
            if meter.fault is not None:
                self._end(now, self._faulty(meter.fault))
                return
            ending = adapter.judge(meter.summary(timeline=False))
            self._end(now, Verdict(ending.outcome, ending.reason, ending.stage))
            return
        body = b"".join(self._read)
        self._read.clear()
        if (ledger.http_status or 0) >= 400:
            ending = adapter.error(ledger.http_status or 0, body, path=self._endpoint)
            self._end(now, Verdict(ending.outcome, ending.reason, ending.stage, body[:300].decode("utf-8", "replace")))
            return
        self._whole = body
        self._end(now, COMPLETED)

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The connection died; a copy is not sent twice."""
        del untouched
        self._connection = None
        if self._meter is not None:
            self._meter.end(now, clean=False)
            if self._meter.done:
                self._end(now, COMPLETED)
                return
        self._end(now, Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, "decode" if self._meter else "prefill", error))

    def upstream_broken(self, now: int) -> None:
        """We failed over it."""
        self._connection = None
        self._end(now, Verdict(OutcomeKind.FAILED, Reason.GATEWAY_ERROR, "decode", "the answer could not be read"))

    def _faulty(self, fault: EngineFault) -> Verdict:
        seen = self._meter is not None and self._meter.first_token_ns is not None
        ending = self.backend.engine.adapter.fault(fault, tokens_seen=seen)
        return Verdict(ending.outcome, ending.reason, ending.stage, fault.message)

    # -- ends

    def cancel(self, reason: Reason) -> None:
        """Its original has gone, or the gateway goes."""
        allowed = reason if reason in _CANCELS else Reason.OPERATOR
        self._end(monotonic_ns(), Verdict(OutcomeKind.CANCELLED, allowed))

    def time_out(self) -> None:
        """It takes longer than the total budget."""
        self._end(monotonic_ns(), Verdict(OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT, budget="total"))

    def _end(self, now: int, verdict: Verdict) -> None:
        if self._done:
            return
        self._done = True
        if self._seeking:
            self.backend.pool.forget(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if self._meter is not None and self._meter.ended_at is None:
            self._meter.end(now, clean=False)
        self._ledger.upstream_end = now
        self._ledger.client_last_write = now
        self._desk.over(self, verdict)
        self._gateway.finished(self._ledger, self, verdict, now)

    # -- the record

    def settle(self, verdict: Verdict) -> tuple[StreamSummary | None, Verdict]:
        """What was measured."""
        if self._meter is not None:
            return self._meter.summary(timeline=False), verdict
        if not self._whole:
            return None, verdict
        body, self._whole = self._whole, b""
        meaning = self.backend.engine.adapter.dialect(self._endpoint).read_body(body)
        summary = summarise_body(meaning, origin_ns=self._ledger.received, now=self._ledger.upstream_end or 0)
        return summary, verdict if meaning.fault is None else self._faulty(meaning.fault)

    def timeline(self) -> Timeline | None:
        """The stream's events, if it was one."""
        return None if self._meter is None else self._meter.summary().timeline


_CANCELS: Final = frozenset(
    {
        Reason.CLIENT_DISCONNECT,
        Reason.CLIENT_WRITE_FAILED,
        Reason.BARGE_IN,
        Reason.DEADLINE,
        Reason.OPERATOR,
        Reason.SHUTDOWN,
    }
)
