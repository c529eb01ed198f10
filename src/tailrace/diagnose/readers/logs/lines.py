"""The lines of a file that may be huge, damaged, compressed, one line long, or in a console's encoding."""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tailrace.model.errors import InputError

__all__ = ["LONGEST", "Batch", "batches", "read_batches", "record_starts"]

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


def read_batches(path: Path) -> Iterator[Batch]:
    """The lines of a file, in batches of about a megabyte; gzip is unpacked, UTF-16 (a console's redirection) read."""
    with path.open("rb") as file:
        head = file.read(4)
    try:
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path, "rb") as packed:
                yield from batches(_blocks(packed.read))
            return
        with path.open("rb") as file:
            blocks = _blocks(file.read)
            if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                blocks = _from_utf16(blocks)
            yield from batches(blocks)
    except (OSError, EOFError) as error:
        raise InputError(
            f"it cannot be read to its end: {error}", place=path.name, remedy="Copy it again, or unpack it first."
        ) from None


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(lambda: read(BLOCK), b"")


def _from_utf16(blocks: Iterable[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")


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
