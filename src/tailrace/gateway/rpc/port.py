"""The gRPC port: the server for clients, the channel to the engine, and which call is of which kind."""

from __future__ import annotations

import asyncio
import functools
import logging
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from tailrace.gateway.grpc_keys import grpc_target
from tailrace.gateway.ids import random_hex
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.routes import PASSTHROUGH_LANE, RouteKind
from tailrace.gateway.rpc import metadata
from tailrace.gateway.rpc.answer import UpstreamEnd, upstream_end
from tailrace.gateway.rpc.bind import address_text, unbound
from tailrace.gateway.rpc.call import Call, Context, RefusedCall, UnaryCall
from tailrace.gateway.rpc.infer import InferCall
from tailrace.gateway.rpc.methods import Method, Shape, method_of
from tailrace.gateway.rpc.request import RpcRequest
from tailrace.gateway.rpc.stream import StreamCall
from tailrace.gateway.rpc.tunnel import TunnelCall
from tailrace.gateway.trace import Trace
from tailrace.measure.ledger import RequestLedger
from tailrace.model.outcome import Reason

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway

log = logging.getLogger(__name__)

MAX_ID: Final = 200
_RECONNECT_MS: Final = 1000
"""gRPC's own backoff grows to two minutes, in which a restarted engine would be called unreachable."""
_KNOWN_METHODS: Final = 256
_LAST_WORDS_S: Final = 0.2
"""How long calls that were told of the end may take to pass it on."""


class GrpcPort:
    """Serves gRPC in front of one engine, for a gateway that owns lanes, budgets and records."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        config = gateway.config
        address, secure = grpc_target(gateway.backends.grpc.config.grpc_url or "")
        limit = config.limits.grpc_message_bytes
        self._sizes = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
        options: list[tuple[str, Any]] = [
            *self._sizes,
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", max(100, int(config.connect_timeout) // 1_000_000)),
            ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
        ]
        # Channel and multicallables are made on the loop that uses them: `start`.
        self._options = options
        self._target = address
        self._secure = secure
        self._channel: aio.Channel | None = None
        self._server: aio.Server | None = None
        self._unary: dict[str, Any] = {}
        self._stream: dict[str, Any] = {}
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self._calls: dict[Call, str] = {}
        self._traces: dict[str, Trace] = {}
        self._running: set[Call] = set()
        self._leaving: asyncio.Future[None] | None = None
        self.host = ""
        self.port = 0

    # -- life

    async def start(self, listen: tuple[str, int]) -> None:
        """Bind and serve. InputError when the address cannot be had."""
        self._channel = (
            aio.secure_channel(self._target, grpc.ssl_channel_credentials(), options=self._options)
            if self._secure
            else aio.insecure_channel(self._target, options=self._options)
        )
        server = self._server = aio.server(
            options=[
                *self._sizes,
                ("grpc.so_reuseport", int(self.gateway.config.workers > 1)),
                # A client whose network is gone says nothing: ask it, so that the engine does not work for nobody.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                # Clients may ask too, and more often than once in five minutes, for which gRPC would hang up on them.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ],
            maximum_concurrent_rpcs=self.gateway.max_connections,
        )
        server.add_generic_rpc_handlers((_Methods(self),))
        host, port = listen
        self.host = host
        try:
            self.port = server.add_insecure_port(address_text(host, port))
        except RuntimeError:
            raise unbound(host, port, "grpc_listen") from None
        await server.start()

    def retire(self, within_s: float) -> None:
        """Take no new connections and calls; those that are here go on for `within_s` at most."""
        if self._server is not None:
            self._leaving = asyncio.ensure_future(self._server.stop(within_s))

    async def close(self) -> None:
        """End every call that is left and free the port. Requests in flight have ended before."""
        if self._server is not None:
            text = "the gateway is shutting down"
            for call in list(self._running):
                call.end_with(Refusal(status=503, message=text, reason=Reason.SHUTDOWN, retry_after_s=1))
            await self._server.stop(_LAST_WORDS_S)
        if self._leaving is not None:
            await self._leaving
        if self._channel is not None:
            await self._channel.close()

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def idle(self) -> bool:
        """No call is left."""
        return not (self._running or self._calls or self._traces)

    # -- calls

    def handler(self, name: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Who serves a method. Every one is served: a refusal leaves a record too."""
        found = self._handlers.get(name)
        if found is None:
            # Every method is served as a stream, so that the request is seen from its headers on, its upload included.
            found = grpc.stream_stream_rpc_method_handler(functools.partial(self._serve, name))
            if len(self._handlers) < _KNOWN_METHODS:
                self._handlers[name] = found
        return found

    async def _serve(self, name: str, _: object, context: Context) -> None:
        received = monotonic_ns()
        call = self._call(name, context, received)
        self._running.add(call)
        try:
            await call.run()
        finally:
            self._running.discard(call)
            request_id = self._calls.pop(call, "")
            self._traces.pop(request_id, None)

    def _call(self, name: str, context: Context, received: int) -> Call:
        method = method_of(name, self.gateway.config.passthrough)
        refusal = self._refusal(name, method, context)
        if refusal is not None:
            return RefusedCall(self, context, name, method, received, refusal)
        if method.shape is Shape.STREAM:
            return StreamCall(self, context, name, method, received)
        if method.shape is Shape.TUNNEL:
            return TunnelCall(self, context, name, method, received)
        kind = InferCall if method.route.kind is RouteKind.READ else UnaryCall
        return kind(self, context, name, method, received)

    def _refusal(self, name: str, method: Method, context: Context) -> Refusal | None:
        if method.route.kind is RouteKind.DENIED:
            text = "the engine's own administration is not relayed"
            return Refusal(status=403, message=text, reason=Reason.BAD_REQUEST)
        if method.route.kind is RouteKind.UNKNOWN:
            text = f"there is no method {name[:MAX_ID]} here; the configuration's `passthrough` can add it"
            return Refusal(status=404, message=text, reason=Reason.BAD_REQUEST)
        away = self.gateway.turned_away()
        if away is None and self.gateway.config.require_key:
            away = self.gateway.callers.turned_away(metadata.named_of(context.invocation_metadata() or ()))
        return away

    def open(self, call: Any, received: int, *, number: int = 1) -> RpcRequest:
        """A request begins: its ids, its account, its row in the table of those in flight."""
        gateway, named = self.gateway, call.named
        client_id = metadata.lookup(named, b"x-request-id", MAX_ID)
        call_id = self._calls.get(call)
        if call_id is None:
            call_id = self._calls[call] = self._new_id(client_id)
            endpoint = call.method.route.endpoint
            self._traces[call_id] = gateway.traces.trace(
                named, engine=gateway.backends.grpc.engine.name, endpoint=endpoint
            )
        trace = self._traces[call_id]
        now = monotonic_ns()
        ledger = RequestLedger(
            request_id=call_id if number == 1 else f"{call_id}-{number}",
            client_request_id=client_id,
            trace_id=trace.trace_id,
            parent_id=trace.parent_id,
            span_id=trace.span_id,
            session_id=metadata.lookup(named, b"x-session-id", MAX_ID),
            start_unix_ns=time_ns() - (now - received),
            received=received,
            endpoint=call.method.route.endpoint,
            backend=gateway.backends.grpc.name,
            lane=PASSTHROUGH_LANE,
            stream=False,
            blocked=[],
            passages=[],
        )
        remaining = call.context.time_remaining()
        deadline = None if remaining is None else now + round(remaining * 1e9)
        said = named.get(b"x-deadline-ms", b"")
        if said.isdigit() and len(said) <= 12:
            own = received + int(said) * 1_000_000
            deadline = own if deadline is None else min(own, deadline)
        return RpcRequest(
            gateway,
            ledger,
            route=call.method.route,
            named=named,
            deadline_at=deadline,
            client=call.client,
            interrupt=call.interrupt,
        )

    def _new_id(self, client_id: str) -> str:
        gateway = self.gateway
        if client_id and gateway.config.trust_request_id and client_id == metadata.plain(client_id):
            taken = client_id in gateway.in_flight or client_id in self._traces
            if not taken:
                return client_id
        return random_hex(12)

    def call_id(self, call: Call) -> str:
        """The id of a call, which is that of its first request."""
        return self._calls.get(call, "")

    # -- the engine

    @property
    def asks_final(self) -> bool:
        """Whether to ask for the end mark: of Triton, and of whoever has not been recognised as something else."""
        return self.gateway.backends.grpc.engine.name in ("", "triton")

    def unary(self, name: str) -> Any:
        """How to call a method that has one question and one answer."""
        found = self._unary.get(name)
        if found is None:
            assert self._channel is not None
            found = self._unary[name] = self._channel.unary_unary(name)
        return found

    def stream(self, name: str) -> Any:
        """How to call a method whose messages go both ways."""
        found = self._stream.get(name)
        if found is None:
            assert self._channel is not None
            found = self._channel.stream_stream(name)
            if len(self._stream) < _KNOWN_METHODS:
                self._stream[name] = found
        return found

    def onward(self, pairs: Any, request: RpcRequest) -> tuple[metadata.Pair, ...]:
        """Metadata for the engine."""
        call_id = request.ledger.request_id
        trace = self._traces[call_id]
        return metadata.onward(
            pairs, request_id=call_id, traceparent=trace.header, api_key=self.gateway.backends.grpc.config.api_key
        )

    def judge(self, request: RpcRequest, code: grpc.StatusCode, details: str, now: int) -> UpstreamEnd:
        """How a request ended whose call ended with an error."""
        return upstream_end(request, code, details, now)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Asks the port, for whatever method comes."""

    def __init__(self, port: GrpcPort) -> None:
        self._port = port

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """See grpc."""
        return self._port.handler(handler_call_details.method)
