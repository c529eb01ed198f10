"""The lines of a file that may be huge, damaged, compressed, one line long, or in a console's encoding."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tailrace.diagnose.readers.encodings import encoding_of, recoded
from tailrace.model.errors import InputError

__all__ = ["LONGEST", "Batch", "CutError", "batches", "read_batches", "record_starts"]

BLOCK: Final = 1 << 20
LONGEST: Final = 1 << 16
"""A longer line is cut, where a record begins in it if there is such a place."""

_STARTS: Final = re.compile(
    rb"\((?:[A-Za-z][\w.-]*(?: [\w.-]+)*) pid=\w+\) "
    rb"|(?<![\w)] )(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    rb"|(?<![\w)] )INFO:     \S+:\d+ - \""
    rb"|(?<!\d)\[?20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?= [TDEP]P\d|\])"
)


def record_starts(text: bytes) -> list[int]:
    """Where records begin in `text`: lines may have been glued together without a newline."""
    return [found.start() for found in _STARTS.finditer(text)]


class Batch(msgspec.Struct, frozen=True):
    """Some lines in a row."""

    first: int
    """Number of the first of them, from 1."""
    lines: list[bytes]
    pieces: bool = False
    """All of them are pieces of one physical line."""


class CutError(InputError):
    """A file cannot be read to its end; the lines before were given."""


def read_batches(path: Path) -> Iterator[Batch]:
    """The lines of a file, in batches of about a megabyte; gzip is unpacked, UTF-16 (a console's redirection) read.

    CutError behind the last whole line of a file that is cut or damaged.
    """
    with path.open("rb") as file:
        head = file.read(4)
    try:
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path, "rb") as packed:
                # `read` would lose what it has of a block when the next byte is missing.
                yield from batches(_whole(packed.read1))
            return
        with path.open("rb") as file:
            blocks = _blocks(file.read)
            encoding = encoding_of(head)
            yield from batches(blocks if encoding is None else recoded(blocks, encoding))
    except (OSError, EOFError, zlib.error) as error:
        raise CutError(
            f"it cannot be read to its end: {error}", place=path.name, remedy="Copy it again, or unpack it first."
        ) from None


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(lambda: read(BLOCK), b"")


def _whole(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Blocks put together of smaller ones, as long as such come: what was read is given before an error is raised."""
    parts: list[bytes] = []
    size = 0
    try:
        for part in _blocks(read):
            parts.append(part)
            size += len(part)
            if size >= BLOCK:
                yield b"".join(parts)
                parts, size = [], 0
    except (OSError, EOFError, zlib.error):
        yield b"".join(parts)
        raise
    yield b"".join(parts)


def batches(blocks: Iterable[bytes]) -> Iterator[Batch]:
    """Cut blocks of bytes into lines without their ends. NUL bytes (a log that was truncated while written) go."""
    rest, number, first = b"", 1, True
    for read in blocks:
        block = read.replace(b"\0", b"") if b"\0" in read else read
        if first:
            block, first = block.removeprefix(codecs.BOM_UTF8), False
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if lines:
            if max(map(len, lines)) > LONGEST:
                yield from _with_long(lines, number)
            else:
                yield Batch(number, lines)
            number += len(lines)
        if len(rest) > LONGEST:
            *pieces, rest = _cut(rest)
            yield Batch(number, pieces, pieces=True)
    if rest:
        yield Batch(number, [rest])


def _with_long(lines: list[bytes], number: int) -> Iterator[Batch]:
    for at, line in enumerate(lines):
        if len(line) <= LONGEST:
            yield Batch(number + at, [line])
        else:
            yield Batch(number + at, _cut(line), pieces=True)


def _cut(text: bytes) -> list[bytes]:
    """Pieces of at most `LONGEST` bytes; a record is left whole where its beginning can be told."""
    out, begin = [], 0
    starts = record_starts(text)
    for at in [*starts, len(text)]:
        if at <= begin:
            continue
        while at - begin > LONGEST:
            out.append(text[begin : begin + LONGEST])
            begin += LONGEST
        out.append(text[begin:at])
        begin = at
    return out
