"""Fields of a multipart form, read beside the path as the body passes. Sans-IO, bounded, never an error.

The engine owns the form: what is malformed is relayed as it is, and simply not known here. A file part may be of any
size; of it only the first bytes are kept. Fields may come before the file or behind it, so what is known depends on how
much has passed (`FormScanner.fields`).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from tailrace.gateway.work import Work
from tailrace.measure.dialect import as_count
from tailrace.measure.wave import wave_seconds

WANTED: Final = frozenset({"model", "stream", "temperature", "max_completion_tokens"})
"""Fields that admission and the record need. No other value is kept, least of all a prompt's."""
LONGEST_VALUE: Final = 1024
LONGEST_HEADERS: Final = 8192
"""Bytes of one part's headers; whoever sends more is not read any further."""
FILE_HEAD: Final = 4096
"""First bytes of the first file that are kept: a WAV header with its comments fits."""
_LONGEST_BOUNDARY: Final = 200
_LONGEST_PADDING: Final = 256
_TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})

_BOUNDARY: Final = re.compile(rb';\s*boundary=(?:"([^"]*)"|([^;\s]+))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"(?:^|\r\n)content-disposition:([^\r\n]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';\s*([a-z]+\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.IGNORECASE)


def boundary_of(content_type: bytes) -> bytes | None:
    """The boundary of a `multipart/form-data` content type; `None` for any other."""
    if content_type.partition(b";")[0].strip().lower() != b"multipart/form-data":
        return None
    match = _BOUNDARY.search(content_type)
    boundary = (match[1] if match[1] is not None else match[2]) if match else b""
    return boundary if 0 < len(boundary) <= _LONGEST_BOUNDARY else None


class _At(Enum):
    BODY = "body"
    LINE = "line"
    """Behind a delimiter: the end of its line is still to come."""
    HEADERS = "headers"
    END = "end"


class FormScanner:
    """Reads one form. Any split of its bytes reads alike."""

    __slots__ = ("_at", "_delimiter", "_field", "_held", "_in_file", "_value", "fields", "file_head", "files")

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        # The first delimiter needs no line end before it.
        self._held = b"\r\n"
        self._at = _At.BODY
        self._field = ""
        """The wanted field that is being read."""
        self._value = b""
        self._in_file = False
        self.fields: dict[str, str] = {}
        """Wanted fields that are whole. Twice the same: the last one counts, as for form parsers."""
        self.files = 0
        """File parts that have begun."""
        self.file_head = b""
        """The first bytes of the first file."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will be known."""
        return self._at is _At.END

    def feed(self, data: bytes) -> None:
        """Bytes of the body, in order. Keeps no more than a part's headers of them."""
        if self._at is _At.END:
            return
        buffer = self._held + data if self._held else data
        at = 0
        while True:
            step = self._step(buffer, at)
            if step is None:
                return
            if step < 0:
                self._held = buffer[-step - 1 :]
                return
            at = step

    def _step(self, buffer: bytes, at: int) -> int | None:
        """Read on from `at`: the next position; or -1 - position from which to wait for more; or `None` at the end."""
        if self._at is _At.BODY:
            return self._body(buffer, at)
        if self._at is _At.LINE:
            return self._line(buffer, at)
        return self._headers(buffer, at)

    def _body(self, buffer: bytes, at: int) -> int:
        found = buffer.find(self._delimiter, at)
        if found < 0:
            # The end of what is here may be the beginning of a delimiter.
            stop = max(at, len(buffer) - len(self._delimiter) + 1)
            self._content(buffer, at, stop)
            return -1 - stop
        self._content(buffer, at, found)
        self._at = _At.LINE
        return found

    def _line(self, buffer: bytes, at: int) -> int | None:
        """`at`: the delimiter's first byte."""
        after = at + len(self._delimiter)
        if buffer.startswith(b"--", after):
            self._part_ends()
            self._stop()
            return None
        end = buffer.find(b"\r\n", after, after + _LONGEST_PADDING + 2)
        if end < 0 and len(buffer) - after < _LONGEST_PADDING + 2:
            return -1 - at
        if end < 0 or buffer[after:end].strip(b" \t"):
            # A longer line that only begins like a delimiter is content.
            self._content(buffer, at, after)
            self._at = _At.BODY
            return after
        self._part_ends()
        self._at = _At.HEADERS
        return end

    def _headers(self, buffer: bytes, at: int) -> int | None:
        """`at`: the line end before the first header."""
        longest = LONGEST_HEADERS + 4
        end = buffer.find(b"\r\n\r\n", at, at + longest)
        if end < 0:
            if len(buffer) - at < longest:
                return -1 - at
            self._stop()
            return None
        self._part_begins(buffer[at:end])
        self._at = _At.BODY
        return end + 4

    def _part_begins(self, headers: bytes) -> None:
        match = _DISPOSITION.search(headers)
        said = {
            m[1].lower(): m[2] if m[2] is not None else m[3] for m in _PARAMETER.finditer(match[1] if match else b"")
        }
        if b"filename" in said or b"filename*" in said:
            self._in_file = not self.files
            self.files += 1
            return
        name = said.get(b"name", b"").decode("utf-8", "replace")
        self._field = name if name in WANTED else ""

    def _content(self, buffer: bytes, start: int, stop: int) -> None:
        if stop <= start:
            return
        if self._field:
            self._value += buffer[start : min(stop, start + LONGEST_VALUE + 1 - len(self._value))]
        elif self._in_file and len(self.file_head) < FILE_HEAD:
            self.file_head += buffer[start : min(stop, start + FILE_HEAD - len(self.file_head))]

    def _part_ends(self) -> None:
        if self._field and len(self._value) <= LONGEST_VALUE:
            self.fields[self._field] = self._value.decode("utf-8", "replace")
        self._field, self._value, self._in_file = "", b"", False

    def _stop(self) -> None:
        self._at = _At.END
        self._held = b""

    # -- what it says

    def work(self, size: int) -> Work:
        """What is known of the request by now, whose body has `size` bytes."""
        fields = self.fields
        limit = fields.get("max_completion_tokens", "")
        return Work(
            model=fields.get("model", ""),
            stream=_is_true(fields.get("stream", "")),
            max_tokens=as_count(int(limit)) if limit.isascii() and limit.isdigit() and len(limit) < 16 else None,
            sampled=_above_zero(fields.get("temperature")),
            audio_seconds=wave_seconds(self.file_head, at_most=size),
        )


def _is_true(value: str) -> bool:
    """As the engines' form models read a boolean."""
    return value.strip().lower() in _TRUE


def _above_zero(value: str | None) -> bool | None:
    if value is None:
        return None
    try:
        return float(value) > 0
    except ValueError:
        return None


def form_work(content_type: bytes, body: bytes) -> Work:
    """What a whole body asks for; nothing is known where it is no form."""
    boundary = boundary_of(content_type)
    if boundary is None:
        return Work()
    scanner = FormScanner(boundary)
    scanner.feed(body)
    return scanner.work(len(body))
