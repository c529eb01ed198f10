"""Answers of cached routes: one that is taken down while it is relayed, and one that is given again.

The client's transport is behind `Answer` alone, so what is relayed is taken down here, at the price of one method more
a chunk for these requests and nothing for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from tailrace.gateway.answer import Answer, Sink
from tailrace.gateway.engine_head import EngineHead
from tailrace.gateway.head import Header
from tailrace.govern.single_flight import Flight
from tailrace.measure.summary import StreamSummary

PIECE_OVERHEAD: Final = 41
"""Bytes of a `bytes` object, and its place in a tuple."""
_ITS_OWN: Final = frozenset({b"server-timing", b"x-request-id", b"date", b"connection", b"keep-alive"})
"""Headers that belong to one answer and not to its copies."""


class KeptHead(msgspec.Struct):
    """The head of an answer as its copies get it."""

    kind: EngineHead
    headers: list[Header]
    sse: bool
    keepable: bool
    """False where the engine itself forbids to keep it."""
    summary: StreamSummary | None = None
    """What was measured of the answer, once it is whole."""


class KeptAnswer(NamedTuple):
    """A whole answer."""

    head: KeptHead
    pieces: tuple[bytes, ...]
    """Of its body, each as it was relayed: whole events of a stream."""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        head = sum(len(name) + len(value) + 2 * PIECE_OVERHEAD for name, value in self.head.headers)
        return head + sum(map(len, self.pieces)) + PIECE_OVERHEAD * len(self.pieces)


def kept_head(headers: list[Header], *, status: int, sse: bool) -> KeptHead | None:
    """The head for copies of an answer; `None` where there must be none: no 200, a cookie, a coding."""
    if status != 200:
        return None
    kept: list[Header] = []
    keepable = True
    for name, value in headers:
        key = name.lower()
        if key in (b"set-cookie", b"content-encoding"):
            return None
        if key == b"cache-control":
            # `no-cache` stands on event streams by custom, against proxies that collect them first.
            said = value.lower()
            keepable = b"no-store" not in said and b"private" not in said and (sse or b"no-cache" not in said)
        if key not in _ITS_OWN:
            kept.append((name, value))
    return KeptHead(EngineHead(status, kept), kept, sse, keepable)


class _Nowhere:
    def write(self, data: bytes) -> None:
        """Nobody is there."""


class RecordedAnswer(Answer):
    """Relays to its client and tells a flight of everything that it relays."""

    __slots__ = ("flight",)

    def __init__(self, flight: Flight[KeptHead], sink: Sink, *, head_only: bool, version: str) -> None:
        super().__init__(sink, head_only=head_only, version=version)
        self.flight: Flight[KeptHead] | None = flight

    def afresh(self) -> Answer:
        """As `Answer`; the next attempt is taken down in place of this one, of which nothing may have been."""
        flight = self.flight
        if flight is None:
            return super().afresh()
        out = RecordedAnswer(flight, self._sink, head_only=False, version="1.0" if self._version_10 else "1.1")
        out.keep_alive = self.keep_alive
        return out

    def abandon(self) -> None:
        """The client has left, and the answer goes on for others."""
        self._sink = _Nowhere()

    def begin(self, kind: EngineHead, headers: list[Header], *, sse: bool) -> None:
        """As `Answer`; an answer of which there must be no copy ends the flight."""
        super().begin(kind, headers, sse=sse)
        flight = self.flight
        if flight is None:
            return
        head = kept_head(headers, status=kind.status, sse=sse)
        if head is None:
            self.flight = None
            flight.fail()
        else:
            flight.begin(head)

    def body(self, data: bytes) -> int:
        """As `Answer`; its own client first."""
        at = super().body(data)
        if self.flight is not None:
            self.flight.push(data)
        return at

    @property
    def write(self) -> Callable[[bytes], None]:
        """As `Answer`."""
        return self._write_chunk

    def _write_chunk(self, data: bytes) -> None:
        self._sink.write(data)
        if self.flight is not None:
            self.flight.push(data[data.index(b"\r\n") + 2 : -2])

    def release(self) -> None:
        """As `Answer`; from here on followers get what comes."""
        super().release()
        if self.head_sent and self.flight is not None:
            self.flight.release()

    def refuse(self, status: int, body: bytes, *, retry_after_s: int | None = None) -> None:
        """As `Answer`; nobody else gets a refusal of ours."""
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.fail()
        super().refuse(status, body, retry_after_s=retry_after_s)


class _Gathered:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """It leaves with the rest."""
        self.parts.append(data)


class GivenAnswer(Answer):
    """An answer that was kept, or is another's."""

    __slots__ = ()

    def pieces(self, pieces: list[bytes]) -> None:
        """The next pieces of a stream, each a chunk of its own, in one write; the head with the first of them."""
        sink, gathered = self._sink, _Gathered()
        self._sink = gathered
        try:
            self.release()
            for piece in pieces:
                self.body(piece)
        finally:
            self._sink = sink
        self._write(b"".join(gathered.parts))

    def whole(self, pieces: list[bytes]) -> None:
        """A body in one piece, with its length."""
        self.body(b"".join(pieces))
        self.end()
