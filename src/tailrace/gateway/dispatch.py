"""From admission to the engine: which one, what it is sent, on which connection, and whether it is sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.gateway.forward import forward_request, length_line, onward_head
from tailrace.gateway.routes import RouteKind
from tailrace.gateway.verdict import Phase
from tailrace.gateway.work import Work, with_fields

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.upstream import UpstreamConnection

CROSSING_NS: Final = 1_000_000_000
"""An idle connection's end that crosses our request is here within a round trip. One that dies later may have died of
the request, or after doing its work: that is not done twice."""
_OUTPUT: Final = 256
"""Output tokens of a request that names no limit, as far as the engines' outstanding work is concerned."""


def work_tokens(work: Work) -> int:
    """What a request will cost an engine, in tokens, as far as it can be told beforehand."""
    return (work.prompt_tokens or 0) + (work.max_tokens or _OUTPUT)


class Dispatch:
    """One request's way to an engine. The exchange is told of a connection by `send_on`, of none by `unreachable`."""

    __slots__ = ("_body", "_counted", "_exchange", "_in_line_since", "_resent", "_tokens")

    def __init__(self, exchange: GatewayExchange) -> None:
        self._exchange = exchange
        self._body = b""
        self._in_line_since: int | None = None
        self._resent = False
        self._counted: Backend | None = None
        """Whom our work is counted to."""
        self._tokens = 0

    def begin(self, body: bytes, now: int) -> None:
        """It is admitted: choose an engine, and get a connection to it."""
        exchange = self._exchange
        gateway = exchange.gateway
        backend = gateway.backends.choose()
        if backend is None:
            exchange.unreachable("no engine takes requests at the moment", now)
            return
        self._body = body
        self._use(backend, now)
        # What has left of an upload cannot be sent again: it never goes onto a connection that may be dying.
        fresh = exchange.fresh_only or (exchange.upload is not None and not backend.pool.full())
        self._connect(now, fresh=fresh)

    def _use(self, backend: Backend, now: int) -> None:
        exchange = self._exchange
        exchange.backend = backend
        exchange.ledger.backend = backend.name
        exchange.ledger.at_admission = backend.engine.watch.state(now)
        self.uncount()
        self._counted, self._tokens = backend, work_tokens(exchange.work)
        backend.took(self._tokens)

    def _connect(self, now: int, *, fresh: bool) -> None:
        exchange = self._exchange
        pool = exchange.backend.pool
        connection = None if fresh else pool.take(now)
        if connection is not None:
            exchange.ledger.connection_reused = True
            exchange.send_on(connection)
            return
        exchange.phase = Phase.CONNECTING
        if pool.full():
            self._in_line_since = now
            exchange.clock.connect_by = (exchange.ledger.queued or now) + exchange.clock.budgets.queue_ns
            pool.stand_in_line(self)
        else:
            pool.connect(self)
        exchange.next_check = exchange.next_budget()

    # -- what the pool tells

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:
        """A fresh connection for us."""
        ledger = self._exchange.ledger
        ledger.connect_start = started
        ledger.connect_end = now
        ledger.connection_reused = False
        self._out_of_line(started)
        self._exchange.send_on(connection)

    def upstream_free(self, connection: UpstreamConnection, now: int) -> None:
        """A connection that another request has given back."""
        self._exchange.ledger.connection_reused = True
        self._out_of_line(now)
        self._exchange.send_on(connection)

    def upstream_unreachable(self, error: str, now: int) -> None:
        """Nobody answers at the engine's address."""
        exchange = self._exchange
        exchange.backend.engine.watch.unreachable()
        exchange.unreachable(f"the engine cannot be reached: {error}", now)

    def _out_of_line(self, now: int) -> None:
        if self._in_line_since is not None:
            self._exchange.ledger.pool_wait_ns = now - self._in_line_since

    # -- what is sent

    def request(self) -> bytes:
        """Head and body as the chosen engine gets them."""
        exchange = self._exchange
        backend, work, ledger = exchange.backend, exchange.work, exchange.ledger
        head, route, upload, body = exchange.head, exchange.route, exchange.upload, self._body
        if route.kind is RouteKind.READ and upload is None and (work.stream or backend.engine.names_requests):
            added = backend.engine.additions(route.endpoint, work, body, ledger.request_id)
            exchange.transit.cut = added.cut
            body = with_fields(body, work, added.body)
        onward = head.onward.get(backend)
        if onward is None:
            pool = backend.pool
            onward = head.onward[backend] = onward_head(
                head.method,
                pool.prefix + head.target,
                head.headers,
                authority=pool.authority,
                read=route.kind is RouteKind.READ,
                api_key=backend.config.api_key,
            )
        return forward_request(
            onward,
            body,
            request_id=ledger.request_id,
            traceparent=exchange.traceparent,
            framing=length_line(head.method, body) if upload is None else upload.framing,
        )

    # -- ends

    def again(self, now: int, *, untouched: bool) -> bool:
        """The connection died. True when the request is on its way again, on a fresh one."""
        exchange = self._exchange
        sent_at = exchange.clock.sent_at
        if not untouched or self._resent or sent_at is None or now - sent_at >= CROSSING_NS:
            return False
        # The engine closed an idle connection while our request was on its way: it has not seen it.
        self._resent = True
        exchange.ledger.attempts += 1
        exchange.ledger.retries += 1
        self._connect(now, fresh=True)
        return True

    def forget(self) -> None:
        """The connection that is awaited is not wanted any more."""
        self._exchange.backend.pool.forget(self)

    def uncount(self) -> None:
        """Its work is not with the engine any more."""
        counted, self._counted = self._counted, None
        if counted is not None:
            counted.gave_back(self._tokens)

    def close(self) -> None:
        """The request is over."""
        self.uncount()
        self._body = b""
