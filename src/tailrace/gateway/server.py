"""The data port's client side: one HTTP/1.1 connection as an `asyncio.Protocol` on llhttp.

Answers leave in the order of their requests; a pipelined request waits for the one before it. The client's FIN means
that it left: whoever shuts down its sending side while waiting for an answer is treated as gone (half-closed HTTP
clients do not exist in practice, and an engine that computes for nobody does).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from time import monotonic_ns
from typing import Final, Protocol, cast

import httptools

from tailrace.gateway.date import date_line
from tailrace.gateway.hangup import HangupWatch
from tailrace.gateway.head import Header, HeadError, connection_tokens, render_head, status_line
from tailrace.gateway.request_head import RequestHead
from tailrace.gateway.upstream import set_no_delay, tell_full_kernel

MAX_PIPELINED: Final = 32
"""Requests that may wait behind one another on a connection before we stop reading it."""
MAX_HEADERS: Final = 200
NOT_SENT_LOW_WATER: Final = 64 * 1024
"""Bytes the kernel may hold unsent for one client. Its default grows to megabytes, behind which a slow reader hides."""
SLOWEST_UPLOAD: Final = 500
"""Bytes a second below which a request's body is no upload but a hold on a connection; speech needs 750."""
LINGER_NS: Final = 2_000_000_000
"""How long a refused upload is read and thrown away, so that the refusal is not lost in a reset."""


class Heir(Protocol):
    """Who speaks with the client after its HTTP has ended."""

    def take_over(self) -> None:
        """The request is whole."""

    def from_client(self, data: bytes) -> None:
        """Bytes as they were read."""


class Upload(Protocol):
    """A body that is not gathered."""

    def arrived(self, now: int) -> None:
        """A read is over, and the request is the first of its connection. Told again until it has all it needs."""

    def hold_back(self) -> None:
        """It may be too much to keep: `pause_upload` then."""


class Exchange(Protocol):
    """One request as its connection drives it."""

    expects_continue: bool
    uploaded: bool
    """The whole body is here."""
    started: bool
    heir: Heir | None
    """Who takes the client's bytes once this request is whole, where it offers a protocol that we take up."""

    @property
    def upload(self) -> Upload | None:
        """Its body, where it goes on as it comes."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection serves another request after this one."""

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None: ...

    def add_body(self, data: bytes) -> None:
        """Body bytes as they come."""

    def upload_complete(self) -> None:
        """The request is whole."""

    def start(self, now: int) -> None:
        """It is this request's turn: answer it."""

    def refused_early(self) -> bool:
        """Whether it is refused already, body or not."""

    def spoil(self, error: HeadError) -> None:
        """The rest of its body is not HTTP: refuse it, unless it is refused already."""

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        """The client left. Idempotent."""

    def client_timed_out(self, now: int) -> None:
        """The client did not finish its request in time."""

    def write_blocked(self) -> None:
        """The client takes no more for now."""

    def write_unblocked(self, since: int, now: int) -> None:
        """Everything written so far is with the kernel."""


class Host(Protocol):
    """What the connections of a data port share."""

    max_head_bytes: int
    hangups: HangupWatch

    def connected(self, connection: ClientConnection) -> bool:
        """A client is there; false when there are too many."""

    def disconnected(self, connection: ClientConnection) -> None:
        """A client is gone."""

    def open(
        self,
        connection: ClientConnection,
        method: bytes,
        target: bytes,
        version: str,
        headers: list[Header],
        *,
        received: int,
        now: int,
    ) -> Exchange:
        """A request's head is complete."""

    def open_malformed(
        self, connection: ClientConnection, error: HeadError, *, received: int, now: int, version: str
    ) -> Exchange:
        """What came is no request: an exchange that can only be refused."""


class ClientConnection(asyncio.Protocol):
    """One client connection: parses requests, hands them out in order, knows when the client is slow or gone."""

    __slots__ = (
        "_advancing",
        "_begun",
        "_deaf",
        "_ended",
        "_framing",
        "_gone",
        "_head_bytes",
        "_headers",
        "_heir",
        "_host",
        "_in_head",
        "_linger_until",
        "_now",
        "_parser",
        "_read_size",
        "_reading_paused",
        "_replaying",
        "_target",
        "_upload_bytes",
        "_upload_paused",
        "_upload_seen",
        "_upload_since",
        "_uploading",
        "_watched_fd",
        "blocked_since",
        "known_head",
        "last_activity",
        "pipeline",
        "transport",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parser = httptools.HttpRequestParser(self)
        self._headers: list[Header] = []
        self._target = b""
        self._begun = 0
        self._now = 0
        self._head_bytes = self._read_size = 0
        self._in_head = False
        self._deaf = False
        """Nothing more is read from this client: it is closing, or what it sent cannot be trusted."""
        self._ended = False
        """A request ended in the read at hand."""
        self._gone = False
        self._heir: Heir | None = None
        self._replaying = False
        self._reading_paused = False
        self._upload_paused = False
        self._watched_fd = -1
        self._linger_until = 0
        self._advancing = False
        self._uploading: Exchange | None = None
        self._upload_bytes = self._upload_seen = self._upload_since = 0
        self._framing = 0
        """Bytes read of an upload since its last byte of body: chunk extensions and trailers."""
        self.pipeline: deque[Exchange] = deque()
        self.blocked_since: int | None = None
        self.known_head: RequestHead | None = None
        """The last head that another request may share."""
        self.last_activity = 0
        self.transport: asyncio.Transport | None = None

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # uvloop's transports have the methods and not the base class.
        transport = self.transport = cast("asyncio.Transport", transport)
        self.last_activity = monotonic_ns()
        set_no_delay(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_LOW_WATER)
        tell_full_kernel(transport)
        if not self._host.connected(self):
            self._deaf = True
            head = b"%bcontent-length: 0\r\n%bconnection: close\r\n\r\n" % (status_line(503), date_line())
            transport.write(head)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; one timestamp for all of them."""
        if self._deaf:
            self._pass_on(data)
            return
        now = self._now = monotonic_ns()
        self._read_size = len(data)
        self._ended = False
        try:
            self._feed(data)
        except HeadError as error:
            self._refuse(error, now)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, HeadError):
                self._refuse(cause, now)
            else:
                self._refuse(HeadError(400, f"this is no HTTP/1.1 request: {error}"), now)
        if self._in_head and not self._ended:
            # A head that began behind another request in this read counts from the next read on: most of these bytes
            # are not its own.
            self._head_bytes += len(data)
            if self._head_bytes > self._host.max_head_bytes:
                self._refuse(HeadError(431, f"the head is longer than {self._host.max_head_bytes} bytes"), now)
        elif self._uploading is not None:
            self._check_framing(len(data), now)
        if self.pipeline or self._in_head:
            self.last_activity = now  # empty lines between requests keep no connection
        self._advance(now)
        self._hold_back()

    def _hold_back(self) -> None:
        """Read no more than is worth keeping: of a body that cannot go on, of requests that wait for their turn."""
        if self._uploading is not None and self._uploading.upload is not None:
            self._uploading.upload.hold_back()
        if len(self.pipeline) > MAX_PIPELINED and not self._reading_paused and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()
            self._watched_fd = self.transport.get_extra_info("socket").fileno()
            self._host.hangups.watch(self._watched_fd, self)

    def _check_framing(self, size: int, now: int) -> None:
        """A body may be as long as it may be; what frames it (chunk extensions, a trailer's value) may not."""
        if self._upload_bytes != self._upload_seen:
            self._upload_seen = self._upload_bytes
            self._framing = 0
            return
        self._framing += size
        if self._framing > self._host.max_head_bytes:
            limit = self._host.max_head_bytes
            self._refuse(HeadError(431, f"more than {limit} bytes of chunk extensions or trailers"), now)

    def _pass_on(self, data: bytes) -> None:
        if self._heir is not None:
            self._heir.from_client(data)

    def eof_received(self) -> bool:
        """The client will send nothing more: it left."""
        self._everyone_gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._everyone_gone(write_failed=isinstance(exc, BrokenPipeError))
        self._host.disconnected(self)

    def pause_writing(self) -> None:
        """The client's side of the kernel is full."""
        self.blocked_since = monotonic_ns()
        if self.pipeline:
            self.pipeline[0].write_blocked()

    def resume_writing(self) -> None:
        """The client has taken everything."""
        since, self.blocked_since = self.blocked_since, None
        if since is not None and self.pipeline:
            self.pipeline[0].write_unblocked(since, monotonic_ns())

    # -- llhttp

    def on_message_begin(self) -> None:
        """llhttp: a request begins."""
        if self._replaying:
            return
        if self._deaf:
            raise HeadError(400, "the connection was to be closed")  # read by nobody; it stops the parser
        self._begun = self._now
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._in_head = True

    def on_url(self, part: bytes) -> None:
        """llhttp: a piece of the target."""
        if not self._replaying:
            self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """llhttp: one header or trailer."""
        if not self._replaying:
            if len(self._headers) >= MAX_HEADERS:  # trailers count too: a body may end in any number of them
                raise HeadError(431, f"there are more than {MAX_HEADERS} headers")
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """llhttp: the head is whole."""
        if self._replaying:
            return
        self._in_head = False
        # Trailers come through `on_header` too; they must not grow the head that was already handed out.
        headers, self._headers = self._headers, []
        limit = self._host.max_head_bytes
        if self._read_size > limit and sum(len(name) + len(value) + 4 for name, value in headers) > limit:
            raise HeadError(431, f"the head is longer than {limit} bytes")  # it came in one read
        exchange = self._host.open(
            self,
            self._parser.get_method(),
            self._target,
            self._parser.get_http_version(),
            headers,
            received=self._begun,
            now=self._now,
        )
        self._target = b""
        self._uploading = exchange
        self._upload_bytes = self._upload_seen = self._framing = 0
        self._upload_since = self._now
        self.pipeline.append(exchange)
        if self._parser.should_upgrade():
            self._headers = headers  # `_without_upgrade` reads them again

    def on_body(self, data: bytes) -> None:
        """llhttp: a piece of the body."""
        if self._uploading is not None:
            self._upload_bytes += len(data)
            self._uploading.add_body(data)

    def on_message_complete(self) -> None:
        """llhttp: the request is whole."""
        self._ended = True
        if self._parser.should_upgrade():
            return  # llhttp ends the message where the new protocol would begin; `_without_upgrade` goes on
        exchange, self._uploading = self._uploading, None
        if exchange is not None:
            exchange.keep_alive = exchange.keep_alive and self._parser.should_keep_alive()
            if not exchange.keep_alive:
                self._deaf = True
            exchange.upload_complete()

    # -- reading

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            at: int = upgrade.args[0]
        except httptools.HttpParserError:
            if not self._deaf:  # bytes after `Connection: close` are nobody's
                raise
            return
        else:
            return
        # Not in the handler: an error from here on would count as one of the upgrade, and lose its own status.
        self._without_upgrade(data[at:])

    def _without_upgrade(self, rest: bytes) -> None:
        """An offer of another protocol that nobody takes up is declined by going on with HTTP/1.1 (RFC 9110 §7.8).

        Java's client offers h2c on its first request, body and all; llhttp stops before that body. A fresh parser
        gets the same head without the offer, then the rest.
        """
        exchange = self._uploading
        if exchange is None or self._parser.get_method() == b"CONNECT":
            raise HeadError(405, "CONNECT is not supported")
        heir = self._heir = exchange.heir
        if heir is not None:
            self._uploading, self._headers = None, []
            self._deaf = True
            heir.take_over()
            if rest:
                heir.from_client(rest)
            return
        offered = {n.lower(): v for n, v in self._headers}
        method = self._parser.get_method()
        version = self._parser.get_http_version().encode("ascii")
        kept = [pair for pair in self._headers if pair[0].lower() not in (b"upgrade", b"connection")]
        if b"close" in connection_tokens(offered.get(b"connection", b"")):
            kept.append((b"Connection", b"close"))
        self._headers = []
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            self._parser.feed_data(render_head(b"%b / HTTP/%b\r\n" % (method, version), kept, []))
        finally:
            self._replaying = False
        if rest and not self._deaf:
            self._feed(rest)

    def _refuse(self, error: HeadError, now: int) -> None:
        """What this client sends cannot be followed any more: answer what is whole, then say so and close."""
        self._deaf = True
        self._in_head = False
        exchange, self._uploading = self._uploading, None
        if exchange is not None:
            exchange.spoil(error)
            return
        malformed = self._host.open_malformed(
            self, error, received=self._begun or now, now=now, version=self._parser.get_http_version()
        )
        self.pipeline.append(malformed)

    # -- answering

    def _advance(self, now: int) -> None:
        if self._advancing:
            return  # an answer given at once comes back here; a loop bears any number of them, recursion does not
        self._advancing = True
        try:
            while self.pipeline:
                front = self.pipeline[0]
                if front.upload is not None:
                    front.upload.arrived(now)
                    if self.pipeline and self.pipeline[0] is front and front.upload is not None:
                        return
                    continue
                if front.started:
                    return
                if front.uploaded or front.refused_early():
                    if not front.uploaded:
                        self._deaf = True
                    front.start(now)
                    continue
                if front.expects_continue and self.transport is not None:
                    front.expects_continue = False
                    self.transport.write(b"%b\r\n" % status_line(100))
                return
        finally:
            self._advancing = False

    def answered(self, exchange: Exchange, *, keep_alive: bool, now: int) -> None:
        """The whole answer of the front request is with the kernel: the connection is the next one's."""
        if self._gone or not self.pipeline or self.pipeline[0] is not exchange:
            return
        self.pipeline.popleft()
        self.last_activity = self._upload_since = now
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not keep_alive:
            self._deaf = True
            if exchange.uploaded:
                transport.close()
            else:
                # The rest of the upload is still on its way: a close would answer it with a reset, and the reset
                # would overtake the refusal.
                if transport.can_write_eof():  # TLS cannot
                    transport.write_eof()
                self._linger_until = now + LINGER_NS
            return
        if self._reading_paused and len(self.pipeline) < MAX_PIPELINED // 4:
            self._reading_paused = False
            if not self._upload_paused:
                self._host.hangups.forget(self._watched_fd, self)
                transport.resume_reading()
        if self.pipeline:
            self._advance(now)

    def pause_upload(self) -> None:
        """Its body comes faster than it goes on. Unread, a client could leave unseen: the kernel tells."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._upload_paused = True
        transport.pause_reading()
        self._watched_fd = transport.get_extra_info("socket").fileno()
        self._host.hangups.watch(self._watched_fd, self)

    def resume_upload(self) -> None:
        """The body goes on."""
        self._upload_paused = False
        transport = self.transport
        if self._reading_paused:
            return
        self._host.hangups.forget(self._watched_fd, self)
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def hung_up(self) -> None:
        """The client left while nobody reads from it: its pipeline is full, or its body cannot go on yet."""
        self._everyone_gone()
        self.abort()

    def abort(self) -> None:
        """Drop the client: what it got is all it gets, and it can see that it is not whole."""
        self._deaf = True
        if self.transport is not None:
            self.transport.abort()

    def _everyone_gone(self, *, write_failed: bool = False) -> None:
        self._gone = self._deaf = True
        self._uploading = None
        self._host.hangups.forget(self._watched_fd, self)
        if self.pipeline:
            now = monotonic_ns()
            for exchange in self.pipeline:
                exchange.client_gone(now, write_failed=write_failed)
            self.pipeline.clear()

    # -- time

    def sweep(self, now: int, *, idle_ns: int, head_ns: int, upload_ns: int) -> None:
        """Called about once a second: close what is idle, refuse what does not get on with its request."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._linger_until:
            if now > self._linger_until:
                transport.abort()
        elif self._in_head:
            if now - self._begun > head_ns:
                self._refuse(HeadError(408, "the request's head did not arrive in time"), now)
                self._advance(now)
        elif self._uploading is not None:
            # A byte now and then is no progress either: the whole upload has to keep a pace.
            due = self._upload_since + upload_ns + self._upload_bytes * (1_000_000_000 // SLOWEST_UPLOAD)
            late = now - self.last_activity > upload_ns or now > due
            if self._uploading.started:
                pass  # it goes upstream as it comes, and keeps its own time
            elif late and self.pipeline and self.pipeline[0] is self._uploading:
                self._deaf = True
                self._uploading.client_timed_out(now)
        elif not self.pipeline and now - self.last_activity > idle_ns:
            transport.close()

    def close_when_idle(self) -> None:
        """Shutting down: an idle connection is closed now. One on which a request arrives is not idle."""
        if not self.pipeline and not self._in_head and self.transport is not None and not self.transport.is_closing():
            self.transport.close()
