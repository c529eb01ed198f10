"""One connection to an engine, used by one request at a time; between two it lies in its pool."""

from __future__ import annotations

import asyncio
import logging
import socket
from time import monotonic_ns
from typing import Final, Protocol, cast

import httptools

from tailrace.gateway.delivery import acknowledged_in_full
from tailrace.gateway.flow import WHOLE_CHUNK_FROM
from tailrace.gateway.head import Header

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 256 * 1024
"""An engine's head is a few hundred bytes; whoever sends more does not speak HTTP to us."""
CROSSING_NS: Final = 100_000_000
"""A goodbye that comes so soon after a request crossed it: engines that close idle connections, or every hundredth
request (llama.cpp), do so without having read what is on its way."""
_TLS_TICKETS: Final = 4096


class Reads(Protocol):
    """Takes reads that are one whole chunk with one known event."""

    def take(self, data: bytes, now: int) -> bool:
        """False: it is something else, and has to be read."""

    def leave(self) -> None:
        """Something else comes."""


class Home(Protocol):
    """Where a connection lies between two requests."""

    def opened(self, connection: UpstreamConnection) -> None:
        """A connection is made."""

    def closed(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""

    def release(self, connection: UpstreamConnection, now: int) -> None:
        """A request has its whole answer; the next may use the connection."""


class Successor(Protocol):
    """Who goes on where HTTP ends."""

    def __call__(self, connection: UpstreamConnection, headers: list[Header], rest: bytes, now: int) -> None:
        """The head of the 101, the bytes behind it, our clock at the read (ns)."""


class Receiver(Protocol):
    """Who waits for an answer. All stamps are our monotonic clock at the read (ns)."""

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The final head (not a 1xx)."""

    def upstream_body(self, data: bytes, now: int) -> None:
        """Body bytes of one read."""

    def steady(self) -> Reads | None:
        """Who takes the next reads, if they will be whole chunks with one event like the last."""

    def upstream_complete(self, now: int) -> None:
        """The message ended as HTTP says it must."""

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The connection ended before the message did. `untouched`: the engine cannot have read the request."""

    def upstream_broken(self, now: int) -> None:
        """Reading the answer failed for a reason of our own; nothing more of it will come."""


class BodySource(Protocol):
    """Whose body follows its head piece by piece."""

    def engine_full(self) -> None:
        """The engine takes no more for now."""

    def engine_takes(self) -> None:
        """It has everything that was written, and takes more."""


class HttpSurplusError(Exception):
    """More came than was asked for."""


class FramingError(Exception):
    """An answer whose end nobody can know for sure."""


class UpstreamConnection(asyncio.Protocol):
    """One connection. Between two requests it lies in its pool."""

    __slots__ = (
        "_at_chunk_end",
        "_between_chunks",
        "_body",
        "_complete",
        "_flow",
        "_head_bytes",
        "_head_done",
        "_head_due",
        "_headers",
        "_keep_alive",
        "_parser",
        "_pool",
        "_sent_at",
        "_stopped",
        "_trailer_bytes",
        "_until_eof",
        "_without_body",
        "idle_since",
        "keep_alive_ns",
        "on_switch",
        "receiver",
        "requests",
        "transport",
        "upload",
    )

    def __init__(self, pool: Home) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._head_due = self._head_done = self._complete = self._keep_alive = False
        self._stopped = self._until_eof = self._without_body = False
        self._at_chunk_end = False
        """The last thing that llhttp saw was the end of a chunk."""
        self._between_chunks = False
        """... and nothing came after it: a read that is one whole chunk need not go through llhttp."""
        self._flow: Reads | None = None
        self._head_bytes = self._trailer_bytes = self._sent_at = 0
        self.receiver: Receiver | None = None
        self.upload: BodySource | None = None
        """Whose body is still being written."""
        self.requests = 0
        self.idle_since = 0
        self.keep_alive_ns: int | None = None
        self.on_switch: Successor | None = None
        """Takes the connection over when the answer is 101; set behind `send`, and only for that request."""
        self.transport: asyncio.Transport | None = None

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        # uvloop's transports have the methods and not the base class.
        transport = self.transport = cast("asyncio.Transport", transport)
        set_no_delay(transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; one timestamp for all of them."""
        now = monotonic_ns()
        receiver = self.receiver
        if receiver is None:
            # Nothing was asked: a late answer or a goodbye (a 408 before closing). Never hand it to the next request.
            self.abort()
            return
        try:
            if self._between_chunks:
                flow = self._flow
                if flow is not None:
                    if flow.take(data, now):
                        return
                    self.leave_flow()
                self._take_chunk(data, receiver, now)
            else:
                self._take(data, receiver, now)
            if self._between_chunks and self.receiver is receiver:
                self._flow = receiver.steady()
        except httptools.HttpParserUpgrade as upgrade:
            self._switch(data[upgrade.args[0] :], now)
        except Exception:
            # A fault of ours. The event loop would only close this socket, and the request might wait for ever.
            log.exception("an answer could not be read")
            self.abort()
            receiver.upstream_broken(now)

    def leave_flow(self) -> None:
        """What comes next has to be read again, or cannot be written."""
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.leave()

    def _take_chunk(self, data: bytes, receiver: Receiver, now: int) -> None:
        """A read between two chunks: if it is exactly one, as nearly always, llhttp need not see it.

        Its size must be spelled as servers do, without zeros in front, signs or extensions.
        """
        size = len(data) - 7
        start = 5
        if size < 256:
            size += 1
            start = 4
        if size >= WHOLE_CHUNK_FROM and data.endswith(b"\r\n") and data.startswith(b"%x\r\n" % size):
            receiver.upstream_body(data[start:-2], now)
        else:
            self._take(data, receiver, now)

    def _take(self, data: bytes, receiver: Receiver, now: int) -> None:
        if not self._head_done:
            self._head_bytes += len(data)
        reason = "the engine's answer is no HTTP/1.1"
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._stopped = True
            reason = f"{reason}: {error.__context__ or error}"
        if self._head_due:
            self._head_due = False
            if self._without_body:
                self._body = []  # it must not have one; whatever came is not the client's
            receiver.upstream_head(self._parser.get_status_code(), self._headers, now)
        body = self._body
        if body and self.receiver is receiver:
            self._body = []
            receiver.upstream_body(body[0] if len(body) == 1 else b"".join(body), now)
        self._between_chunks = self._at_chunk_end and not self._complete and data.endswith(b"\r\n")
        if self._complete:
            self._finish(receiver, now)
        elif self.receiver is not receiver:
            pass  # the request let go of us while it was reading
        elif self._stopped:
            self._fail(reason, now)
        elif not self._head_done and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(f"the head of the engine's answer is longer than {MAX_HEAD_BYTES} bytes", now)

    def eof_received(self) -> bool:
        """The engine closed; `connection_lost` judges."""
        return False  # close our side too; connection_lost judges

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone: an unframed body is whole, anything else in progress is not."""
        self._pool.closed(self)
        receiver = self.receiver
        if receiver is None:
            return
        now = monotonic_ns()
        self.receiver = None
        if exc is None and self._until_eof and self._head_done:
            receiver.upstream_complete(now)
            return
        # An engine that took the request and hung up later may have acted on it: that one is not sent twice. What comes
        # within a crossing was under way before: the kernel acknowledges also what a closing engine never reads.
        untouched = (
            self.requests > 1
            and self._head_bytes == 0
            and (
                isinstance(exc, ConnectionError)
                or now - self._sent_at < CROSSING_NS
                or not acknowledged_in_full(self.transport)
            )
        )
        receiver.upstream_lost(
            f"the engine closed the connection{f' ({exc})' if exc else ''}", untouched=untouched, now=now
        )

    def pause_writing(self) -> None:
        """The engine's side of the kernel is full."""
        if self.upload is not None:
            self.upload.engine_full()

    def resume_writing(self) -> None:
        """It has taken everything."""
        if self.upload is not None:
            self.upload.engine_takes()

    # -- llhttp

    def on_message_begin(self) -> None:
        """llhttp: an answer begins."""
        if self._complete:
            # A second answer to one request: whatever it is, it is nobody's, least of all the next request's.
            raise HttpSurplusError

    def on_header(self, name: bytes, value: bytes) -> None:
        """llhttp: one header or trailer."""
        if not self._head_done:
            self._headers.append((name, value))
            return
        # Trailers are relayed to nobody; without an end they would only fill our memory.
        self._trailer_bytes += len(name) + len(value)
        if self._trailer_bytes > MAX_HEAD_BYTES:
            raise HttpSurplusError

    def on_headers_complete(self) -> None:
        """llhttp: the head is whole."""
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:
                self._stopped = True
                return
            _check_interim(status, self._headers)
            self._headers = []
            return
        framed = False
        for name, value in self._headers:
            key = name.lower()
            if key == b"content-length":
                framed = True
            elif key == b"transfer-encoding":
                _check_coding(value, again=framed)
                framed = True
            elif key == b"keep-alive":
                self.keep_alive_ns = _keep_alive_ns(value)
        self._head_due = self._head_done = True
        self._until_eof = not (framed or status in (204, 304))
        if status == 205:
            self._without_body = True
        if self._without_body:
            # The parser does not know that a HEAD was asked; it would wait for the body that is announced.
            self._complete = True

    def on_body(self, data: bytes) -> None:
        """llhttp: a piece of the body."""
        self._body.append(data)

    def on_chunk_header(self) -> None:
        """llhttp: a chunk begins."""
        self._at_chunk_end = False

    def on_chunk_complete(self) -> None:
        """llhttp: a chunk and its line end are through."""
        self._at_chunk_end = True

    def on_message_complete(self) -> None:
        """llhttp: the answer is whole."""
        if self._head_done:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive() and not self._without_body

    # -- one request

    def send(self, receiver: Receiver, request: bytes, *, without_body: bool) -> None:
        """Write a whole request. `without_body`: the answer has none whatever its head says (HEAD)."""
        assert self.transport is not None
        self.receiver = receiver
        self.requests += 1
        self._headers, self._body = [], []
        self._head_due = self._head_done = self._complete = self._keep_alive = False
        self._stopped = self._until_eof = self._at_chunk_end = self._between_chunks = False
        self._flow = None
        self.on_switch = None
        self._without_body = without_body
        self._head_bytes = self._trailer_bytes = 0
        self._sent_at = monotonic_ns()
        self.transport.write(request)

    def carry(self, upload: BodySource) -> None:
        """A body follows, piece by piece. From now on a full kernel is told at its first byte."""
        assert self.transport is not None
        self.upload = upload
        self.transport.set_write_buffer_limits(high=0)

    def write_body(self, pieces: list[bytes]) -> None:
        """A part of it, framed."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def carried(self) -> None:
        """The body is whole and with the kernel: the connection may serve another request."""
        self.upload = None
        if self.transport is not None:
            self.transport.set_write_buffer_limits()

    def fileno(self) -> int:
        """The socket's number, -1 without one."""
        sock = None if self.transport is None else self.transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def pause(self) -> None:
        """Stop reading: the client cannot take more."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once: the engine must see that nobody waits."""
        self.receiver = None
        if self.transport is not None:
            self.transport.abort()

    def _finish(self, receiver: Receiver, now: int) -> None:
        if self.receiver is receiver:
            self.receiver = None
            if self.upload is not None:
                self.abort()  # answered before it had the whole body
            elif self._keep_alive and not self._stopped:
                self._pool.release(self, now)
            elif self.transport is not None:
                self.transport.close()
            receiver.upstream_complete(now)

    def _switch(self, rest: bytes, now: int) -> None:
        """The answer was a 101, and `rest` is the other protocol's."""
        if self.on_switch is None:
            self._fail("the engine's answer is no HTTP/1.1: it switches to a protocol that nobody asked for", now)
            return
        self.receiver = None
        self.on_switch(self, self._headers, rest, now)

    def _fail(self, error: str, now: int) -> None:
        receiver, self.receiver = self.receiver, None
        if self.transport is not None:
            self.transport.abort()
        if receiver is not None:
            receiver.upstream_lost(error, untouched=False, now=now)


def set_no_delay(transport: asyncio.Transport) -> None:
    """Switch Nagle off: with delayed acknowledgements it holds a token back for 40 ms on a warm connection."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def tell_full_kernel(transport: asyncio.Transport) -> None:
    """Have `pause_writing` called at the first byte that the other side's kernel does not take.

    With a limit of 0 a plain write is also tried at once, not at the end of the loop's turn. TLS would take 0 for
    "always full", and at the start its session tickets wait there; under it the socket's own buffer takes another
    64 KiB before anybody hears of it.
    """
    secure = transport.get_extra_info("sslcontext") is not None
    transport.set_write_buffer_limits(high=_TLS_TICKETS if secure else 0, low=0)


def _check_interim(status: int, headers: list[Header]) -> None:
    if status < 100:
        raise FramingError(f"status {status} is none")
    # llhttp would read a body of it, and hand that out as the answer's.
    for name, value in headers:
        key = name.lower()
        if key == b"transfer-encoding" or (key == b"content-length" and value.strip() != b"0"):
            raise FramingError("an interim answer has no body")


def _check_coding(value: bytes, *, again: bool) -> None:
    if again or value.strip().lower() != b"chunked":
        # No other coding was offered to the engine, and relaying one without its name would garble the body.
        raise FramingError(f"transfer coding {value[:40].decode('latin-1')!r} was not offered")


def _keep_alive_ns(value: bytes) -> int | None:
    """`timeout=5, max=100` -> 4 s: one second under what the engine grants, so that it never closes first."""
    for member in value.split(b","):
        key, _, number = member.strip().partition(b"=")
        number = number.strip()
        if key.lower() == b"timeout" and number.isdigit() and len(number) <= 9:  # 9: some thirty years
            return max(0, int(number) * 1_000_000_000 - 1_000_000_000)
    return None
