"""One request as a service handles it: its ids, its deadline, its stages, how it ended, and what it sends onward."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.stages.budget import StageTimeout
from tailrace.stages.collector import CURRENT, Collector

if TYPE_CHECKING:
    from tailrace.stages.reporter import Reporter

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
"""What is taken for an id of somebody else's: it goes into headers and records."""
_LONGEST_DEADLINE_MS: Final = 10**10
_T = TypeVar("_T")
_REFUSED: Final = {401: "unauthorized", 403: "unauthorized", 429: "rate_limited"}


class ServiceRequest:
    """One request. Stamps are ns of the monotonic clock; the wall clock is read once, for the start."""

    def __init__(self, headers: Mapping[str, str], *, service: str = "", path: str = "") -> None:
        """`headers`: by lower-case name. A missing or malformed id is made anew."""
        self.service = service
        self.path = path
        self.received_ns = time.monotonic_ns()
        self.start_unix_ns = time.time_ns()
        given = headers.get("x-request-id", "").strip()
        self.request_id = given if _ID.fullmatch(given) else secrets.token_hex(12)
        session = headers.get("x-session-id", "").strip()
        self.session_id = session if _ID.fullmatch(session) else ""
        self.span_id = secrets.token_hex(8)
        """Ours: the parent of what the hop behind reports."""
        self.trace_id, self.parent_id, self._flags = _continued(headers.get("traceparent", ""))
        left_ms = _whole(headers.get("x-deadline-ms", ""))
        self.deadline_given_ns = None if left_ms is None else left_ms * 1_000_000
        self.collector = Collector(
            deadline_ns=None if left_ms is None else self.received_ns + left_ms * 1_000_000,
        )
        self.end_ns: int | None = None
        self.first_body_ns: int | None = None
        """When the first bytes of the answer's body left."""
        self.bodies = 0
        """Pieces in which the body left; above 1 the answer was a stream."""
        self.status: int | None = None
        self.left_in: str | None = None
        """The client has left; the stage in which that was."""
        self.outcome = self.reason = self.died_in = self.budget = self.error = ""

    # -- onward

    def outgoing_headers(self) -> dict[str, str]:
        """What to send with every call of a hop behind: ids, our place in the trace, and what is left of the time."""
        out = {
            "x-request-id": self.request_id,
            "traceparent": f"00-{self.trace_id}-{self.span_id}-{self._flags}",
        }
        if self.session_id:
            out["x-session-id"] = self.session_id
        at = self.collector.deadline_ns
        if at is not None:
            out["x-deadline-ms"] = str(max(0, (at - self.collector.clock()) // 1_000_000))
        return out

    # -- the end

    def body_sent(self, size: int) -> None:
        """A piece of the answer's body is about to leave."""
        if size:
            self.bodies += 1
            if self.first_body_ns is None:
                self.first_body_ns = self.collector.clock()

    def client_left(self) -> None:
        """The client has hung up before its answer was whole."""
        if self.left_in is None and self.end_ns is None:
            self.left_in = self.collector.innermost

    def conclude(self, error: BaseException | None = None) -> None:
        """It is over, with this exception or none: decide how it ended. Only the first call counts."""
        if self.end_ns is not None:
            if error is not None and self.outcome == "failed" and not self.error:
                self.error = type(error).__name__  # a framework answers 500 first and raises then
            return
        collector = self.collector
        self.end_ns = collector.clock()
        status = self.status or 0
        timeout = _stage_timeout(error) or (collector.timeout if error is None and status >= 500 else None)
        at = collector.deadline_ns
        if error is not None:
            self.error = f"{type(error).__name__}: {error}" if isinstance(error, StageTimeout) else type(error).__name__
        if self.left_in is not None:
            self._ends("cancelled", "client_disconnect", self.left_in)
        elif isinstance(error, DeadlineOver):
            self._ends("cancelled", "deadline", error.where, "deadline")
        elif timeout is not None:
            self._ends("timed_out", "stage_timeout", timeout.where, timeout.stage)
            self.error = self.error or f"StageTimeout: {timeout}"
        elif error is not None and not isinstance(error, Exception):
            # A cancel from outside, or the interpreter's end: the server has ended it.
            self._ends("cancelled", "shutdown", collector.failed_in)
        elif (error is not None or status >= 500) and at is not None and self.end_ns >= at:
            self._ends("cancelled", "deadline", collector.failed_in, "deadline")
        else:
            self._ends(*_by_status(500 if error is not None else status), collector.failed_in)

    def _ends(self, outcome: str, reason: str, died_in: str, budget: str = "") -> None:
        self.outcome, self.reason, self.budget = outcome, reason, budget
        self.died_in = "" if outcome == "completed" else died_in


def _by_status(status: int) -> tuple[str, str]:
    """(outcome, reason) of an answer with this status."""
    if status >= 500:
        return "failed", "application_error"
    return ("rejected", _REFUSED.get(status, "bad_request")) if status >= 400 else ("completed", "")


class DeadlineOver(TimeoutError):  # noqa: N818  (says what is over; nobody handles it but the middleware)
    """The request's own deadline (`x-deadline-ms`) has passed."""

    def __init__(self, where: str, deadline_ms: float) -> None:
        self.where = where
        super().__init__(f"the deadline of {deadline_ms:g} ms is over{f' in {where}' if where else ''}")


_REQUEST: ContextVar[ServiceRequest | None] = ContextVar("tailrace_service_request", default=None)


def current_request() -> ServiceRequest | None:
    """The request that is handled here; `None` outside of one."""
    return _REQUEST.get()


def outgoing_headers() -> dict[str, str]:
    """Headers for a call of the hop behind: `x-request-id`, `traceparent`, `x-session-id`, `x-deadline-ms`.

    `x-deadline-ms` is what is left of the one that came, less what was spent. Empty outside of a request.
    """
    request = _REQUEST.get()
    return {} if request is None else request.outgoing_headers()


@contextmanager
def entered(request: ServiceRequest) -> Iterator[ServiceRequest]:
    """Stages and `outgoing_headers` inside the block belong to this request."""
    collecting, handling = CURRENT.set(request.collector), _REQUEST.set(request)
    try:
        yield request
    finally:
        _restore(CURRENT, collecting)
        _restore(_REQUEST, handling)


def _restore(variable: ContextVar[_T], token: Token[_T]) -> None:
    # ValueError: ended in another context (a generator that somebody else closes), which never had it.
    with contextlib.suppress(ValueError):
        variable.reset(token)


@contextmanager
def handle(
    headers: Mapping[str, str],
    *,
    service: str = "",
    path: str = "",
    reporter: Reporter | Callable[[ServiceRequest], object] | None = None,
) -> Iterator[ServiceRequest]:
    """Handle one request inside the block, where no middleware does; it is reported at the end of the block.

    Set `request.status` where there is an HTTP status, and call `request.body_sent` as the answer leaves.
    """
    request = ServiceRequest({name.lower(): value for name, value in headers.items()}, service=service, path=path)
    try:
        with entered(request):
            yield request
    except BaseException as error:
        request.conclude(error)
        raise
    else:
        request.conclude()
    finally:
        if reporter is not None:
            reporter(request)


def _continued(traceparent: str) -> tuple[str, str, str]:
    """(trace id, the caller's span, flags); a new trace where there is none: https://www.w3.org/TR/trace-context/"""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if (
        found is None
        or found[1] == "ff"
        or (found[1] == "00" and found[5] is not None)
        or found[2] == "0" * 32
        or found[3] == "0" * 16
    ):
        return secrets.token_hex(16), "", "00"
    return found[2], found[3], found[4]


def _whole(text: str) -> int | None:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 11:
        return None
    return min(int(text), _LONGEST_DEADLINE_MS)


def _stage_timeout(error: BaseException | None) -> StageTimeout | None:
    """The budget behind an exception: itself, or what it was raised from."""
    for _ in range(8):
        if error is None or isinstance(error, StageTimeout):
            return error
        error = error.__cause__ or error.__context__
    return None
