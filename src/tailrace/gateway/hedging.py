"""A second attempt beside one that is slow to answer: whichever has a byte first is relayed, the other is given up.

A `Leg` stands where the first attempt has its transit. It holds the engine's head back until a body byte is there: many
engines send the head at once and work afterwards. Having won, it passes everything on.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from tailrace.gateway.verdict import Phase

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend
    from tailrace.gateway.dispatch import Dispatch
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.head import Header
    from tailrace.gateway.upstream import Reads, UpstreamConnection
    from tailrace.model.timeline import EventKind


class Leg:
    """The second attempt of one request. Its work is counted to its backend from the beginning."""

    def __init__(self, exchange: GatewayExchange, dispatch: Dispatch, backend: Backend, tokens: int, now: int) -> None:
        self._exchange = exchange
        self._dispatch = dispatch
        self.backend = backend
        self.begun = now
        self._tokens = tokens
        self.connection: UpstreamConnection | None = None
        self.sent_at: int | None = None
        self._cut: frozenset[EventKind] = frozenset()
        self._head: tuple[int, list[Header], int] | None = None
        self._first = False
        """It is the request's only attempt now: won, or the other has failed."""
        self._dropped = False
        backend.standing.took(tokens)
        backend.standing.breaker.sent(now)

    def start(self, now: int) -> None:
        """Get a connection, and send."""
        connection = self.backend.pool.take(now)
        if connection is not None:
            self._send(connection)
        else:
            self.backend.pool.connect(self)

    def drop(self) -> None:
        """It is not wanted any more: the engine sees that at once."""
        if self._dropped:
            return
        self._dropped = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()
        else:
            self.backend.pool.forget(self)
        self.backend.standing.gave_back(self._tokens)

    def take_over(self) -> None:
        """The first attempt is out of it. From here on this is the request's own."""
        self._first = True
        exchange = self._exchange
        self._dispatch.start_over()
        exchange.transit.cut = self._cut
        if self.connection is None:
            exchange.phase = Phase.CONNECTING
        else:
            self._carry(self.connection)
        if self._head is not None:
            (status, headers, at), self._head = self._head, None
            exchange.transit.upstream_head(status, headers, at)
        exchange.next_check = exchange.next_budget()

    def _carry(self, connection: UpstreamConnection) -> None:
        exchange = self._exchange
        assert self.sent_at is not None
        exchange.carried_by(connection)
        exchange.clock.sent_at = exchange.ledger.sent = self.sent_at
        exchange.phase = Phase.WAITING

    # -- what the pool tells

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:  # noqa: ARG002
        """A fresh connection."""
        self._send(connection)

    def upstream_free(self, connection: UpstreamConnection, now: int) -> None:  # noqa: ARG002
        """A connection that another request has given back."""
        self._send(connection)

    def upstream_unreachable(self, error: str, now: int) -> None:
        """Nobody answers there."""
        self.backend.engine.watch.unreachable()
        if self._first:
            self._dispatch.upstream_unreachable(error, now)
        else:
            self._fail(now)

    def _send(self, connection: UpstreamConnection) -> None:
        request, self._cut = self._dispatch.request_for(self.backend)
        self.connection = connection
        self.sent_at = monotonic_ns()
        if self._first:
            self._exchange.transit.cut = self._cut
            self._carry(connection)
        connection.send(self, request, without_body=self._exchange.head.method == b"HEAD")

    def _fail(self, now: int) -> None:
        """Without a word to the client: the first attempt still runs."""
        self._dispatch.leg_failed(self, now)

    # -- what its connection tells

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The status line: an error loses, anything else waits for a byte."""
        if self._first:
            self._exchange.transit.upstream_head(status, headers, now)
        elif status >= 500:
            self._fail(now)
        elif status >= 400:
            self._dispatch.leg_gone(self)
        else:
            self._head = (status, headers, now)

    def upstream_body(self, data: bytes, now: int) -> None:
        """A byte: whoever has the first one wins."""
        if not self._first and not self._dispatch.leg_won(self, now):
            return
        self._exchange.transit.upstream_body(data, now)

    def steady(self) -> Reads | None:
        """The transit's, once it is the transit's answer."""
        return self._exchange.transit.steady() if self._first else None

    def upstream_complete(self, now: int) -> None:
        """The message is whole."""
        if self._first or self._dispatch.leg_won(self, now):
            self._exchange.transit.upstream_complete(now)

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The connection ended before the message did."""
        if self._first:
            self._exchange.transit.upstream_lost(error, untouched=untouched, now=now)
        else:
            self.connection = None
            self._fail(now)

    def upstream_broken(self, now: int) -> None:
        """Reading the answer failed for a reason of our own."""
        if self._first:
            self._exchange.transit.upstream_broken(now)
        else:
            self.connection = None
            self._dispatch.leg_gone(self)
