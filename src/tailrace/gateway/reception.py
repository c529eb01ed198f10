"""From a request's head to an exchange that lives, or to one that can only be refused."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Final

from tailrace.gateway.cached_exchange import CachedExchange
from tailrace.gateway.exchange import GatewayExchange
from tailrace.gateway.gathering import SMALL_UPLOAD
from tailrace.gateway.head import Header, HeadError, check_head, origin_form
from tailrace.gateway.ids import random_hex
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.request_head import RequestHead
from tailrace.gateway.routes import PASSTHROUGH_LANE, Route, RouteKind, route
from tailrace.gateway.server import ClientConnection
from tailrace.gateway.session import SessionExchange, takes_up
from tailrace.gateway.upload import Upload, streams_up
from tailrace.measure.ledger import RequestLedger
from tailrace.model.outcome import Reason

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway

MAX_TARGET: Final = 16 * 1024
MAX_CLIENT_ID: Final = 200
_ID_BYTES: Final = 12
_METHODS: Final = {
    RouteKind.READ: frozenset({b"POST"}),
    RouteKind.RELAY: frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"}),
    RouteKind.SOCKET: frozenset({b"GET"}),
}
_REFUSED: Final = {
    RouteKind.DENIED: (403, "the engine's own administration is not relayed"),
    RouteKind.MALFORMED: (400, "the path is ambiguous"),
    RouteKind.UNKNOWN: (404, "there is no such path here; the configuration's `passthrough` can add it"),
}


class Reception:
    """Opens exchanges and enters them in the gateway's table."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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
        gateway = self._gateway
        known = connection.known_head
        if known is not None and known.same(method, target, version, headers, gateway.config):
            length = known.length_of(headers)
            if length <= gateway.max_body_bytes and not (gateway.closing or gateway.backends.shut):
                return self._enter(connection, known, received=received, now=now)
        named = check_head(version, headers)
        if len(target) > MAX_TARGET:
            raise HeadError(414, f"the target is longer than {MAX_TARGET} bytes")
        if not target.startswith(b"/"):
            target = origin_form(target)
        passthrough = gateway.config.passthrough
        where = route(target, passthrough)
        head = RequestHead(method, target, version, headers, named, where, gateway.config)
        offered = b"upgrade" in named and takes_up(method, where, version, headers, passthrough)
        made = SessionExchange if offered or where.kind is RouteKind.SOCKET else GatewayExchange
        exchange = self._enter(connection, head, received=received, now=now, made=made)
        length = int(named.get(b"content-length", b"0"))
        flows = not offered and streams_up(where, named, length)
        limit = gateway.max_upload_bytes if flows else gateway.max_body_bytes
        refusal = self._judge(method, where, length, limit) or gateway.callers.turned_away(named)
        if offered and isinstance(exchange, SessionExchange):
            refusal = exchange.judge_offer(refusal)
        expect = named.get(b"expect", b"").lower()
        if expect and expect != b"100-continue":
            refusal = Refusal(
                status=417,
                message=f"cannot meet the expectation {expect.decode('latin-1')!r}",
                reason=Reason.BAD_REQUEST,
            )
        if refusal is not None:
            too_much = length > min(SMALL_UPLOAD, limit)
            exchange.refuse_head(refusal, close=too_much or bool(expect))
            return exchange
        exchange.expects_continue = bool(expect) and version != "1.0"
        if flows:
            exchange.upload = Upload(exchange, length if b"content-length" in named else None)
        elif where.kind is RouteKind.READ and not expect and b"upgrade" not in named:
            connection.known_head = head
        return exchange

    def open_malformed(
        self, connection: ClientConnection, error: HeadError, *, received: int, now: int, version: str
    ) -> GatewayExchange:
        """What came is no request."""
        nowhere = Route(RouteKind.MALFORMED, "")
        head = RequestHead(b"", b"", version, [], {}, nowhere, self._gateway.config)
        exchange = self._enter(connection, head, received=received, now=now)
        exchange.refuse_head(Refusal(status=error.status, message=str(error), reason=Reason.BAD_REQUEST), close=True)
        return exchange

    def _enter(
        self,
        connection: ClientConnection,
        head: RequestHead,
        *,
        received: int,
        now: int,
        made: type[GatewayExchange] = GatewayExchange,
    ) -> GatewayExchange:
        gateway, named = self._gateway, head.named
        request_id = random_hex(_ID_BYTES)
        client_id = named.get(b"x-request-id", b"")[:MAX_CLIENT_ID].decode("latin-1")
        if client_id and gateway.config.trust_request_id and client_id.isprintable():
            request_id = request_id if client_id in gateway.in_flight else client_id
        ledger = RequestLedger(
            request_id=request_id,
            client_request_id=client_id,
            session_id=named.get(b"x-session-id", b"")[:MAX_CLIENT_ID].decode("latin-1"),
            start_unix_ns=time_ns() - (now - received),
            received=received,
            endpoint=head.route.endpoint,
            backend=gateway.backends.sole_name,
            lane=PASSTHROUGH_LANE,
            blocked=[],
            passages=[],
        )
        if gateway.cache is not None and made is GatewayExchange and gateway.cache.takes(head.route):
            made = CachedExchange
        exchange = made(gateway, connection, ledger, head, received)
        if gateway.retiring:
            exchange.keep_alive = False
        gateway.in_flight[request_id] = exchange
        return exchange

    def _judge(self, method: bytes, where: Route, length: int, limit: int) -> Refusal | None:
        if where.kind in _REFUSED:
            status, message = _REFUSED[where.kind]
            return Refusal(status=status, message=message, reason=Reason.BAD_REQUEST)
        if method not in _METHODS[where.kind]:
            name = method.decode("latin-1")
            allow = b", ".join(sorted(_METHODS[where.kind]))
            message = f"{name} is not possible here; possible: {allow.decode()}"
            return Refusal(status=405, message=message, reason=Reason.BAD_REQUEST, allow=allow)
        if length > limit:
            text = f"the body of {length} bytes is larger than {limit} bytes"
            return Refusal(status=413, message=text, reason=Reason.BAD_REQUEST)
        return self._gateway.turned_away()
