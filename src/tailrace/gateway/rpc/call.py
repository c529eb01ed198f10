"""One RPC of a client: what every kind of call has in common, and above all how it ends.

A call ends in one of three ways: as the engine's answer does; with a refusal of ours, whoever decided on it (a lane,
the sweeper, a shutdown); or because the client left, which gRPC tells by cancelling this task. The latter two arrive
as the same exception, and are told apart by whether a refusal is there.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from grpc import aio

from tailrace.gateway.refusal import Refusal
from tailrace.gateway.rpc import metadata
from tailrace.gateway.rpc.answer import UpstreamEnd, code_of, number_of
from tailrace.gateway.rpc.methods import Method
from tailrace.gateway.rpc.request import ClientSide, RpcRequest
from tailrace.gateway.verdict import COMPLETED
from tailrace.model.outcome import Reason

if TYPE_CHECKING:
    from tailrace.gateway.rpc.port import GrpcPort

log = logging.getLogger(__name__)

BLOCKED_NS: Final = 5_000_000
"""A write that the client's transport takes is done within a fraction of this; a longer one waited for the client."""


class Context(Protocol):
    """`grpc.aio.ServicerContext`, as far as it is used; grpcio has no types."""

    async def read(self) -> object:
        """The client's next message, or a mark that there is none."""

    async def write(self, message: bytes) -> None:
        """Returns when the transport has taken it, which waits for the client's window."""

    async def send_initial_metadata(self, pairs: Iterable[metadata.Pair]) -> None:
        """Before the first message."""

    def set_trailing_metadata(self, pairs: Iterable[metadata.Pair]) -> None:
        """With the status."""

    def set_code(self, code: object) -> None:
        """The status."""

    def set_details(self, details: str) -> None:
        """Its text."""

    def invocation_metadata(self) -> Iterable[metadata.Pair] | None:
        """The client's."""

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline."""


Upstream = Any
"""grpc.aio's call objects share no type that has all of read, write and cancel."""


class ClientLostError(Exception):
    """What was written did not reach the client."""


ENGINE_LOST: Final = (aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError)
"""How a write to the engine fails once its side of the call has ended. Whoever reads from it gets the status."""
CLIENT_LOST: Final = (aio.BaseError, asyncio.InvalidStateError)
"""How a write to the client fails once its side has."""


class Call(ABC):
    """Base of the kinds of calls. `run` is what gRPC awaits."""

    def __init__(self, port: GrpcPort, context: Context, name: str, method: Method, received: int) -> None:
        self.port = port
        self.gateway = port.gateway
        self.context = context
        self.name = name
        self.method = method
        self.received = received
        self.pairs = tuple(context.invocation_metadata() or ())
        self.named = metadata.named_of(self.pairs)
        self.client = ClientSide()
        self.upstream: Upstream = None
        self.refusal: Refusal | None = None
        self.writes = 0
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Serve the call to its end."""
        self._task = asyncio.current_task()
        try:
            await self.serve()
        except asyncio.CancelledError:
            self.drop_upstream()
            if self.refusal is None:
                self.client_left(monotonic_ns())
                raise
            assert self._task is not None
            self._task.uncancel()
        except ClientLostError:
            self.drop_upstream()
            if self.refusal is None:
                self.client_left(monotonic_ns(), write_failed=True)
        except Exception:
            # Nothing that belongs to the call may stay behind, whatever we did wrong.
            log.exception("the call of %s could not be served", self.name)
            self.drop_upstream()
            self.broken(monotonic_ns())
        finally:
            self.drop_upstream()
            await self.tidy()
        if self.refusal is not None:
            self.tell(self.refusal)

    # -- what each kind fills in

    @abstractmethod
    async def serve(self) -> None:
        """Read, admit, relay."""

    @abstractmethod
    def client_left(self, now: int, *, write_failed: bool = False) -> None:
        """The client is gone."""

    @abstractmethod
    def broken(self, now: int) -> None:
        """We failed."""

    async def tidy(self) -> None:  # noqa: B027  (most calls have nothing else at work)
        """End whatever else works for this call."""

    # -- what they share

    def end_with(self, refusal: Refusal) -> None:
        """End the call with a refusal, from outside its task."""
        self.refusal = refusal
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def drop_upstream(self) -> None:
        """The engine shall not work for nobody."""
        if self.upstream is not None:
            self.upstream.cancel()

    async def write(self, message: bytes) -> tuple[int, int, bool]:
        """Hand a message to the client's transport: (begun, done, whether the client kept us waiting)."""
        begun = monotonic_ns()
        self.client.blocked_since = begun
        try:
            await self.context.write(message)
        except CLIENT_LOST as error:
            # The connection broke under the write; gRPC cancels the call a moment later.
            raise ClientLostError from error
        ended = monotonic_ns()
        self.client.blocked_since = None
        self.writes += 1
        return begun, ended, ended - begun > BLOCKED_NS

    def tell(self, refusal: Refusal, request: RpcRequest | None = None) -> None:
        """Set the status that a refusal means. It leaves when the call's handler returns."""
        code = code_of(refusal)
        self.context.set_code(code)
        self.context.set_details(refusal.message)
        ours = metadata.of_refusal(refusal, number_of(code))
        request = request or self.last_request()
        if request is not None:
            ours = [*metadata.own(request.ledger, request.lane, monotonic_ns()), *ours]
        self.context.set_trailing_metadata(tuple(ours))

    def last_request(self) -> RpcRequest | None:
        """Whose ids the status carries."""
        return None

    async def pass_on(self, end: UpstreamEnd, request: RpcRequest, trailing: Any) -> None:
        """The engine's own status, or ours where the network failed it."""
        if end.refusal is not None:
            self.tell(end.refusal, request)
            return
        self.context.set_code(end.code)
        self.context.set_details(end.details)
        ours = metadata.own(request.ledger, request.lane, monotonic_ns())
        self.context.set_trailing_metadata(metadata.back(trailing, ours))

    def timeout_s(self, request: RpcRequest) -> float | None:
        """The client's deadline as the engine's; the gateway's budgets end a call by cancelling it."""
        deadline = request.clock.deadline_at
        return None if deadline is None else max(0.0, (deadline - monotonic_ns()) / 1e9)

    def onward(self, request: RpcRequest) -> tuple[metadata.Pair, ...]:
        """Metadata for the engine."""
        return self.port.onward(self.pairs, request)


class OneRequestCall(Call):
    """A call that is one request, whatever crosses it."""

    def __init__(self, port: GrpcPort, context: Context, name: str, method: Method, received: int) -> None:
        super().__init__(port, context, name, method, received)
        self.request = port.open(self, received)

    def last_request(self) -> RpcRequest:
        """See `Call`."""
        return self.request

    def interrupt(self, request: RpcRequest) -> None:
        """The request was ended by the sweeper or a shutdown."""
        assert request.refusal is not None
        self.end_with(request.refusal)

    def client_left(self, now: int, *, write_failed: bool = False) -> None:
        """See `Call`."""
        self.request.client_gone(now, write_failed=write_failed)

    def broken(self, now: int) -> None:
        """See `Call`."""
        self.request.broken(now)


class UnaryCall(OneRequestCall):
    """`ModelInfer`, and every method that is relayed as one question and one answer."""

    async def serve(self) -> None:
        """One message there, one back."""
        request = self.request
        message = await self.context.read()
        if not isinstance(message, bytes):
            # gRPC itself has refused one that is too large, and tells the client so.
            limit = self.gateway.config.limits.grpc_message_bytes
            text = f"no message came, or one of more than limits.grpc_message_bytes ({limit})"
            self.refuse(Refusal(status=400, message=text, reason=Reason.BAD_REQUEST))
            return
        if not await self.admit(request, message):
            self.refusal = request.refusal
            return
        request.sent()
        call = self.upstream = self.port.unary(self.name)(
            message, timeout=self.timeout_s(request), metadata=self.onward(request)
        )
        try:
            answer = await call
        except aio.AioRpcError as error:
            await self._failed(error)
            return
        now = monotonic_ns()
        ledger = request.ledger
        ledger.headers = ledger.first_byte = now
        request.engine_done(now)
        self.answered(now)
        self.gateway.backends.grpc.engine.answered(b"")
        self.context.set_trailing_metadata(
            metadata.back(await call.trailing_metadata(), metadata.own(ledger, request.lane, now))
        )
        begun, ended, blocked = await self.write(answer)
        request.wrote(begun, ended, now, blocked=blocked)
        request.end(ended, COMPLETED)

    async def admit(self, request: RpcRequest, message: bytes) -> bool:
        """Whether it may go to the engine."""
        request.admit_unqueued(len(message))
        return True

    def answered(self, now: int) -> None:
        """The answer is here; nothing in it needs to be read."""

    def refuse(self, refusal: Refusal) -> None:
        """End before the engine was asked."""
        self.request.refuse(refusal, monotonic_ns())
        self.refusal = refusal

    async def _failed(self, error: aio.AioRpcError) -> None:
        now = monotonic_ns()
        request = self.request
        request.ledger.upstream_end = now
        end = self.port.judge(request, error.code(), error.details() or "", now)
        if self.method.unwell is not None:
            # A health check that cannot be asked is answered: no.
            request.end(now, end.verdict)
            await self.write(self.method.unwell)
            return
        request.end(now, end.verdict, end.refusal)
        await self.pass_on(end, request, error.trailing_metadata())


class RefusedCall(UnaryCall):
    """A method that is not for here. Leaves a record like any refused request."""

    def __init__(
        self, port: GrpcPort, context: Context, name: str, method: Method, received: int, refusal: Refusal
    ) -> None:
        super().__init__(port, context, name, method, received)
        self._refusal = refusal

    async def serve(self) -> None:
        """Refuse."""
        if self.method.unwell is not None:
            self.request.refuse(self._refusal, monotonic_ns())
            await self.write(self.method.unwell)
            return
        self.refuse(self._refusal)
