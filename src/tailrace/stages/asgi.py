"""Middleware for ASGI applications (Starlette, FastAPI, Django, or none): every request is handled and reported.

Pure ASGI: messages pass as they come, nothing is buffered, and the request's span lasts to the last message of the
body. A client that leaves is seen even where the application does not look.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from tailrace.stages.budget import Interruption, StageTimeout
from tailrace.stages.reporter import AT_EXIT_S, Reporter
from tailrace.stages.request import DeadlineOver, ServiceRequest, entered

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_READ: Final = frozenset({b"x-request-id", b"traceparent", b"x-session-id", b"x-deadline-ms"})


class StagesMiddleware:
    """`app = StagesMiddleware(app, service="rag", report="http://127.0.0.1:9480/v1/traces")`.

    `report` may be a `Reporter`, or any function of a finished request. An uncaught `StageTimeout` is answered with
    504 where nothing has left yet, and so is a request whose `x-deadline-ms` is over.
    """

    def __init__(
        self,
        app: Application,
        *,
        service: str,
        report: str | Callable[[ServiceRequest], object] | None = None,
        token: str = "",
    ) -> None:
        self.app = app
        self.service = service
        self.report: Callable[[ServiceRequest], object] | None = (
            Reporter(report, token=token) if isinstance(report, str) else report
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's scope: requests are handled, everything else passes."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._ending(send))
        elif scope["type"] == "http":
            await self._handle(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _ending(self, send: Send) -> Send:
        async def flush_at_the_end(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown.") and isinstance(self.report, Reporter):
                await asyncio.to_thread(self.report.flush, AT_EXIT_S)
            await send(message)

        return flush_at_the_end

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"] if name in _READ}
        request = ServiceRequest(headers, service=self.service, path=scope.get("path", ""))
        passage = _Passage(request, receive, send)
        try:
            with entered(request):
                await self._call(scope, request, passage)
        except BaseException as error:
            request.conclude(error)
            if not passage.may_answer or not isinstance(error, (StageTimeout, DeadlineOver)):
                raise
            await passage.answer_timeout(error)
        finally:
            request.conclude()
            passage.close()
            if self.report is not None:
                self.report(request)

    async def _call(self, scope: Scope, request: ServiceRequest, passage: _Passage) -> None:
        at = request.collector.deadline_ns
        task = asyncio.current_task()
        if at is None or task is None:
            await self.app(scope, passage.receive, passage.send)
            return
        where = ""

        def note() -> None:
            nonlocal where
            where = request.collector.innermost

        left_s = (at - request.collector.clock()) / 1e9
        interruption = Interruption(task, left_s, note)
        try:
            await self.app(scope, passage.receive, passage.send)
        except BaseException as error:
            if interruption.end(type(error)):
                raise DeadlineOver(where, (request.deadline_given_ns or 0) / 1e6) from error
            raise
        else:
            interruption.end(None)


class _Passage:
    """One request's messages in both directions."""

    def __init__(self, request: ServiceRequest, receive: Receive, send: Send) -> None:
        self._request = request
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[Message] | None = None
        """Waits for the client to leave, once its request is read: the application may not look."""
        self._started = False
        self._whole = False

    @property
    def may_answer(self) -> bool:
        """Nothing of an answer has left."""
        return not self._started and self._request.left_in is None

    async def receive(self) -> Message:
        """The next message for the application."""
        watch = self._watch
        if watch is not None:
            # Shielded: an application that gives up waiting must not take the watch with it.
            return await asyncio.shield(watch)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._request.client_left()
        elif not message.get("more_body", False):
            self._watch = asyncio.ensure_future(self._receive())
            self._watch.add_done_callback(self._seen)
        return message

    def _seen(self, watch: asyncio.Task[Message]) -> None:
        if watch.cancelled() or watch.exception() is not None:
            return
        if watch.result()["type"] == "http.disconnect" and not self._whole:
            self._request.client_left()

    async def send(self, message: Message) -> None:
        """A message of the application's answer."""
        request = self._request
        kind = message["type"]
        if kind == "http.response.start":
            self._started = True
            request.status = message["status"]
            message = {**message, "headers": self._headers(list(message.get("headers", ())))}
        elif kind == "http.response.body":
            request.body_sent(len(message.get("body", b"")))
            self._whole = not message.get("more_body", False)
        elif kind in ("http.response.pathsend", "http.response.zerocopysend"):
            request.body_sent(1)  # a file, of a size that only the server knows
            self._whole = not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError:
            request.client_left()
            raise
        if self._whole:
            request.conclude()

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if not any(name.lower() == b"x-request-id" for name, _ in headers):
            headers.append((b"x-request-id", self._request.request_id.encode("latin-1")))
        timing = self._request.collector.server_timing()
        if timing:
            headers.append((b"server-timing", timing.encode("latin-1")))
        return headers

    async def answer_timeout(self, error: StageTimeout | DeadlineOver) -> None:
        """Say which time was over."""
        stage = error.stage if isinstance(error, StageTimeout) else error.where
        kind = "stage_timeout" if isinstance(error, StageTimeout) else "deadline"
        body = json.dumps({"error": {"type": kind, "message": str(error), "stage": stage}}).encode()
        headers = self._headers([(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))])
        self._request.status = 504
        await self._send({"type": "http.response.start", "status": 504, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        """The application is done."""
        if self._watch is not None:
            self._watch.cancel()
