"""From admission to the engine: which one, what it is sent, on which connection, and whether it is sent again."""

from __future__ import annotations

import asyncio
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Final, cast

from tailrace.gateway.budget_clock import NEVER
from tailrace.gateway.forward import forward_request, length_line, onward_head
from tailrace.gateway.hedging import Leg
from tailrace.gateway.routes import RouteKind
from tailrace.gateway.verdict import Phase
from tailrace.gateway.work import Work, with_fields
from tailrace.govern.retry_policy import Trouble, retry_after_ns, trouble_of

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.head import Header
    from tailrace.gateway.upstream import UpstreamConnection
    from tailrace.gateway.verdict import Verdict
    from tailrace.govern.balance import Want
    from tailrace.model.timeline import EventKind

CROSSING_NS: Final = 1_000_000_000
"""An idle connection's end that crosses our request is here within a round trip. One that dies later may have died of
the request, or after doing its work: that is not done twice."""
_OUTPUT: Final = 256
"""Output tokens of a request that no lane has and that names no limit, as far as outstanding work is concerned."""


def work_tokens(work: Work) -> int:
    """What a request will cost an engine, in tokens, as far as it can be told beforehand."""
    return (work.prompt_tokens or 0) + (work.max_tokens or _OUTPUT)


class Dispatch:
    """One request's way to an engine. The exchange is told of a connection by `send_on`, of none by `unreachable`."""

    # What only a failed attempt changes stands here.
    told_when = False
    """The engine said when to come back (`Retry-After`): that is no failure of its."""
    blamed: tuple[Backend, ...] = ()
    """Backends whose failure is counted already: once a request, however often it was tried there."""
    _tried: tuple[Backend, ...] = ()
    _cuts = 0
    _first_at = 0
    _timer: asyncio.TimerHandle | None = None
    hedging = False
    """A second attempt beside the first runs, or may yet: the head of the first is held for so long."""
    _leg: Leg | None = None
    """A second attempt that runs beside the first."""
    _carrier: Leg | None = None
    """The second attempt, where it has become the only one."""
    _hedge: asyncio.TimerHandle | None = None
    """When it is made."""

    def __init__(self, exchange: GatewayExchange) -> None:
        self._exchange = exchange
        self._body = b""
        self._in_line_since: int | None = None
        self._resent = False
        self.begun = 0
        """When the last attempt began; 0 before the first."""
        self._want: Want | None = None
        self._counted: Backend | None = None
        """Whom our work is counted to."""
        self._tokens = 0

    def begin(self, body: bytes, now: int) -> None:
        """It is admitted: choose an engine, and get a connection to it."""
        exchange = self._exchange
        routing = exchange.gateway.routing
        if routing is not None:
            exchange.among = routing.among(exchange, exchange.among)  # whatever is tried stays on its route
        backends = exchange.gateway.backends
        expected = exchange.gateway.lanes.tokens_of(exchange.ledger.request_id) if len(backends) > 1 else None
        self._tokens = work_tokens(exchange.work) if expected is None else expected
        self._want = backends.balancing.want(exchange, body, self._tokens)
        self._body = body
        if not self._choose(now):
            return
        if backends.balancing.learns:
            backends.balancing.budget.request(now)
        # What has left of an upload cannot be sent again: it never goes onto a connection that may be dying.
        fresh = exchange.fresh_only or (exchange.upload is not None and not exchange.backend.pool.full())
        self._connect(now, fresh=fresh)
        if routing is not None and routing.shadow is not None:
            routing.shadow.offer(exchange, body)

    def _choose(self, now: int) -> bool:
        """Whom it goes to now; false where there is nobody, and it has ended."""
        exchange = self._exchange
        backends = exchange.gateway.backends
        backend = backends.choose(self._want, now, among=exchange.among, but=self._tried)
        if backend is None and exchange.among and not any(map(backends.named, exchange.among)):
            # A reload has renamed or removed all that it could go to: what is there now serves it.
            routing = exchange.gateway.routing
            exchange.among = () if routing is None else routing.among(exchange)
            backend = backends.choose(self._want, now, among=exchange.among, but=self._tried)
        if backend is None:
            exchange.unreachable("no engine takes requests at the moment", now)
            return False
        self._use(backend, now)
        return True

    def _use(self, backend: Backend, now: int) -> None:
        exchange = self._exchange
        exchange.backend = backend
        exchange.ledger.backend = backend.name
        exchange.ledger.at_admission = backend.engine.watch.state(now)
        self.uncount()
        self._counted, self.begun = backend, now
        backend.standing.took(self._tokens)
        backend.standing.breaker.sent(now)
        self._moved()

    def _moved(self) -> None:
        """Where engines' own state is a limit, its place is counted to the engine that it is with now."""
        exchange = self._exchange
        lanes = exchange.gateway.lanes
        if lanes.follows_engines:
            lanes.sent(exchange.ledger.request_id, exchange.backend.name)

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
        if self._retry(Trouble.UNREACHABLE, now):
            return
        exchange.unreachable(f"the engine cannot be reached: {error}", now)

    def _out_of_line(self, now: int) -> None:
        if self._in_line_since is not None:
            self._exchange.ledger.pool_wait_ns = now - self._in_line_since

    # -- what is sent

    def request(self) -> bytes:
        """Head and body as the chosen engine gets them."""
        request, self._exchange.transit.cut = self.request_for(self._exchange.backend)
        if self._exchange.gateway.backends.balancing.hedger is not None:
            self._time_hedge()
        return request

    def request_for(self, backend: Backend) -> tuple[bytes, frozenset[EventKind]]:
        """Head and body as `backend` gets them, and the kinds of events that only we have asked for."""
        exchange = self._exchange
        work, ledger = exchange.work, exchange.ledger
        head, route, upload, body = exchange.head, exchange.route, exchange.upload, self._body
        cut: frozenset[EventKind] = frozenset()
        if route.kind is RouteKind.READ and upload is None and (work.stream or backend.engine.names_requests):
            added = backend.engine.additions(route.endpoint, work, body, ledger.request_id)
            cut = added.cut
            body = with_fields(body, work, added.body)
        deadline = exchange.clock.deadline_at
        if deadline is not None and route.kind is RouteKind.READ and upload is None:
            body = backend.engine.adapter.with_deadline(route.endpoint, body, deadline - monotonic_ns())
        forward = backend.config.forward_priority
        if forward and route.kind is RouteKind.READ and upload is None:
            body = exchange.gateway.priorities.add(
                body,
                work,
                lane=exchange.lane,
                path=route.endpoint,
                adapter=backend.engine.adapter,
                named=head.named,
                override=forward == "override",
            )
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
                secret=exchange.gateway.callers.ours(head.named),
                without=backend.engine.adapter.priority_header if forward == "override" else None,
            )
        request = forward_request(
            onward,
            body,
            request_id=ledger.request_id,
            traceparent=exchange.traceparent,
            framing=length_line(head.method, body) if upload is None else upload.framing,
        )
        return request, cut

    # -- beside

    def _time_hedge(self) -> None:
        """It is about to be sent: when a second attempt is made unless its first byte is here."""
        exchange = self._exchange
        hedger, now = exchange.gateway.backends.balancing.hedger, monotonic_ns()
        if hedger is None or exchange.route.kind is not RouteKind.READ or exchange.upload is not None:
            return
        at = hedger.sent(exchange.lane, now)
        if at is not None and exchange.ledger.attempts == 1:
            self.hedging = True
            self._hedge = asyncio.get_running_loop().call_later((at - now) / 1e9, self._begin_hedge)

    def _begin_hedge(self) -> None:
        self._hedge = None
        self.hedging = False
        exchange, now = self._exchange, monotonic_ns()
        backends = exchange.gateway.backends
        hedger, first = backends.balancing.hedger, exchange.backend
        others = [
            one
            for one in backends.able(exchange.among)
            if one is not first
            and one.standing.usable(now)
            and not (one.standing.breaker.opened or one.pool.full())  # it is not worth waiting for a connection
        ]
        if exchange.phase is not Phase.WAITING or exchange.answer.head_sent or not others:
            return
        if hedger is None or not hedger.go(now):
            return
        backend = backends.balancing.choose(others, self._want, now, ())
        assert backend is not None
        exchange.ledger.attempts += 1
        self.hedging = True
        self._leg = Leg(exchange, self, backend, self._tokens, now)
        self._leg.start(now)

    def answers(self) -> None:
        """The first attempt has what the client wants: no second one is needed."""
        self.hedging = False
        hedge, self._hedge = self._hedge, None
        if hedge is not None:
            hedge.cancel()
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.drop()

    def leg_gone(self, leg: Leg) -> None:
        """The second attempt came to nothing."""
        if self._leg is leg:
            self._leg = None
            self.hedging = False
        leg.drop()

    def leg_failed(self, leg: Leg, now: int) -> None:
        """It came to nothing by its backend's fault, which counts once, whatever becomes of the request."""
        self._blame(leg.backend, leg.begun, now)
        self._tried = (*self._tried, leg.backend)
        self.leg_gone(leg)

    def leg_won(self, leg: Leg, now: int) -> bool:
        """The second attempt has the first byte. False where it comes too late: the client has had a head."""
        hedger = self._exchange.gateway.backends.balancing.hedger
        if self._leg is not leg or self._exchange.answer.head_sent:
            self.leg_gone(leg)
            return False
        if hedger is not None:
            hedger.won += 1
        self._follow(leg, now)
        return True

    def _follow(self, leg: Leg, now: int) -> None:
        """The second attempt is the request's own from here on."""
        self._leg = None
        self.hedging = False
        exchange = self._exchange
        self.uncount()
        self._counted, exchange.backend = leg.backend, leg.backend
        exchange.ledger.backend = leg.backend.name
        exchange.ledger.at_admission = leg.backend.engine.watch.state(now)
        exchange.ledger.retry_wait_ns = leg.begun - self.begun
        self._first_at = self._first_at or self.begun
        self.begun = leg.begun
        self.told_when = False
        self._moved()
        self._carrier = leg
        leg.take_over()

    # -- again

    def again(self, now: int, *, untouched: bool) -> bool:
        """The connection died. True when the request is on its way again."""
        exchange = self._exchange
        sent_at = exchange.clock.sent_at
        if not untouched or self._resent or sent_at is None or now - sent_at >= CROSSING_NS:
            return self._retry(Trouble.CUT, now)
        # The engine closed an idle connection while our request was on its way: it has not seen it.
        self._resent = True
        exchange.ledger.attempts += 1
        exchange.ledger.retries += 1
        self._connect(now, fresh=True)
        return True

    def turned_down(self, status: int, headers: list[Header], now: int) -> bool:
        """The engine answers with an error. True when that is not passed on: another attempt is made."""
        exchange = self._exchange
        wait: int | None = None
        for name, value in headers:
            if name.lower() == b"retry-after":
                wait = retry_after_ns(value.decode("latin-1"), time_ns() / 1e9)
        if wait is not None:
            self.told_when = True
            if status != 429:  # that may be this client's own limit; 503 is the whole engine
                exchange.backend.standing.leave_alone(now + wait, now)
        if status not in exchange.gateway.backends.balancing.retry.statuses:
            return False
        backend = exchange.backend  # another one's from here on, where a second attempt takes over
        retried = self._retry(trouble_of(status), now, status=status, not_before=now + (wait or 0))
        if retried:
            backend.engine.answered(b"")
        return retried

    def _retry(self, trouble: Trouble, now: int, *, status: int = 0, not_before: int = 0) -> bool:
        exchange = self._exchange
        balancing = exchange.gateway.backends.balancing
        if exchange.answer.head_sent or exchange.connection.transport is None or not self._repeatable(trouble):
            return False
        backend = exchange.backend
        self._cuts += trouble is Trouble.CUT
        self._tried = (*self._tried, backend)
        if status != 429 and not self.told_when:
            self._blame(backend, self.begun, now)
        if self._leg is not None:
            self._follow(self._leg, now)
            return True
        again = balancing.again(
            exchange,
            trouble,
            able=exchange.gateway.backends.able(exchange.among),
            tried=self._tried,
            cuts=self._cuts,
            not_before=not_before,
            now=now,
        )
        if again is None:
            return False
        self._first_at = self._first_at or self.begun
        self.told_when = False
        self.uncount()
        self.answers()
        self.start_over()
        exchange.ledger.attempts += 1
        exchange.ledger.retries += 1
        exchange.phase = Phase.CONNECTING
        exchange.clock.connect_by = NEVER
        self._in_line_since = None
        exchange.next_check = exchange.next_budget()
        self._timer = asyncio.get_running_loop().call_later(again.wait_ns / 1e9, self._go)
        return True

    def _blame(self, backend: Backend, begun: int, now: int) -> None:
        if backend not in self.blamed:
            self.blamed = (*self.blamed, backend)
            backend.standing.failed(begun, now)

    def start_over(self) -> None:
        """Nothing is left of the attempt. Until it is sent again it waits, as far as its stages are concerned."""
        exchange, ledger = self._exchange, self._exchange.ledger
        exchange.start_over()
        ledger.sent = ledger.headers = ledger.first_byte = exchange.clock.sent_at = None
        ledger.server_timing, ledger.said_headers = b"", {}

    def _repeatable(self, trouble: Trouble) -> bool:
        """Whether doing it twice does no harm: where nothing of it was sent, or what was sent only makes tokens."""
        exchange = self._exchange
        if trouble is Trouble.UNREACHABLE:
            return True
        return exchange.upload is None and (
            exchange.route.kind is RouteKind.READ or exchange.head.method in (b"GET", b"HEAD")
        )

    def _go(self) -> None:
        """The wait before the next attempt is over."""
        self._timer = None
        now = monotonic_ns()
        if self._choose(now):
            self._exchange.ledger.retry_wait_ns = now - self._first_at
            self._connect(now, fresh=self._exchange.fresh_only)

    # -- ends

    def token(self, now: int) -> None:
        """The first token is here: a backend whose breaker is open has healed, and need not wait for the end."""
        if self.hedging:
            self.answers()
        standing = self._exchange.backend.standing
        if standing.breaker.opened:
            standing.succeeded(self.begun, now)

    def forget(self) -> None:
        """The connection, or the next attempt, that is awaited is not wanted any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        else:
            self._exchange.backend.pool.forget(self)
            if self._carrier is not None:
                self._exchange.backend.pool.forget(self._carrier)

    def uncount(self) -> None:
        """Its work is not with the engine any more."""
        if self.hedging:
            self.answers()
        counted, self._counted = self._counted, None
        if counted is not None:
            counted.standing.gave_back(self._tokens)

    def close(self, verdict: Verdict, now: int) -> None:
        """The request is over."""
        self.uncount()
        balancing = self._exchange.gateway.backends.balancing
        if balancing.learns:
            balancing.ended(self._exchange, verdict, now)
        self._body = b""
        self._carrier = None
        # What refers to itself in a circle would live until the collector comes by.
        self._exchange = cast("GatewayExchange", None)
