"""One keep-alive HTTP/1.1 connection of the load generator, and the inbox that stamps before anything is parsed.

When many streams have data at once, the event loop hands over one read after the other. Parsing each at once would
push the stamps of the later ones; so `data_received` only stamps and appends, and the whole batch is parsed when
the loop has delivered every read of this turn.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Protocol, cast

import httptools

from tailrace.probe.known import KnownEvents

MAX_HEAD: Final = 64 << 10
"""Bytes of reply headers that are accepted; more is a broken server."""


class Receiver(Protocol):
    """Whoever waits for a reply. `stamp` is the monotonic time (ns) of the read in which the event was complete."""

    @property
    def known(self) -> KnownEvents | None:
        """Takes the reads that are one known event; those come by no other call."""

    def on_first_byte(self, stamp: int) -> None:
        """Something of the reply has arrived."""

    def on_head(self, status: int, headers: dict[str, str], stamp: int) -> None:
        """Status line and headers are complete; header names are lower case."""

    def on_body(self, data: bytes, stamp: int) -> None:
        """A part of the decoded body."""

    def on_end(self, stamp: int) -> None:
        """The reply was read to its end; the connection is already free again."""

    def on_lost(self, stamp: int, why: str, *, garbled: bool = False) -> None:
        """The reply will not be completed: the connection ended, or (`garbled`) what came is no HTTP."""


class Inbox:
    """Reads of all connections, in order of arrival, waiting for the end of the loop's turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: list[tuple[Connection, int, bytes | None]] = []
        self.on_error: Callable[[Exception], None] | None = None
        """Told of a fault in our own code, which would otherwise end in the loop's log while the run waits for ever."""

    def put(self, connection: Connection, stamp: int, data: bytes | None) -> None:
        """Take one read; `None` stands for the end of the connection."""
        if not self._items:
            self._loop.call_soon(self._drain)
        self._items.append((connection, stamp, data))

    def _drain(self) -> None:
        items, self._items = self._items, []
        try:
            for connection, stamp, data in items:
                if data is None:
                    connection.ended(stamp)
                else:
                    connection.parse(stamp, data)
        except Exception as error:
            if self.on_error is None:
                raise
            self.on_error(error)


class Home(Protocol):
    """Where a connection goes when its reply is read."""

    def give_back(self, connection: Connection) -> None:
        """Take a connection that can be used again."""

    def forget(self, connection: Connection) -> None:
        """Drop a connection that cannot."""


class Connection(asyncio.Protocol):
    """Sends one request at a time and reads its reply to the end, so that the connection can be used again."""

    __slots__ = (
        "_body",
        "_boundary",
        "_complete",
        "_extra",
        "_fd",
        "_head_bytes",
        "_headers",
        "_home",
        "_inbox",
        "_keep",
        "_known",
        "_ours",
        "_parser",
        "_receiver",
        "_saw_byte",
        "_saw_head",
        "_stamp",
        "_transport",
        "_unread_head",
        "_until_eof",
        "lost",
        "requests",
        "why",
    )

    def __init__(self, inbox: Inbox, home: Home) -> None:
        self._inbox = inbox
        self._home = home
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._receiver: Receiver | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._head_bytes = self._unread_head = 0
        self._body: list[bytes] = []
        self._saw_byte = self._saw_head = self._complete = self._until_eof = self._ours = self._extra = self._keep = (
            False
        )
        self._stamp = 0
        self._boundary = False
        """The parser stands between two chunks."""
        self._known: KnownEvents | None = None
        """Active: everything before has been parsed, and the next read may be a known event."""
        self.lost = False
        self.why = "the server closed the connection"
        self.requests = 0

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and, on plain TCP, its descriptor for direct writes."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("ssl_object") is None:
            self._fd = sock.fileno()

    def data_received(self, data: bytes) -> None:
        """Stamp; what is no known event is parsed when the loop's turn is over."""
        now = monotonic_ns()
        known = self._known
        if known is not None:
            if known.take(data, now):
                return
            self._leave_known(known)
        self._inbox.put(self, now, data)

    def _leave_known(self, known: KnownEvents) -> None:
        known.leave()
        self._known = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stamp the end; what was read before it is parsed first."""
        self.lost = True
        if self._known is not None:
            self._leave_known(self._known)
        if exc is not None and not self._ours:
            self.why = f"the connection broke: {exc}"
        self._inbox.put(self, monotonic_ns(), None)

    # -- requests

    @property
    def reused(self) -> bool:
        """Whether the request now in flight is not the first on this connection."""
        return self.requests > 1

    def send(self, payload: bytes, receiver: Receiver) -> int:
        """Write a whole request; returns the stamp taken right before the first byte left (ns)."""
        transport = self._transport
        assert transport is not None
        assert self._receiver is None
        self._receiver = receiver
        self.requests += 1
        self._headers = {}
        self._head_bytes = self._unread_head = 0
        self._saw_byte = self._saw_head = self._complete = self._until_eof = self._boundary = False
        stamp = monotonic_ns()
        if self._fd >= 0 and not transport.is_closing() and transport.get_write_buffer_size() == 0:
            # The transport would hold the bytes until the end of the loop's turn, behind other callbacks.
            try:
                done = os.write(self._fd, payload)
            except BlockingIOError:
                done = 0
            except OSError:
                done = 0  # the transport meets the same error and reports it
            if done == len(payload):
                return stamp
            payload = payload[done:]
        transport.write(payload)
        return stamp

    def abandon(self, why: str = "") -> None:
        """Close at once, without telling the receiver."""
        self._receiver = self._known = None
        self._close(why)

    def close(self) -> None:
        """Close an idle connection."""
        self._close("")

    def _close(self, why: str) -> None:
        self.lost = self._ours = True
        if why:
            self.why = why
        if self._transport is not None:
            self._transport.abort()
        self._home.forget(self)

    # -- the inbox's side

    def parse(self, stamp: int, data: bytes) -> None:
        """Parse one read that arrived at `stamp`."""
        if self._known is not None:
            self._leave_known(self._known)
        self._parse(stamp, data)
        receiver = self._receiver
        if self._boundary and receiver is not None and not self.lost:
            known = receiver.known
            if known is not None and known.begin():
                self._known = known

    def _parse(self, stamp: int, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            if not self._ours:
                # Nobody asked: bytes after a reply's end. The connection cannot be trusted with another request.
                self._close("unexpected bytes")
            return
        self._stamp = stamp
        if not self._saw_byte:
            self._saw_byte = True
            receiver.on_first_byte(stamp)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break(stamp, "the server wants to switch protocols")
            return
        except httptools.HttpParserError as error:
            self._flush(stamp)
            if self._complete:  # rubbish behind a whole reply
                self._finish(stamp, keep=False)
            else:
                self._break(stamp, f"the answer is no HTTP ({error})")
            return
        self._flush(stamp)
        if not self._saw_head:
            # A line without an end reaches no callback, but the parser keeps it.
            self._unread_head += len(data)
        if self._complete:
            self._finish(stamp, keep=self._keep and not self._extra)
        elif max(self._head_bytes, self._unread_head) > MAX_HEAD:
            self._break(stamp, f"the reply headers are longer than {MAX_HEAD} bytes")

    def ended(self, stamp: int) -> None:
        """The connection is gone and everything before that has been parsed."""
        self._home.forget(self)
        receiver = self._receiver
        if receiver is None:
            return
        self._receiver = None
        if self._until_eof:
            receiver.on_end(stamp)
        else:
            receiver.on_lost(stamp, self.why)

    def _flush(self, stamp: int) -> None:
        parts = self._body
        if parts:
            self._body = []
            receiver = self._receiver
            if receiver is not None:
                receiver.on_body(parts[0] if len(parts) == 1 else b"".join(parts), stamp)

    def _finish(self, stamp: int, *, keep: bool) -> None:
        receiver, self._receiver = self._receiver, None
        if keep and not self.lost:
            self._home.give_back(self)
        else:
            self._close("")
        if receiver is not None:
            receiver.on_end(stamp)

    def _break(self, stamp: int, why: str) -> None:
        receiver, self._receiver = self._receiver, None
        self._close(why)
        if receiver is not None:
            receiver.on_lost(stamp, why, garbled=True)

    # -- httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line; repeated ones are joined as HTTP says."""
        if self._complete:
            return
        self._head_bytes += len(name) + len(value) + 4
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The head is whole; interim answers (1xx) are passed over."""
        if self._complete:
            self._extra = True
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        headers = self._headers
        self._saw_head = True
        self._until_eof = "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "")
        receiver = self._receiver
        if receiver is not None:
            receiver.on_head(status, headers, self._stamp)

    def on_body(self, data: bytes) -> None:
        """A piece of the body; the pieces of one read are handed on together."""
        if not self._complete:
            self._body.append(data)

    def on_chunk_header(self) -> None:
        """The size of a chunk was read."""
        self._boundary = False

    def on_chunk_complete(self) -> None:
        """A chunk and the line end behind it were read."""
        self._boundary = True

    def on_message_complete(self) -> None:
        """The reply has ended (not an interim one)."""
        if self._saw_head and not self._complete:
            self._complete = True
            # Asked here, because the parser forgets it with the message.
            self._keep = self._parser.should_keep_alive()
