"""Server-sent events: bytes in, events out, each with the range of bytes it occupied.

Follows the WHATWG event-stream grammar: LF, CRLF and CR line ends in any mixture, comments, several `data:` lines, one
optional space after the colon, a byte-order mark at the very start. Bytes stay bytes, so that a UTF-8 sequence may be
split anywhere.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace.model.errors import UpstreamError

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Default bound of one event. Log-probabilities or a whole tool call make events of some hundred kilobytes."""

_LF: Final = 10
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"
# Atomic groups, so that one CRLF is never read as two line ends.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_BLANK: Final = 4
_JOINABLE: Final = 4096


class EventTooLarge(UpstreamError):  # noqa: N818  (named for what happened)
    """One event is larger than the framer's bound. The message names the bound; framing cannot go on after it."""

    retry_safe = False

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.events: list[SseEvent] = []
        """The events that the same read completed before."""
        super().__init__(f"an event of the stream is larger than {limit} bytes (max_event_bytes)")


class SseEvent(msgspec.Struct, gc=False):
    """One block of the stream, up to and with its blank line.

    `start` and `end` are offsets in the body: `stream[start:end]` is the block, and the ranges of consecutive events
    tile the stream. A line feed that completes a CRLF only in a later read belongs to the next range; cutting any
    range out leaves a valid stream all the same.
    """

    event: bytes | None
    """The `event:` field, `None` where there is none."""
    data: bytes | None
    """The `data:` lines joined by LF; `None` for a block of comments or other fields, which dispatches nothing."""
    start: int
    end: int


class SseFramer:
    """Splits a body that arrives in arbitrary pieces into events.

    Linear in the bytes fed, whatever the split. `offset` is how many bytes were fed, `block_start` where the block
    that is still open begins.
    """

    __slots__ = (
        "_buffer", "_first_block", "_lf_only", "_limit", "_scanned", "block_start", "last_id", "offset",
        "retry_ms",
    )  # fmt: skip

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._buffer = bytearray()
        self._scanned = 0
        self._lf_only = True
        self._first_block = True
        self.offset = 0
        self.block_start = 0
        self.last_id: bytes | None = None
        self.retry_ms: int | None = None

    @property
    def open(self) -> bool:
        """Whether bytes of an incomplete block are held."""
        return bool(self._buffer)

    @property
    def pristine(self) -> bool:
        """Whether a byte-order mark may still come."""
        return self._first_block

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes, in order.

        Raises:
            EventTooLarge: a block grew beyond the bound; nothing more can be read from this stream.

        """
        out: list[SseEvent] = []
        self.offset += len(data)
        has_cr = _CR in data
        try:
            if self._buffer:
                self._feed_buffered(data, out, has_cr=has_cr)
            else:
                self._feed_fresh(data, out, has_cr=has_cr)
        except EventTooLarge as error:
            error.events = out
            raise
        return out

    def _feed_fresh(self, data: bytes, out: list[SseEvent], *, has_cr: bool) -> None:
        base = self.offset - len(data)
        start, size = 0, len(data)
        while start < size:
            if has_cr:
                # Where the read ends in the middle of a CRLF, its LF comes as an empty line before the next block.
                found = _BLANK_LINE.search(data, start)
                if found is None:
                    break
                end, after = found.span()
            else:
                end = data.find(b"\n\n", start)
                if end < 0:
                    break
                after = end + 2
            self._block(data[start:end], base + after, out)
            start = after
        if start < size:
            self._hold(data[start:] if start else data)

    def _hold(self, data: bytes) -> None:
        self._buffer += data
        self._lf_only = _CR not in data
        self._scanned = max(0, len(data) - _LONGEST_BLANK + 1)
        self._check_size()

    def take_back(self, data: bytes) -> bytes | None:
        """The bytes held and `data` in one piece, held no longer, so that an event cut by a read is whole again.

        `None` where so much is held that joining read after read would cost more than it saves, and before the first
        block, which may begin with a byte-order mark.
        """
        held = len(self._buffer)
        if self._first_block or held > _JOINABLE:
            return None
        joined = bytes(self._buffer) + data
        self._buffer.clear()
        self._scanned = 0
        self.offset -= held
        return joined

    def finish(self) -> SseEvent | None:
        """The event that the end of the body leaves without its blank line, if any.

        The grammar discards it; servers that close right after `data: [DONE]` mean it all the same.
        """
        if not self._buffer:
            return None
        block = bytes(self._buffer)
        self._buffer.clear()
        self._scanned = 0
        out: list[SseEvent] = []
        self._block(block, self.offset, out)
        return out[0] if out else None

    def _feed_buffered(self, data: bytes, out: list[SseEvent], *, has_cr: bool) -> None:
        buffer = self._buffer
        buffer += data
        self._lf_only = self._lf_only and not has_cr
        start = 0
        scan = self._scanned
        while True:
            if self._lf_only:
                end = buffer.find(b"\n\n", scan)
                if end < 0:
                    break
                after = end + 2
            else:
                found = _BLANK_LINE.search(buffer, scan)
                if found is None:
                    break
                end, after = found.span()
            self._block(bytes(buffer[start:end]), self.offset - len(buffer) + after, out)
            start = scan = after
        if start:
            del buffer[:start]
        self._scanned = max(0, len(buffer) - _LONGEST_BLANK + 1)
        self._check_size()

    def _check_size(self) -> None:
        # The first half of the blank line may be held beside a block of just the allowed size.
        if len(self._buffer) > self._limit + _LONGEST_BLANK - 1:
            self._buffer.clear()
            self._scanned = 0
            raise EventTooLarge(self._limit)

    def _block(self, block: bytes, end: int, out: list[SseEvent]) -> None:
        if len(block) > self._limit:
            raise EventTooLarge(self._limit)
        if self._first_block:
            self._first_block = False
            if block.startswith(_BOM):
                block = block[3:]
        event, data, seen = self._read_block(block)
        if seen:
            out.append(SseEvent(event, data, self.block_start, end))
            self.block_start = end

    def _read_block(self, block: bytes) -> tuple[bytes | None, bytes | None, bool]:
        """(event name, data, whether there was any line) of a block without its blank line."""
        if _CR not in block:
            # The two shapes that nearly every event has, without splitting lines.
            first = block.find(_LF)
            if first < 0 and block.startswith(b"data: "):
                return None, block[6:], True
            if (
                block.startswith(b"event: ")
                and block.startswith(b"data: ", first + 1)
                and block.find(_LF, first + 1) < 0
            ):
                return block[7:first], block[first + 7 :], True
        name: bytes | None = None
        lines: list[bytes] = []
        seen = False
        for line in _LINE_END.split(block):
            if not line:
                continue
            seen = True
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"data":
                lines.append(value)
            elif key == b"event":
                name = value
            else:
                self._note_field(key, value)
        return name, b"\n".join(lines) if lines else None, seen

    def _note_field(self, key: bytes, value: bytes) -> None:
        if key == b"id" and b"\0" not in value:
            self.last_id = value
        elif key == b"retry" and value.isdigit():
            self.retry_ms = int(value)
