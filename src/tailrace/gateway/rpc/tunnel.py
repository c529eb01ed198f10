"""A method of `passthrough`: both directions are relayed until they end, timed and unread."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from tailrace.gateway.rpc import metadata
from tailrace.gateway.rpc.call import CLIENT_LOST, ENGINE_LOST, ClientLostError, Context, OneRequestCall
from tailrace.gateway.rpc.methods import Method
from tailrace.gateway.verdict import COMPLETED

if TYPE_CHECKING:
    from tailrace.gateway.rpc.port import GrpcPort


class TunnelCall(OneRequestCall):
    """One record a call, whatever crosses it."""

    def __init__(self, port: GrpcPort, context: Context, name: str, method: Method, received: int) -> None:
        super().__init__(port, context, name, method, received)
        self._pump: asyncio.Task[None] | None = None

    async def tidy(self) -> None:
        """See `Call`."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    async def serve(self) -> None:
        """Both directions at once."""
        request, context = self.request, self.context
        request.admit_unqueued(0)
        request.sent()
        upstream = self.upstream = self.port.stream(self.name)(
            timeout=self.timeout_s(request), metadata=self.onward(request)
        )
        self._pump = asyncio.ensure_future(self._there())
        ledger = request.ledger
        try:
            while True:
                message = await upstream.read()
                now = monotonic_ns()
                if not isinstance(message, bytes):
                    break
                if ledger.headers is None:
                    ledger.headers = ledger.first_byte = now
                    theirs = await upstream.initial_metadata()
                    try:
                        await context.send_initial_metadata(metadata.back(theirs, ()))
                    except CLIENT_LOST as error:
                        raise ClientLostError from error
                begun, ended, blocked = await self.write(message)
                request.wrote(begun, ended, now, blocked=blocked)
            code, details = await upstream.code(), await upstream.details()
        except aio.AioRpcError as error:
            code, details = error.code(), error.details()
        now = monotonic_ns()
        request.engine_done(now)
        trailing = await upstream.trailing_metadata()
        if code is grpc.StatusCode.OK:
            self.gateway.backends.grpc.engine.answered(b"")
            request.end(now, COMPLETED)
            context.set_trailing_metadata(metadata.back(trailing, metadata.own(ledger, request.lane, now)))
            return
        end = self.port.judge(request, code, details or "", now)
        request.end(now, end.verdict, end.refusal)
        await self.pass_on(end, request, trailing)

    async def _there(self) -> None:
        ledger = self.request.ledger
        ledger.prompt_bytes = 0
        try:
            while isinstance(message := await self.context.read(), bytes):
                ledger.prompt_bytes += len(message)
                await self.upstream.write(message)
            await self.upstream.done_writing()
        except ENGINE_LOST:
            return  # the engine's side has ended; whoever reads from it knows why
