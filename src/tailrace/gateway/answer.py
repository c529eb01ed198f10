"""What one client gets: head, framing, body, end. Knows HTTP's framing and nothing of engines, lanes or time budgets.

The head is not written before it must be: a first error frame may still turn it into another status, and head and
first bytes leave in one segment.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Protocol

from tailrace.gateway.engine_head import AnswerHead, EngineHead
from tailrace.gateway.forward import own_head
from tailrace.gateway.head import LAST_CHUNK, Header

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


class Sink(Protocol):
    """The client's transport."""

    def write(self, data: bytes) -> None:
        """Bytes for the client; tried at once."""


class Answer:
    """The answer to one request, in the order in which its parts may leave.

    `begin` or `refuse`, then any number of `body`, then `end`. `first_write_ns` and `last_write_ns` are the
    instants at which a write had returned: the bytes were with the kernel, unless it was full.
    """

    __slots__ = (
        "_chunked",
        "_head",
        "_head_only",
        "_held",
        "_sink",
        "_version_10",
        "first_write_ns",
        "head_sent",
        "keep_alive",
        "last_write_ns",
        "ours",
        "sse",
        "status",
    )

    def __init__(self, sink: Sink, *, head_only: bool, version: str) -> None:
        self._sink = sink
        self._head_only = head_only
        self._version_10 = version == "1.0"
        self._head: AnswerHead | None = None
        self._held = b""
        self._chunked = False
        self.ours: list[bytes] = []
        """Header lines of the gateway, set by the owner before the head leaves."""
        self.keep_alive = not self._version_10
        """HTTP/1.0's keep-alive would have to be negotiated; a client of that age waits for the close instead."""
        self.head_sent = False
        self.sse = False
        self.status: int | None = None
        """The status that the client got, once it has."""
        self.first_write_ns: int | None = None
        self.last_write_ns: int | None = None

    def afresh(self) -> Answer:
        """One for the same client in which nothing is said yet; only before the head has left."""
        out = Answer(self._sink, head_only=self._head_only, version="1.0" if self._version_10 else "1.1")
        out.keep_alive = self.keep_alive
        return out

    @property
    def holding(self) -> bool:
        """Whether a head is here that has not left yet."""
        return self._head is not None and not self.head_sent

    def begin(self, kind: EngineHead, headers: list[Header], *, sse: bool) -> None:
        """Take the engine's head. It is held until `release` or the end."""
        self._head = AnswerHead(kind, headers)
        self.sse = sse

    def body(self, data: bytes) -> int:
        """Body bytes: written, or held behind a held head. Returns our clock when they were written (0: held)."""
        if not self.head_sent:
            self._held += data
            return 0
        if data:
            self._sink.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            self.last_write_ns = now = monotonic_ns()
            return now
        return self.last_write_ns or 0

    @property
    def passes_chunks(self) -> bool:
        """Whether a whole chunk may be written as the engine framed it: the client gets chunks, and none is held."""
        return self._chunked and not self._head_only

    @property
    def write(self) -> Callable[[bytes], None]:
        """Writes a whole chunk as it was read; whoever does sets `last_write_ns`."""
        return self._sink.write

    def release(self) -> None:
        """Let the head go, and what was held behind it."""
        if self.head_sent or self._head is None:
            return
        head = self._head
        if self._head_only:
            length = head.content_length
            framing = b"" if length is None else b"content-length: %b\r\n" % length
        elif head.status in (204, 304) or head.status < 200:
            framing = b""
        elif head.status == 205:
            framing = b"content-length: 0\r\n"  # RFC 9110 §15.3.6: it has no content, and clients rely on it
        elif head.content_length is not None and not self.sse:
            # A stream never keeps its length: frames may be cut out of it, and an error event may end it.
            framing = b"content-length: %b\r\n" % head.content_length
        elif self._version_10:
            framing = b""
            self.keep_alive = False
        else:
            framing = _CHUNKED
            self._chunked = True
        self.head_sent = True
        self.status = head.status
        out = head.render(self.ours, framing=framing, keep_alive=self.keep_alive)
        held, self._held = self._held, b""
        if held and not self._head_only:
            out += b"%x\r\n%b\r\n" % (len(held), held) if self._chunked else held
        self._write(out)

    def end(self) -> None:
        """The body is whole."""
        if self.head_sent:
            if self._chunked:
                self._write(LAST_CHUNK)
            return
        if self._head is not None and not self.sse and self._head.content_length is None and not self._version_10:
            # The whole body is here before its head has left: its length is known after all.
            if not self._head_only and self._head.status not in (204, 304):
                self._head.content_length = b"%d" % len(self._held)
            self.release()
            return
        self.release()
        if self._chunked:
            self._write(LAST_CHUNK)

    def refuse(self, status: int, body: bytes, *, retry_after_s: int | None = None) -> None:
        """Answer with our own JSON instead. Only before the head has left."""
        assert not self.head_sent
        self._held = b""
        self.head_sent = True
        self.status = status
        head = own_head(status, len(body), self.ours, keep_alive=self.keep_alive, retry_after_s=retry_after_s)
        self._write(head if self._head_only else head + body)

    def switch(self, head: bytes) -> None:
        """The connection speaks another protocol behind this 101; `body` writes its bytes as they are."""
        self.head_sent = True
        self.status = 101
        self._write(head)

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self.last_write_ns = now = monotonic_ns()
        if self.first_write_ns is None:
            self.first_write_ns = now
