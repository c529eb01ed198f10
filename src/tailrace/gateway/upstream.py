"""The upstream client: a bounded pool of keep-alive connections to one engine, each used by one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from tailrace.gateway.head import Header

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 256 * 1024
"""An engine's head is a few hundred bytes; whoever sends more does not speak HTTP to us."""
MAX_IDLE: Final = 256
"""Idle connections kept; the engine keeps a socket and a task for each."""
_PLAIN_SIZES: Final = {spelled: size for size in range(1, 2048) for spelled in (b"%x" % size, b"%X" % size)}
"""Chunk sizes as servers spell them, without zeros in front, signs or extensions. A token's event is a few hundred
bytes; whatever stands not here goes through llhttp."""
_LONGEST_SIZE: Final = 3


class Seeker(Protocol):
    """Who waits for a connection."""

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:
        """A fresh connection is there; `started` is when connecting began."""

    def upstream_unreachable(self, error: str, now: int) -> None:
        """Nobody answered, or not in time."""


class Receiver(Protocol):
    """Who waits for an answer. All stamps are our monotonic clock at the read (ns)."""

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The final head (not a 1xx)."""

    def upstream_body(self, data: bytes, now: int) -> None:
        """Body bytes of one read."""

    def upstream_chunk(self, data: bytes, start: int, now: int) -> None:
        """Body bytes of one read that is exactly one chunk of the chunked coding: they are `data[start:-2]`."""

    def upstream_complete(self, now: int) -> None:
        """The message ended as HTTP says it must."""

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The connection ended before the message did. `untouched`: reused, and not one byte of an answer came."""

    def upstream_broken(self, now: int) -> None:
        """Reading the answer failed for a reason of our own; nothing more of it will come."""


class HttpSurplusError(Exception):
    """More came than was asked for."""


class UpstreamConnection(asyncio.Protocol):
    """One connection. Between two requests it lies in its pool."""

    __slots__ = (
        "_at_chunk_end",
        "_between_chunks",
        "_body",
        "_complete",
        "_head_bytes",
        "_head_done",
        "_head_due",
        "_headers",
        "_keep_alive",
        "_parser",
        "_pool",
        "_stopped",
        "_trailer_bytes",
        "_until_eof",
        "_without_body",
        "idle_since",
        "keep_alive_ns",
        "receiver",
        "requests",
        "transport",
    )

    def __init__(self, pool: UpstreamPool) -> None:
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
        self._head_bytes = self._trailer_bytes = 0
        self.receiver: Receiver | None = None
        self.requests = 0
        self.idle_since = 0
        self.keep_alive_ns: int | None = None
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
                # One write of the engine is one chunk is one event is one read, nearly always.
                end = data.find(b"\r\n", 1, _LONGEST_SIZE + 2)
                if end > 0 and _PLAIN_SIZES.get(data[:end], -1) == len(data) - end - 4 and data.endswith(b"\r\n"):
                    receiver.upstream_chunk(data, end + 2, now)
                    return
            self._take(data, receiver, now)
        except Exception:
            # A fault of ours. The event loop would only close this socket, and the request might wait for ever.
            log.exception("an answer could not be read")
            self.abort()
            receiver.upstream_broken(now)

    def _take(self, data: bytes, receiver: Receiver, now: int) -> None:
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._stopped = True
            reason = f"the engine's answer is no HTTP/1.1: {error}"
        if self._head_due:
            self._head_due = False
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
        untouched = self.requests > 1 and self._head_bytes == 0
        receiver.upstream_lost(
            f"the engine closed the connection{f' ({exc})' if exc else ''}", untouched=untouched, now=now
        )

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
        if status == 101:
            self._stopped = True
            return
        if status < 200:
            self._headers = []
            return
        self._head_due = self._head_done = True
        framed = status in (204, 304)
        for name, value in self._headers:
            key = name.lower()
            if key in (b"content-length", b"transfer-encoding"):
                framed = True
            elif key == b"keep-alive":
                self.keep_alive_ns = _keep_alive_ns(value)
        self._until_eof = not framed
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
        self._without_body = without_body
        self._head_bytes = self._trailer_bytes = 0
        self.transport.write(request)

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
            if self._keep_alive and not self._stopped:
                self._pool.release(self, now)
            elif self.transport is not None:
                self.transport.close()
            receiver.upstream_complete(now)

    def _fail(self, error: str, now: int) -> None:
        receiver, self.receiver = self.receiver, None
        if self.transport is not None:
            self.transport.abort()
        if receiver is not None:
            receiver.upstream_lost(error, untouched=False, now=now)


class UpstreamPool:
    """Connections to one engine: reused last in first out, dropped before the engine would drop them."""

    def __init__(self, url: str, *, connect_timeout_ns: int, keep_alive_ns: int, limit: int = 8192) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host: str = parts.hostname.encode("idna").decode("ascii")
        self.tls: ssl.SSLContext | None = ssl.create_default_context() if parts.scheme == "https" else None
        self.port: int = parts.port or (443 if self.tls else 80)
        default = self.port == (443 if self.tls else 80)
        bare = f"[{self.host}]" if ":" in self.host else self.host
        self.authority: bytes = (bare if default else f"{bare}:{self.port}").encode("ascii")
        self.prefix: bytes = parts.path.rstrip("/").encode("ascii")
        """Path of the base URL, before every target; a trailing `/v1` is cut, the API's paths bring their own."""
        if self.prefix.endswith(b"/v1"):
            self.prefix = self.prefix[:-3]
        self.connect_timeout_ns = connect_timeout_ns
        self.keep_alive_ns = keep_alive_ns
        self.limit = limit
        self.idle: deque[UpstreamConnection] = deque()
        self.open: set[UpstreamConnection] = set()
        self._connecting: dict[Seeker, asyncio.Task[None]] = {}
        self._closing = False

    def take(self, now: int) -> UpstreamConnection | None:
        """An idle connection that is surely younger than the engine's keep-alive, or `None`."""
        while self.idle:
            connection = self.idle.pop()
            transport = connection.transport
            if transport is not None and not transport.is_closing() and not self._too_old(connection, now):
                return connection
            connection.abort()
        return None

    def full(self) -> bool:
        """Whether no further connection may be opened."""
        return len(self.open) + len(self._connecting) >= self.limit

    def connect(self, seeker: Seeker) -> None:
        """Open a connection for `seeker`, which is told of the result; `forget` takes the wish back."""
        task = asyncio.create_task(self._connect(seeker))  # noqa: TID251  (owned: `forget` and `close` cancel it)
        self._connecting[seeker] = task
        task.add_done_callback(lambda _: self._connecting.pop(seeker, None))

    def forget(self, seeker: Seeker) -> None:
        """The seeker no longer wants the connection that is being opened for it."""
        task = self._connecting.pop(seeker, None)
        if task is not None:
            task.cancel()

    async def _connect(self, seeker: Seeker) -> None:
        started = monotonic_ns()
        error = ""
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(self.connect_timeout_ns / 1e9):
                factory: Callable[[], UpstreamConnection] = lambda: UpstreamConnection(self)  # noqa: E731
                _, connection = await asyncio.get_running_loop().create_connection(
                    factory, self.host, self.port, ssl=self.tls
                )
        except TimeoutError:
            error = f"no connection within {self.connect_timeout_ns / 1e6:.0f} ms"
        except OSError as failure:  # ssl.SSLError is one
            error = failure.strerror or str(failure)
        except Exception as failure:
            # Whatever it is, the seeker must hear of it: it would wait for its whole budget.
            log.exception("connecting to %s:%d failed", self.host, self.port)
            error = f"{type(failure).__name__}: {failure}"
        current = asyncio.current_task()
        wanted = self._connecting.get(seeker) is current
        if wanted:
            del self._connecting[seeker]
        if connection is None:
            if wanted:
                seeker.upstream_unreachable(f"{self.host}:{self.port}: {error}", monotonic_ns())
        elif wanted:
            seeker.upstream_connected(connection, started, monotonic_ns())
        else:
            connection.abort()

    def opened(self, connection: UpstreamConnection) -> None:
        """A connection is made."""
        self.open.add(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.open.discard(connection)
        if connection.receiver is None:
            with contextlib.suppress(ValueError):  # it was in use or already taken out
                self.idle.remove(connection)

    def release(self, connection: UpstreamConnection, now: int) -> None:
        """A request has its whole answer; the next may use the connection."""
        if self._closing or len(self.idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.idle_since = now
        self.idle.append(connection)

    def sweep(self, now: int) -> None:
        """Close what has been idle too long; the oldest lie at the left."""
        while self.idle and self._too_old(self.idle[0], now):
            self.idle.popleft().abort()

    def _too_old(self, connection: UpstreamConnection, now: int) -> bool:
        limit = self.keep_alive_ns
        if connection.keep_alive_ns is not None:
            limit = min(limit, connection.keep_alive_ns)
        return now - connection.idle_since > limit

    async def close(self) -> None:
        """Close everything and wait for the connecting tasks."""
        self._closing = True
        tasks = list(self._connecting.values())
        self._connecting.clear()
        for task in tasks:
            task.cancel()
        for connection in list(self.open):
            connection.abort()
        self.idle.clear()
        await asyncio.gather(*tasks, return_exceptions=True)


def set_no_delay(transport: asyncio.Transport) -> None:
    """Switch Nagle off: with delayed acknowledgements it holds a token back for 40 ms on a warm connection."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _keep_alive_ns(value: bytes) -> int | None:
    """`timeout=5, max=100` -> 4 s: one second under what the engine grants, so that it never closes first."""
    for member in value.split(b","):
        key, _, number = member.strip().partition(b"=")
        number = number.strip()
        if key.lower() == b"timeout" and number.isdigit() and len(number) <= 9:  # 9: some thirty years
            return max(0, int(number) * 1_000_000_000 - 1_000_000_000)
    return None
