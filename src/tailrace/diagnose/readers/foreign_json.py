"""Bytes of another tool's result -> typed data, or an error that names the place and the remedy.

The file is mapped, not read: what is decoded is what a reader asked for, texts of answers are skipped where they stand,
and the pages of the file belong to the system. A file above `MOST_BYTES` is refused before anything is read of it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tailrace.diagnose.readers.lenient_json import NO_NUMBER
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = [
    "LONGEST_LINE",
    "MOST_BYTES",
    "Document",
    "count",
    "decode",
    "documents",
    "finite",
    "gaps_of",
    "lines",
    "ns",
    "opened",
    "stamp",
]

MOST_BYTES: Final = 2 << 30
"""A decoded result takes about four times its file: 2 GiB is what 8 GiB of memory can hold."""
LONGEST_LINE: Final = 64 << 20
_MOST_COUNT: Final = 2**53
_LONGEST_S: Final = 1e8
"""Three years: a duration beyond it is a stamp of some epoch, not a duration."""

T = TypeVar("T")
Buffer = bytes | mmap.mmap


class Document(msgspec.Struct, frozen=True):
    """One JSON document of a file that may hold several."""

    data: Any
    """Bytes-like."""
    place: str
    """The file, and the line where it is not the only one."""


def opened(path: Path) -> Buffer:
    """The file's bytes, mapped. InputError when it is empty, too large or cannot be read."""
    place = str(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size > MOST_BYTES:
                raise InputError(
                    f"is {size / 2**30:.1f} GiB; results up to {MOST_BYTES >> 30} GiB are read",
                    place=place,
                    remedy="Run it shorter, or without the texts of prompts and answers.",
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError:
        raise InputError("there is no such file", place=place) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=place) from None


def whole(path: Path) -> memoryview:
    """The file as one document, without a byte-order mark."""
    return _without_mark(memoryview(opened(path)))


def documents(path: Path) -> list[Document]:
    """The JSON objects that stand one behind the other in a file: one a line, or one over many lines.

    A new one begins where a brace opens in the first column; inside of an object none does.
    """
    data = opened(path)
    view = memoryview(data)
    starts, at = [0], data.find(b"\n{")
    while at >= 0:
        starts.append(at + 1)
        at = data.find(b"\n{", at + 1)
    ends = [*starts[1:], len(data)]
    pieces = [(start, end) for start, end in zip(starts, ends, strict=True) if bytes(view[start : start + 64]).strip()]
    if len(pieces) == 1:
        return [Document(_without_mark(view[pieces[0][0] : pieces[0][1]]), str(path))]
    out, line, seen = [], 1, 0
    for start, end in pieces:
        line += _newlines(data, seen, start)
        seen = start
        out.append(Document(_without_mark(view[start:end]), f"{path}:{line}"))
    return out


def _newlines(data: Buffer, start: int, end: int) -> int:
    return sum(bytes(data[at : min(at + (1 << 20), end)]).count(b"\n") for at in range(start, end, 1 << 20))


def _without_mark(data: memoryview) -> memoryview:
    return data[3:] if bytes(data[:3]) == b"\xef\xbb\xbf" else data


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of a file of JSON lines, blank ones left out. InputError for one beyond `LONGEST_LINE`."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise InputError(f"a line of more than {LONGEST_LINE >> 20} MiB", place=f"{path}:{number}")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place=str(path)) from None


def decode(data: Any, type_: type[T], *, place: str, tool: str, remedy: str = "") -> T:
    """Decode one document. InputError says what does not fit, and where (`$.itls[3][1]`).

    `NaN` and `Infinity`, which some tools write where there is no number, are read as absent.
    """
    try:
        return msgspec.json.decode(data, type=type_, strict=False)
    except UNREADABLE as error:
        first: Exception = error
    if not isinstance(first, msgspec.ValidationError):
        raw = bytes(data)
        mended = NO_NUMBER.sub(b"null", raw)
        if mended != raw:
            del raw
            try:
                return msgspec.json.decode(mended, type=type_, strict=False)
            except UNREADABLE as error:
                first = error
    what = "is cut" if "truncated" in str(first) else f"is no result of {tool}"
    raise InputError(
        f"{what}: {first}", place=place, remedy=remedy or "Give the file as the tool wrote it, whole."
    ) from None


def gaps_of(raw: msgspec.Raw, index: int, *, place: str, tool: str) -> list[float | None]:
    """The gaps of one stream. Streams are decoded one by one: floats of all of them at once are twice the file."""
    return decode(raw, list[float | None], place=f"{place}: itls[{index}]", tool=tool)


def finite(value: float | None) -> float | None:
    """`value` where it is a number."""
    return value if value is not None and math.isfinite(value) else None


def ns(value: float | None, unit_ns: float, *, zero: bool = False) -> int | None:
    """A duration in integer nanoseconds; `None` where it is no duration: absent, negative, longer than three years.

    Zero is a missing stamp (a time to the first token) unless `zero` says that it may be a value (a gap).
    """
    if value is None or not math.isfinite(value) or abs(value) * unit_ns > _LONGEST_S * 1e9:
        return None
    whole = round(value * unit_ns)
    return whole if whole > 0 or (zero and whole == 0) else None


def stamp(value: float | None) -> int | None:
    """A stamp of some clock in integer nanoseconds; `None` for 0, which stands for a missing one, and for nonsense."""
    if value is None or not math.isfinite(value) or not 0 < value < 2**63:
        return None
    return int(value)


def count(value: float | None) -> int | None:
    """A count of tokens or requests; `None` where it is none."""
    if value is None or not math.isfinite(value) or not 0 <= value <= _MOST_COUNT:
        return None
    return int(value)
