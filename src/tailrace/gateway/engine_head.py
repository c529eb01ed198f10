"""The head of an engine's answer: what it says, and what of it the client gets.

An engine's heads differ in a length and a date. What follows from the rest is worked out once for each kind of head.
"""

from __future__ import annotations

from typing import Final

from tailrace.gateway.date import date_line
from tailrace.gateway.head import Header, end_to_end, render_head, status_line

_REPLACED: Final = frozenset(
    {
        b"content-length",
        b"x-request-id",
        b"x-client-request-id",
        b"x-tailrace-lane",
        b"x-tailrace-cache",
        b"x-tailrace-predicted-wait-ms",
        b"x-tailrace-predicted-duration-ms",
        b"alt-svc",
    }
)
_KEPT_KINDS: Final = 64
"""Kinds of heads remembered: an engine has a handful, and one that made up new ones must not fill our memory."""


class EngineHead:
    """One kind of head. Nothing in it may be changed: many answers share it."""

    __slots__ = (
        "_changing",
        "_fixed",
        "_size",
        "date_at",
        "encoding",
        "kind",
        "length_at",
        "lines",
        "server",
        "status",
        "timing_at",
    )

    def __init__(self, status: int, headers: list[Header]) -> None:
        self.status = status
        self.timing_at: tuple[int, ...] = ()
        """Where a service behind us says how long its stages took."""
        self.kind = b""
        """Media type, lower case, without parameters."""
        self.encoding = b""
        self.server = b""
        self.length_at = self.date_at = -1
        changing: list[tuple[int, bytes]] = []
        for at, (name, value) in enumerate(headers):
            key = name.lower()
            if key == b"content-type":
                self.kind = value.partition(b";")[0].strip().lower()
            elif key == b"content-encoding":
                self.encoding = value.strip().lower()
            elif key == b"server":
                self.server = value
            elif key == b"content-length":
                self.length_at = at
                changing.append((at, name))
            elif key == b"date" and self.date_at < 0:
                self.date_at = at
                changing.append((at, name))
            elif key == b"server-timing":
                self.timing_at += (at,)
                changing.append((at, name))
            elif key == b"x-request-id":
                changing.append((at, name))
        places = {at for at, _ in changing}
        kept = [pair for at, pair in enumerate(headers) if at not in places]
        self.lines = render_head(status_line(status), end_to_end(kept, _REPLACED), [])[:-2]
        """Status line and the headers that cross us, without those that differ from answer to answer."""
        self._size = len(headers)
        self._fixed = [(at, pair) for at, pair in enumerate(headers) if at not in places]
        self._changing = changing

    def same(self, headers: list[Header]) -> bool:
        """Whether these headers differ in length, date, timing and request id alone."""
        if len(headers) != self._size:
            return False
        for at, pair in self._fixed:
            if headers[at] != pair:
                return False
        for at, name in self._changing:  # noqa: SIM110  (a generator costs more than the comparison)
            if headers[at][0] != name:
                return False
        return True


class EngineHeads:
    """The kinds of heads that an engine has shown."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], EngineHead] = {}

    def read(self, status: int, headers: list[Header]) -> EngineHead:
        """The kind of a head, read only if it is not the last one of its status and size."""
        key = (status, len(headers))
        known = self._known.get(key)
        if known is None or not known.same(headers):
            if len(self._known) >= _KEPT_KINDS:
                self._known.clear()
            known = self._known[key] = EngineHead(status, headers)
        return known


class AnswerHead:
    """The head of one answer, ready to be written once its framing is known."""

    __slots__ = ("_date", "_kind", "content_length", "status", "timing")

    def __init__(self, kind: EngineHead, headers: list[Header]) -> None:
        self._kind = kind
        self.status = kind.status
        self.content_length = headers[kind.length_at][1] if kind.length_at >= 0 else None
        self._date = headers[kind.date_at][1] if kind.date_at >= 0 else None
        self.timing = b"" if not kind.timing_at else b", ".join(headers[at][1] for at in kind.timing_at)

    def render(self, ours: list[bytes], *, framing: bytes, keep_alive: bool) -> bytes:
        """`ours`: ready-made header lines; `framing`: the line that says where the body ends, or empty."""
        return b"%b%b%b%b%b%b\r\n" % (
            self._kind.lines,
            b"server-timing: %b\r\n" % self.timing if self.timing else b"",
            date_line() if self._date is None else b"date: %b\r\n" % self._date,
            b"".join(ours),
            framing,
            b"" if keep_alive else b"connection: close\r\n",
        )
