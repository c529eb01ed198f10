"""Events that differ from the last one in nothing but their text: taken where they are stamped, without a parser.

Nearly every read of a decoding stream is one HTTP chunk with one token event. To recognise such a read costs less than
to put it aside for later, so the stamps of the reads behind it lose nothing; the meter learns of it when something else
comes or somebody asks.
"""

from __future__ import annotations

from tailrace.measure.meter import StreamMeter


class KnownEvents:
    """Of one stream: recognises whole chunks with one known event each, and keeps their stamps."""

    __slots__ = (
        "_at",
        "_counted",
        "_last",
        "_meter",
        "_prefix",
        "_room",
        "_suffix",
        "_text_end",
        "_text_start",
        "_watch",
    )

    def __init__(self, meter: StreamMeter) -> None:
        self._meter = meter
        self._at = meter.event_stamps
        self._watch = meter.stall.watch_ns
        self._prefix = self._suffix = b""
        self._text_start = self._text_end = 0
        self._room = self._last = 0
        self._counted = -1
        """Stamps that the meter knows of; -1 while it sees everything itself."""

    def begin(self) -> bool:
        """Whether the next events may be taken here: the last one was plain, and the stream does not stand still."""
        meter = self._meter
        pattern = meter.pattern()
        if pattern is None:
            return False
        prefix, suffix, start, end = pattern
        if suffix + b"\r\n" != self._suffix or prefix != self._prefix:
            self._prefix, self._suffix = prefix, suffix + b"\r\n"
        self._text_start, self._text_end = start, end - 2
        self._room = meter.room
        self._counted = len(self._at)
        self._last = meter.last_token_ns or 0
        return True

    def take(self, data: bytes, now: int) -> bool:
        """Take one read, stamped `now`. False for a read that is anything else; nothing of it has been touched then."""
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
        return True

    def settle(self) -> None:
        """Let the meter know of what was taken since."""
        if self._counted < 0:
            return
        taken = len(self._at) - self._counted
        if taken:
            self._counted += taken
            self._meter.note_same(taken)

    def leave(self) -> None:
        """Something else comes: the meter sees it itself."""
        self.settle()
        self._counted = -1
