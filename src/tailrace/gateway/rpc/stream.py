"""`ModelStreamInfer`: a stream of requests, each with its own answers, its own lane place and its own record.

A record begins when its request is read and ends with the first of: an answer that says `triton_final_response`, an
`error_message` for it, the end of the call. Answers are matched by `id`; those of requests that share one (or have
none) go to the oldest of them that is open. The engine is asked for the end mark of every request, because nothing else
tells when a decoupled model has finished; a client that did not ask for it does not see it.

Requests are taken one after the other: while one waits for its lane, those behind it wait unread. That keeps a
sequence in order, and what is in memory bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from time import monotonic_ns
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from tailrace.engines.kserve import (
    ASK_FINAL,
    END,
    InferAnswer,
    InferAsk,
    WireError,
    error_answer,
    fault_of,
    read_answer,
    read_ask,
)
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.rpc import metadata
from tailrace.gateway.rpc.answer import fault_verdict
from tailrace.gateway.rpc.call import CLIENT_LOST, ENGINE_LOST, Call, ClientLostError, Context
from tailrace.gateway.rpc.methods import Method
from tailrace.gateway.rpc.request import RpcRequest
from tailrace.gateway.verdict import COMPLETED, Verdict
from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from tailrace.gateway.rpc.port import GrpcPort

log = logging.getLogger(__name__)


class StreamCall(Call):
    """One `ModelStreamInfer` call."""

    def __init__(self, port: GrpcPort, context: Context, name: str, method: Method, received: int) -> None:
        super().__init__(port, context, name, method, received)
        self._sent: list[RpcRequest] = []
        """Requests whose last answer has not come, oldest first. One that was ended from outside stays until the
        engine has finished with it: what still comes for it is nobody's."""
        self._wire_id: dict[str, str] = {}
        """Our id -> the `id` in its message."""
        self._taken = 0
        self._last: RpcRequest | None = None
        self._heard = False
        """Whether the engine has answered anything."""
        self._ends_seen = False
        """Whether any answer said if it was the last: without that, nobody knows when a request is over."""
        self._asks = port.asks_final
        self._pump: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    def last_request(self) -> RpcRequest | None:
        """See `Call`."""
        return self._last

    # -- ends

    def client_left(self, now: int, *, write_failed: bool = False) -> None:
        """See `Call`."""
        for request in self._open():
            request.client_gone(now, write_failed=write_failed)

    def broken(self, now: int) -> None:
        """See `Call`."""
        for request in self._open():
            request.broken(now)

    async def tidy(self) -> None:
        """See `Call`."""
        tasks = [*self._errands, *([self._pump] if self._pump is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self) -> list[RpcRequest]:
        found = [request for request in self._sent if not request.done]
        if self._last is not None and not self._last.done and self._last not in found:
            found.append(self._last)
        return found

    def interrupt(self, request: RpcRequest) -> None:
        """A request on its way was ended from outside.

        Alone in its call, it ends the call, which stops the engine. Beside others it cannot be stopped, because gRPC
        cancels calls and not messages: the client gets an error for it, and the engine's further answers for it are
        dropped.
        """
        refusal = request.refusal
        assert refusal is not None
        if not self._open():
            self.end_with(refusal)
            return
        task = asyncio.ensure_future(self._errand(request, refusal))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _errand(self, request: RpcRequest, refusal: Refusal) -> None:
        with contextlib.suppress(ClientLostError):  # the call's own task is told of it too
            await self._say(request, refusal)

    async def _say(self, request: RpcRequest, refusal: Refusal) -> None:
        """End one request of the stream with an error; the others go on."""
        wire_id = self._wire_id.get(request.ledger.request_id, "")
        await self._write(error_answer(wire_id, refusal.message))

    async def _write(self, message: bytes) -> tuple[int, int, bool]:
        async with self._writing:
            if not self.writes:
                await self._begin()
            return await self.write(message)

    async def _begin(self) -> None:
        """Initial metadata leave with the first message, so that a first refusal can still be a status."""
        theirs = await self.upstream.initial_metadata() if self._heard else None
        ours: list[metadata.Pair] = []
        if self._last is not None:
            ours = [("x-request-id", self.port.call_id(self)), ("x-tailrace-lane", metadata.plain(self._last.lane))]
        try:
            await self.context.send_initial_metadata(metadata.back(theirs, ours))
        except CLIENT_LOST as error:
            raise ClientLostError from error

    # -- the client's direction

    async def serve(self) -> None:
        """Requests one way, answers the other."""
        message: bytes | None = None
        while message is None:
            taken = await self._take()
            if taken is None or self.refusal is not None:
                return
            message = taken or None
        upstream = self.port.stream(self.name)
        # The deadline of the call. One that a request names beside it is its own.
        self.upstream = upstream(timeout=self.context.time_remaining(), metadata=self._onward())
        # In a task of its own also the first: grpc.aio never returns from a write to a call that failed before it
        # began, while a read says how it failed.
        self._pump = asyncio.ensure_future(self._requests(message))
        await self._answers()

    def _onward(self) -> tuple[metadata.Pair, ...]:
        assert self._last is not None
        return self.onward(self._last)

    async def _requests(self, first: bytes) -> None:
        try:
            await self._to_engine(first)
            while (message := await self._take()) is not None:
                if message:
                    await self._to_engine(message)
            await self.upstream.done_writing()
        except ENGINE_LOST:
            return  # the engine's side has ended; whoever reads from it knows why
        except ClientLostError:
            return  # the call's own task is told of it too
        except Exception:
            log.exception("the requests of a stream could not be read on")
            self.broken(monotonic_ns())

    async def _to_engine(self, message: bytes) -> None:
        await self.upstream.write(message + ASK_FINAL if self._asks else message)

    async def _take(self) -> bytes | None:
        """The next request, admitted: its message. Empty for one that was refused, `None` when there are no more."""
        message = await self.context.read()
        if not isinstance(message, bytes):
            return None
        # From here on: a client may open the call long before it asks for anything.
        received = monotonic_ns()
        self._taken += 1
        request = self._last = self.port.open(self, received, number=self._taken)
        refusal, ask = self._look_at(message)
        if refusal is not None:
            request.refuse(refusal, monotonic_ns())
            await self._refused(request)
            return b""
        if ask.id:
            self._wire_id[request.ledger.request_id] = ask.id
        if not await request.admitted(ask, len(message), stream=True):
            await self._refused(request)
            return b""
        self._sent.append(request)
        request.sent()
        return message

    def _look_at(self, message: bytes) -> tuple[Refusal | None, InferAsk]:
        refusal = self.gateway.turned_away()
        if refusal is not None:
            return refusal, InferAsk()
        try:
            return None, read_ask(message)
        except WireError as error:
            text = f"the message is no ModelInferRequest: {error}"
            return Refusal(status=400, message=text, reason=Reason.BAD_REQUEST), InferAsk()

    async def _refused(self, request: RpcRequest) -> None:
        """A request that did not get to the engine: the call's status if it is all there was, else an error in it."""
        refusal = request.refusal
        if refusal is None:  # its client left
            return
        if self.upstream is None and not self.writes:
            self.refusal = refusal
        else:
            await self._say(request, refusal)
        self._wire_id.pop(request.ledger.request_id, None)

    # -- the engine's direction

    async def _answers(self) -> None:
        upstream = self.upstream
        engine = self.gateway.backends.grpc.engine
        try:
            while True:
                message = await upstream.read()
                now = monotonic_ns()
                if not isinstance(message, bytes):
                    break
                self._heard = True
                engine.answered(b"")
                await self._answer(message, now)
            code, details = await upstream.code(), await upstream.details()
        except aio.AioRpcError as error:
            code, details = error.code(), error.details()
        await self._ended(code, details or "", monotonic_ns())

    async def _answer(self, message: bytes, now: int) -> None:
        try:
            answer = read_answer(message)
        except WireError:
            # It is no message that we know: the client may know it.
            answer = InferAnswer()
        request = self._whose(answer.id)
        if request is None:
            await self._write(message)
            return
        over = answer.final is True or bool(answer.error)
        if over:
            self._sent.remove(request)
        if not request.done:
            was_waiting = request.waits_for_token
            self._measure(request, answer, now, over=over)
            ended: int | None = None
            if not answer.empty_final or request.wants_final:
                ended = await self._deliver(request, message, now)
            # Ended from outside while the client took it: that is its record then.
            meter = request.transit.meter
            if was_waiting and not request.done and meter is not None and meter.first_token_ns is not None:
                request.first_token(now, ended)
            if over:
                request.end(ended or now, self._verdict(request, answer))
        if over:
            self._wire_id.pop(request.ledger.request_id, None)

    def _measure(self, request: RpcRequest, answer: InferAnswer, now: int, *, over: bool) -> None:
        ledger, meter = request.ledger, request.transit.meter
        assert meter is not None
        if answer.final is not None:
            self._ends_seen = request.ends_known = True
        if ledger.headers is None:
            ledger.headers = ledger.first_byte = now
        meter.message(answer.meaning(), now)
        if answer.final:
            meter.message(END, now)
        if over:
            request.engine_done(now)

    async def _deliver(self, request: RpcRequest, message: bytes, now: int) -> int:
        begun, ended, blocked = await self._write(message)
        if blocked:
            # All requests of the call share its one way to the client.
            for other in self._open():
                if other is not request:
                    other.ledger.client_blocked(begun, ended)
                    other.clock.unblocked_at = ended
        request.wrote(begun, ended, now, blocked=blocked)
        return ended

    def _verdict(self, request: RpcRequest, answer: InferAnswer) -> Verdict:
        if not answer.error:
            return COMPLETED
        meter = request.transit.meter
        seen = meter is not None and meter.first_token_ns is not None
        return fault_verdict(self.gateway.backends.grpc.engine.adapter, fault_of(answer.error), tokens_seen=seen)

    def _whose(self, wire_id: str) -> RpcRequest | None:
        """The oldest open request of this id; for an answer without a known id, the oldest of all."""
        for request in self._sent:
            if self._wire_id.get(request.ledger.request_id, "") == wire_id:
                return request
        return self._sent[0] if self._sent else None

    async def _ended(self, code: grpc.StatusCode, details: str, now: int) -> None:
        """The engine's side of the call is over, and with it every request that is still open."""
        open_requests = self._open()
        if code is grpc.StatusCode.OK:
            for request in open_requests:
                request.end(now, self._verdict_at_ok(request))
            if self._last is not None:
                ours = metadata.own(self._last.ledger, self._last.lane, now)
                self.context.set_trailing_metadata(metadata.back(await self.upstream.trailing_metadata(), ours))
            return
        speaker = open_requests[0] if open_requests else self._last
        assert speaker is not None
        end = self.port.judge(speaker, code, details, now)
        for request in open_requests:
            own_end = end if request is speaker else self.port.judge(request, code, details, now)
            request.end(now, own_end.verdict, own_end.refusal)
        await self.pass_on(end, speaker, await self.upstream.trailing_metadata())

    def _verdict_at_ok(self, request: RpcRequest) -> Verdict:
        """The call ended well while this request had no last answer.

        Where the engine tells last answers, it forgot one. Where it never does, the end of the call is the end.
        """
        meter = request.transit.meter
        if not self._ends_seen and meter is not None and meter.events:
            request.ledger.upstream_end = request.ledger.upstream_end or monotonic_ns()
            meter.message(END, request.ledger.upstream_end)
            return COMPLETED
        text = "the engine ended the stream without a last answer for this request"
        return Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, request.stage(monotonic_ns()), text)
