"""Middleware for WSGI applications (Flask, Django, or none): every request is handled and reported.

The request's span lasts to the end of the answer's iterator, which passes item by item. Sync code is never interrupted:
stages record what they overran, and `remaining()` is for the timeouts of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import Context, copy_context
from typing import Any

from tailrace.stages.reporter import Reporter
from tailrace.stages.request import ServiceRequest, entered

StartResponse = Callable[..., Callable[[bytes], object]]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class StagesMiddleware:
    """`app = StagesMiddleware(app, service="rag", report="http://127.0.0.1:9480/v1/traces")`.

    `report` may be a `Reporter`, or any function of a finished request.
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

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """One request."""
        headers = {
            name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")
        }
        request = ServiceRequest(headers, service=self.service, path=environ.get("PATH_INFO", ""))

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Callable[[bytes], object]:
            request.status = int(status[:3])
            headers = list(headers)
            if not any(name.lower() == "x-request-id" for name, _ in headers):
                headers.append(("x-request-id", request.request_id))
            timing = request.collector.server_timing()
            if timing:
                headers.append(("server-timing", timing))
            return start_response(status, headers, *more)

        # The answer is read later, piece by piece, by a server whose context is not ours.
        context = copy_context()
        try:
            answer = context.run(self._inside, request, environ, start)
        except BaseException as error:
            self._end(request, error)
            raise
        return _Answer(answer, request, context, self._end)

    def _inside(self, request: ServiceRequest, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        with entered(request):
            return self.app(environ, start)

    def _end(self, request: ServiceRequest, error: BaseException | None) -> None:
        if request.end_ns is None:
            request.conclude(error)
            if self.report is not None:
                self.report(request)


class _Answer:
    """The application's answer, item by item."""

    def __init__(
        self,
        answer: Iterable[bytes],
        request: ServiceRequest,
        context: Context,
        end: Callable[[ServiceRequest, BaseException | None], None],
    ) -> None:
        self._answer = answer
        self._items = iter(answer)
        self._request = request
        self._context = context
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            item = self._context.run(self._next)
        except StopIteration:
            self._end(self._request, None)
            raise
        except BaseException as error:
            self._end(self._request, error)
            raise
        self._request.body_sent(len(item))
        return item

    def _next(self) -> bytes:
        with entered(self._request):
            return next(self._items)

    def close(self) -> None:
        """The server is done with it; before the last item that means that the client has left."""
        close = getattr(self._answer, "close", None)
        try:
            if close is not None:
                self._context.run(close)
        finally:
            if self._request.end_ns is None:
                self._request.client_left()
                self._end(self._request, None)
