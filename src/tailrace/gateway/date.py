"""The `Date` header of answers that carry none of the engine's (RFC 9110 §6.6.1: whoever has a clock adds it)."""

from __future__ import annotations

from email.utils import formatdate
from time import time_ns


class DateLine:
    """The header line of this second, made once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def __call__(self) -> bytes:
        """`date: Sun, 06 Nov 1994 08:49:37 GMT` with its CRLF."""
        second = time_ns() // 1_000_000_000
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")
        return self._line


date_line = DateLine()
