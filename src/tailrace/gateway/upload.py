"""A request's body that goes upstream while it comes: audio, and whatever else is relayed without being read as JSON.

At no time is more of it here than one read and a little: while the request waits for its lane or its connection, and
while the engine takes nothing, the client is not read. What admission must know of a form is read beside the path; the
lane is asked once that is known, or after `DECIDE_AT` bytes without it. A fresh connection is used, because nothing
that has left can be sent again.

The engine may answer before it has everything. That answer is relayed at once: behind an error the rest of the body is
thrown away, any other answer and the body go on side by side. Either way the two connections end with the request,
unless the body was whole before its answer was.
"""

from __future__ import annotations

import asyncio
import select
from enum import Enum
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from tailrace.gateway.form import FormScanner, boundary_of
from tailrace.gateway.head import LAST_CHUNK, Header, is_json, status_line
from tailrace.gateway.intake import with_path
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.routes import Route, RouteKind
from tailrace.gateway.verdict import Phase
from tailrace.gateway.work import Work
from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.flow import Flow
    from tailrace.gateway.upstream import UpstreamConnection

AT_ONCE: Final = 64 * 1024
"""A body that announces no more than this is read first: it costs one write, and can be sent again."""
DECIDE_AT: Final = 64 * 1024
"""Bytes after which a form's lane is asked with what is known: fields may stand behind a file of any size."""
HOLD: Final = 64 * 1024
"""Bytes kept of a body that cannot go on yet, before its client is no longer read. One read may lie on top."""
_READ_AGAIN_S: Final = 0.001
"""A pause in which the event loop looks at its sockets at least once."""

NOT_IN_TIME: Final = Refusal(status=408, message="the request's body did not arrive in time", reason=Reason.BAD_REQUEST)


def streams_up(where: Route, named: dict[bytes, bytes], length: int) -> bool:
    """Whether a body goes upstream as it comes. JSON that is to be read never does: it decides the lane."""
    if length <= AT_ONCE and b"transfer-encoding" not in named:
        return False
    return where.kind is RouteKind.RELAY or (where.kind is RouteKind.READ and not is_json(named))


class _At(Enum):
    GATHERING = "gathering"
    """Not enough is known to ask for a place."""
    HELD = "held"
    """Waiting for the lane or the connection."""
    FLOWING = "flowing"
    OVER = "over"
    """All is with the engine, or nothing more will be."""


class Upload:
    """One body between two sockets, and the receiver of the answer to it."""

    __slots__ = (
        "_at",
        "_begun_at",
        "_connection",
        "_ended",
        "_exchange",
        "_full_since",
        "_held",
        "_last_read_at",
        "_length",
        "_parts",
        "_paused",
        "_poll",
        "_timer",
        "form",
        "size",
    )

    def __init__(self, exchange: GatewayExchange, length: int | None) -> None:
        self._exchange = exchange
        self._length = length
        """What the client announced; `None` for a chunked body."""
        self._at = _At.GATHERING
        self._parts: list[bytes] = []
        self._held = 0
        self.size = 0
        boundary = boundary_of(exchange.head.named.get(b"content-type", b""))
        self.form = FormScanner(boundary) if boundary and exchange.route.kind is RouteKind.READ else None
        self._connection: UpstreamConnection | None = None
        self._paused = False
        """The client is not read."""
        self._full_since: int | None = None
        """Since when the engine's side of the kernel is full."""
        self._ended = False
        """The end of the body is written."""
        self._begun_at = 0
        self._last_read_at = 0
        self._timer: asyncio.TimerHandle | None = None
        self._poll: select.poll | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more of it goes anywhere."""
        return self._at is _At.OVER

    @property
    def framing(self) -> bytes:
        """The header line that says upstream where the body ends."""
        if self._length is None:
            return b"transfer-encoding: chunked\r\n"
        return b"content-length: %d\r\n" % self._length

    def work(self) -> Work:
        """What is known of the request by now."""
        known = Work() if self.form is None else self.form.work(self._length or self.size)
        return with_path(known, self._exchange.head.target)

    # -- the client's side

    def add(self, data: bytes) -> None:
        """A piece of the body."""
        self.size += len(data)
        exchange = self._exchange
        if self._at is _At.OVER or exchange.refusal is not None:
            return
        limit = exchange.gateway.max_upload_bytes
        if self.size > limit:
            text = f"the body is larger than {limit} bytes"
            exchange.refuse_head(Refusal(status=413, message=text, reason=Reason.BAD_REQUEST), close=True)
            self._parts.clear()
            return
        self._parts.append(data)
        self._held += len(data)
        if self.form is not None:
            self.form.feed(data)

    def arrived(self, now: int) -> None:
        """The read at hand is over, and the request is the first of its connection."""
        exchange = self._exchange
        if self._at is _At.OVER:
            return
        self._last_read_at = now
        if exchange.refusal is not None:
            exchange.started = True
            exchange.refuse(exchange.refusal, now)
        elif self._at is _At.GATHERING:
            self._gather(now)
        elif self._at is _At.FLOWING:
            self._flow(now)
        else:
            self.hold_back()

    def _gather(self, now: int) -> None:
        exchange = self._exchange
        if exchange.uploaded:
            # It came at once after all: it takes the way of every small request.
            self._go_on()
            exchange.gathered(self._parts, self.size)
            return
        if self._decided():
            self._at = _At.HELD
            self._begun_at = now
            exchange.start(now)
            self.hold_back()
        else:
            self._ask_for_more()

    def _decided(self) -> bool:
        form = self.form
        return form is None or form.ended or self._held >= DECIDE_AT or {"stream", "model"} <= form.fields.keys()

    def _ask_for_more(self) -> None:
        """The client waits for a word before it sends its body."""
        exchange = self._exchange
        transport = exchange.connection.transport
        if exchange.expects_continue and transport is not None:
            exchange.expects_continue = False
            transport.write(b"%b\r\n" % status_line(100))

    def hold_back(self) -> None:
        """Stop reading the client, if what is here cannot go on."""
        if not self._paused and self._at is not _At.OVER and self._held > HOLD:
            self._paused = True
            self._exchange.connection.pause_upload()

    def _go_on(self) -> None:
        if self._paused:
            self._paused = False
            self._exchange.connection.resume_upload()

    # -- the engine's side

    def flow(self, connection: UpstreamConnection, head: bytes) -> None:
        """There is a connection: head and body go, as the body comes."""
        self._connection = connection
        self._at = _At.FLOWING
        connection.send(self, head, without_body=self._exchange.head.method == b"HEAD")
        connection.carry(self)
        self._ask_for_more()
        now = self._last_read_at = monotonic_ns()
        self._flow(now)

    def engine_full(self) -> None:
        """The engine's side of the kernel is full."""
        self._full_since = monotonic_ns()

    def engine_takes(self) -> None:
        """It has taken everything written so far."""
        self._full_since = None
        if self._at is _At.FLOWING:
            self._flow(monotonic_ns())

    def _flow(self, now: int) -> None:
        if self._full_since is not None or self._timer is not None:
            self._stop_reading()
            return
        if self._parts and self._has_answer():
            # It may have answered and closed. A write would fail and take the answer with it: read first.
            self._stop_reading()
            self._timer = asyncio.get_running_loop().call_later(_READ_AGAIN_S, self._read_first)
            return
        self._write(now)

    def _read_first(self) -> None:
        self._timer = None
        if self._at is _At.FLOWING:
            self._write(monotonic_ns())

    def _write(self, now: int) -> None:
        connection, exchange = self._connection, self._exchange
        assert connection is not None
        parts, self._parts = self._parts, []
        size, self._held = self._held, 0
        if self._length is None:
            if size:
                parts = [b"%x\r\n" % size, *parts, b"\r\n"]
            if exchange.uploaded and not self._ended:
                parts.append(LAST_CHUNK)
        self._ended = exchange.uploaded
        if parts:
            connection.write_body(parts)
        if self._full_since is not None:
            self._stop_reading()
        elif exchange.uploaded:
            self._sent(now if not parts else monotonic_ns())
        else:
            self._go_on()

    def _stop_reading(self) -> None:
        if not self._paused and not self._exchange.uploaded:
            self._paused = True
            self._exchange.connection.pause_upload()

    def _has_answer(self) -> bool:
        if self._poll is None:
            assert self._connection is not None
            self._poll = select.poll()
            self._poll.register(self._connection.fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def _sent(self, now: int) -> None:
        """The last byte is with the kernel of the engine's side."""
        assert self._connection is not None
        self._connection.carried()
        if self.form is not None:
            self._exchange.learn(self.work())
        self._drop()
        self._goes_on(now)

    def _goes_on(self, now: int) -> None:
        """Nothing more of the body goes upstream: the time is the engine's now."""
        exchange = self._exchange
        exchange.clock.begun = exchange.clock.sent_at = exchange.ledger.sent = now
        if exchange.phase is Phase.UPLOAD:
            exchange.phase = Phase.WAITING
        exchange.next_check = exchange.next_budget()

    def _drop(self) -> None:
        """Nothing more goes upstream; what the client still sends is thrown away."""
        self._at = _At.OVER
        self._parts.clear()
        self._held = 0
        self._full_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._go_on()

    def close(self) -> None:
        """The request ends."""
        self._exchange.ledger.prompt_bytes = self.size
        self._drop()
        self._connection = None

    # -- time

    @property
    def flowing(self) -> bool:
        """Whether the time that passes is the upload's, and the request's own budgets wait for its end."""
        return self._at is _At.FLOWING

    def sweep(self, now: int) -> None:
        """Called by the sweeper while it flows."""
        exchange = self._exchange
        gateway = exchange.gateway
        deadline = exchange.clock.deadline_at
        stall = gateway.upload_stall_ns
        if deadline is not None and now >= deadline:
            text = "the deadline is over in stage ingress"
            refusal = Refusal(status=504, message=text, reason=Reason.DEADLINE, stage="ingress")
            exchange.refuse(refusal, now, OutcomeKind.CANCELLED, "deadline")
        elif self._full_since is not None and now - self._full_since > stall:
            text = f"the engine took nothing of the body for {stall / 1e9:g} s"
            refusal = Refusal(status=504, message=text, reason=Reason.TOTAL_TIMEOUT, stage="ingress")
            exchange.refuse(refusal, now, OutcomeKind.TIMED_OUT, "upload_stall")
        elif (self._full_since is None and now - self._last_read_at > stall) or (
            now - self._begun_at > gateway.upload_total_ns
        ):
            exchange.refuse(NOT_IN_TIME, now)

    # -- the answer

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The engine's status line. Before the body is whole it ends the upload, if it is an error."""
        if self._at is not _At.OVER and status >= 400:
            self.cut_short()
            self._goes_on(now)
        self._exchange.transit.upstream_head(status, headers, now)

    def upstream_body(self, data: bytes, now: int) -> None:
        """A piece of the answer."""
        self._exchange.transit.upstream_body(data, now)

    def steady(self) -> Flow | None:
        """Who takes the next reads."""
        return self._exchange.transit.steady()

    def upstream_complete(self, now: int) -> None:
        """The answer is whole. What has not left yet is of no use any more."""
        if self._at is not _At.OVER:
            self.cut_short()
            self._goes_on(now)
        self._exchange.transit.upstream_complete(now)

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The engine's connection ended. Nothing that was sent on it can be sent again."""
        _ = untouched
        self.cut_short()
        self._exchange.transit.upstream_lost(error, untouched=False, now=now)

    def upstream_broken(self, now: int) -> None:
        """We failed over the answer."""
        self._exchange.transit.upstream_broken(now)

    def cut_short(self) -> None:
        """There is an answer, whatever is still to come of the body."""
        if not self._exchange.uploaded:
            # The rest of the body is in the way of the next request: this connection has none.
            self._exchange.keep_alive = False
        self._drop()
