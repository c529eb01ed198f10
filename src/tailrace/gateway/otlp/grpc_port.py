"""OTLP over gRPC, for exporters that speak nothing else: SGLang's. Needs the extra `grpc`; loaded only where asked for.

The rules are the admin port's: loopback, or a bearer token in the metadata `authorization`.
"""

from __future__ import annotations

import hmac
from typing import Final

import grpc
from grpc import aio

from tailrace.gateway.otlp.span_desk import AT_ONCE, BusyError, SpanDesk
from tailrace.gateway.rpc.bind import address_text, unbound
from tailrace.measure.otlp_protobuf import reception_message, spans_of_protobuf
from tailrace.measure.otlp_value import OtlpError

METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
KEY: Final = "traces.grpc_listen"


class GrpcSpans:
    """The service `TraceService` and nothing else."""

    def __init__(self, desk: SpanDesk, *, body_bytes: int, token: str | None) -> None:
        self._desk = desk
        self._body_bytes = body_bytes
        self._token = token
        self._server: aio.Server | None = None
        self.address = ""

    async def start(self, listen: tuple[str, int]) -> None:
        """Bind and serve. InputError when the address cannot be had."""
        server = aio.server(
            options=[
                ("grpc.max_receive_message_length", self._body_bytes),
                # Two processes on one port would each get some of the spans.
                ("grpc.so_reuseport", 0),
            ],
            # Messages are read before anybody is asked.
            maximum_concurrent_rpcs=2 * AT_ONCE,
        )
        server.add_generic_rpc_handlers((_Method(self),))
        host, port = listen
        try:
            bound = server.add_insecure_port(address_text(host, port))
        except RuntimeError:
            raise unbound(host, port, KEY) from None
        if not bound:
            raise unbound(host, port, KEY)
        await server.start()
        self._server = server
        self.address = address_text(host, bound)

    async def close(self) -> None:
        """Free the port."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0.1)

    async def export(self, request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        """Take one export."""
        if self._token:
            said = dict(context.invocation_metadata() or ()).get("authorization", "")
            said = said.encode() if isinstance(said, str) else said
            if not hmac.compare_digest(said, f"Bearer {self._token}".encode()):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a bearer token is needed: `admin_token`")
        try:
            with self._desk.place():
                taken = await self._desk.work(spans_of_protobuf(request))
        except BusyError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "other posts are being worked on")
        except OtlpError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return reception_message(taken.rejected, taken.why)


class _Method(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, spans: GrpcSpans) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(spans.export)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """See grpc."""
        return self._handler if handler_call_details.method == METHOD else None
