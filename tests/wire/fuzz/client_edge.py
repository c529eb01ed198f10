"""Bytes into a `ClientConnection`, split anywhere, over a transport of memory and a host that only keeps the books."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

import httptools

from tailrace.gateway.head import Header, HeadError, check_head, origin_form
from tailrace.gateway.routes import RouteKind, route
from tailrace.gateway.server import ClientConnection

MAX_HEAD = 4096
MAX_BODY = 10_000
_SOCKET, _OTHER = socket.socketpair()


class Wire(asyncio.Transport):
    """A transport whose other end is a list."""

    def __init__(self) -> None:
        super().__init__({"socket": _SOCKET})
        self.out: list[bytes] = []
        self.closing = self.aborted = self.paused = False

    def write(self, data: Any) -> None:
        if not self.closing:
            self.out.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


@dataclass(eq=False)
class Asked:
    """One request as the host was given it; answers with its own number."""

    number: int
    books: Books
    method: bytes = b""
    target: bytes = b""
    status: int = 200
    expects_continue: bool = False
    uploaded: bool = False
    started: bool = False
    answered: bool = False
    gone: bool = False
    keep_alive: bool = True
    body: bytes = b""
    upload: None = None
    heir: None = None

    def add_body(self, data: bytes) -> None:
        assert not self.uploaded
        self.body += data
        if len(self.body) > MAX_BODY and self.status == 200:
            self.status, self.keep_alive = 413, False

    def upload_complete(self) -> None:
        assert not self.uploaded
        self.uploaded = True

    def refused_early(self) -> bool:
        return self.status != 200 and not self.keep_alive

    def spoil(self, error: HeadError) -> None:
        self.status, self.keep_alive = error.status, False

    def start(self, now: int) -> None:
        assert not self.started
        assert self.uploaded or self.refused_early()
        assert self.books.connection.pipeline[0] is self
        self.started = True
        if self.status != 200 or self.books.eager:
            self.answer()

    def answer(self) -> None:
        books = self.books
        assert not self.answered
        self.answered = True
        text = b"%d" % self.number
        close = b"" if self.keep_alive else b"Connection: close\r\n"
        books.wire.write(b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n%b" % (self.status, close, len(text), text))
        books.connection.answered(self, keep_alive=self.keep_alive, now=books.now)  # type: ignore[arg-type]

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        self.gone = True

    def client_timed_out(self, now: int) -> None:
        self.status, self.keep_alive = 408, False
        self.start(now)

    def write_blocked(self) -> None:
        pass

    def write_unblocked(self, since: int, now: int) -> None:
        pass


class NoHangups:
    """Nobody hangs up in memory; what is watched has to be forgotten all the same."""

    def __init__(self) -> None:
        self.watched = 0

    def watch(self, fd: int, who: Any) -> None:
        self.watched += 1

    def forget(self, fd: int, who: Any) -> None:
        self.watched = 0


@dataclass
class Books:
    """The host."""

    eager: bool = True
    """Answer at once, or when told to."""
    max_head_bytes: int = MAX_HEAD
    now: int = 1
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self.hangups = NoHangups()
        self.wire = Wire()
        self.connection = ClientConnection(self)  # type: ignore[arg-type]

    def connected(self, connection: ClientConnection) -> bool:
        self.connections += 1
        return True

    def disconnected(self, connection: ClientConnection) -> None:
        self.connections -= 1

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
    ) -> Asked:
        named = check_head(version, headers)
        target = origin_form(target)
        where = route(target, ["/x*"])
        one = Asked(len(self.asked), self, method, target)
        self.asked.append(one)
        expect = named.get(b"expect", b"").lower()
        if where.kind in (RouteKind.DENIED, RouteKind.MALFORMED, RouteKind.UNKNOWN):
            one.status = 404
            one.keep_alive = not expect
        elif int(named.get(b"content-length", b"0")) > MAX_BODY:
            one.status, one.keep_alive = 413, False
        else:
            one.expects_continue = bool(expect) and version != "1.0"
        return one

    def open_malformed(
        self, connection: ClientConnection, error: HeadError, *, received: int, now: int, version: str
    ) -> Asked:
        one = Asked(len(self.asked), self, status=error.status, keep_alive=False)
        self.asked.append(one)
        return one

    def answer_front(self) -> None:
        pipeline = self.connection.pipeline
        if pipeline:
            front = pipeline[0]
            if isinstance(front, Asked) and front.started and not front.answered:
                front.answer()


class Replies:
    """What a client makes of the bytes that left."""

    def __init__(self, data: bytes) -> None:
        self.numbers: list[int] = []
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self.numbers.append(int(self._body))
        self._body = b""


def pieces(data: bytes, plan: bytes) -> list[tuple[bytes, int]]:
    """`data` cut by `plan`: each of its bytes is a length and an action behind it. The rest is one piece."""
    out = []
    at = 0
    for byte in plan:
        size = byte & 63
        out.append((data[at : at + size], byte >> 6))
        at += size
    out.append((data[at:], 0))
    return out


def play(data: bytes, plan: bytes, *, eager: bool) -> list[tuple[bytes, bytes, int, bytes]]:
    """Feed it all, then leave. Returns each request with its status and, where it was sound, its body.

    Raises AssertionError for an answer out of its order, a request that nobody ended, or one that came back to life.
    """
    books = Books(eager=eager)
    connection, wire = books.connection, books.wire
    connection.connection_made(wire)
    for piece, action in pieces(data, plan):
        books.now += 1_000_000
        if piece and not wire.closing:
            connection.data_received(piece)
        if action == 1:
            books.answer_front()
        elif action == 2 and not wire.closing:
            connection.pause_writing()
            connection.resume_writing()
        elif action == 3:
            connection.sweep(books.now, idle_ns=1 << 60, head_ns=1 << 60, upload_ns=1 << 60)
    for _ in range(len(books.asked)):
        books.answer_front()
    assert len(connection.pipeline) <= 1 or wire.closing
    if not wire.closing:
        connection.eof_received()
    connection.connection_lost(None)
    assert not connection.pipeline
    assert books.connections == 0
    assert books.hangups.watched == 0
    for one in books.asked:
        assert one.answered or one.gone or wire.aborted, one.number
        assert not (one.started and not one.answered) or one.gone
    numbers = Replies(b"".join(wire.out)).numbers
    assert numbers == [one.number for one in books.asked if one.answered]
    assert numbers == sorted(numbers)
    return [
        (one.method, one.target, one.status, one.body if one.status == 200 and one.uploaded else b"")
        for one in books.asked
    ]


def client_edge(data: bytes, plan: bytes) -> None:
    """The same requests, whatever the split and however slow the answers."""
    whole = play(data, b"", eager=True)
    assert play(data, plan, eager=True) == whole
    assert play(data, plan, eager=False) == whole
