"""The steady state of a stream: one token event a chunk a read, each like the last one but for its text.

A token wakes a process that has just slept, with every cache gone to others: what it costs is what it touches. So one
object with a dozen fields does all there is to do for such a read, and the meter, the answer and the parser learn of it
later, when anything else happens or somebody asks.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from tailrace.gateway.answer import Answer
from tailrace.measure.meter import StreamMeter

if TYPE_CHECKING:
    from tailrace.gateway.transit import Transit

WHOLE_CHUNK_FROM = 16
"""A chunk's size is spelled with two digits from here on, with three from 256, and with four from 4096."""


class Flow:
    """Takes the reads that are one whole chunk with one known event, and writes them on as they came."""

    __slots__ = (
        "_answer",
        "_at",
        "_counted",
        "_last",
        "_meter",
        "_overhead_ns",
        "_prefix",
        "_room",
        "_suffix",
        "_text_end",
        "_text_start",
        "_transit",
        "_watch",
        "_write",
        "_written",
    )

    def __init__(self, transit: Transit, meter: StreamMeter, answer: Answer) -> None:
        self._transit = transit
        self._meter = meter
        self._answer = answer
        self._write = answer.write
        self._at = meter.event_stamps
        self._watch = meter.stall.watch_ns
        self._prefix = self._suffix = b""
        self._text_start = self._text_end = 0
        self._room = self._last = self._overhead_ns = self._written = 0
        self._counted = -1
        """Stamps that the meter knows of; -1 while it sees everything itself."""

    def begin(self) -> bool:
        """Whether the next event may be taken here: the last one was plain, and nothing is held or slow."""
        pattern = self._meter.pattern()
        if pattern is None:
            return False
        self._prefix, suffix, self._text_start, text_end = pattern
        self._suffix = suffix + b"\r\n"
        self._text_end = text_end - 2
        self._room = self._meter.room
        self._counted = len(self._at)
        self._last = self._meter.last_token_ns or 0
        return True

    def take(self, data: bytes, now: int) -> bool:
        """The hottest path of all. False for a read that is anything else; nothing of it has been touched then."""
        size = len(data) - 7
        start = 5
        if size < 256:
            size += 1
            start = 4
        if (
            not data.endswith(self._suffix)
            or not data.startswith(b"%x\r\n" % size)
            or not data.startswith(self._prefix, start)
            or now - self._last > self._watch
        ):
            return False
        try:
            text = data[start + self._text_start : self._text_end].decode()
        except UnicodeDecodeError:
            return False
        at = self._at
        if not text.isprintable() or not text or '"' in text or "\\" in text or len(at) + 1 >= self._room:
            return False
        at.append(now)
        self._last = now
        self._write(data)
        self._written = written = monotonic_ns()
        self._overhead_ns += written - now
        return True

    def settle(self) -> None:
        """Let the meter and the answer know of what was taken since."""
        if self._counted < 0:
            return
        taken = len(self._at) - self._counted
        if taken:
            self._counted += taken
            self._meter.note_same(taken)
            self._answer.last_write_ns = self._written
            self._transit.overhead_ns += self._overhead_ns
            self._overhead_ns = 0

    def leave(self) -> None:
        """Something else comes: the meter sees it itself."""
        self.settle()
        self._counted = -1
