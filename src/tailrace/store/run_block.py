"""Blocks of records in a run file: columns, and the events of their streams as differences.

A payload is `msgpack([numbers, texts, width, low, high])`:

* `numbers`, the first part of `texts`: columns. One is a field of the record, in the order that the file's header
  names; a column of one value stands for all rows, as in the hot tier (`store.batch`).
* `texts`: `msgpack([columns, streams])`, as zlib where that is long. `streams` is
  `[lengths, firsts, kinds, tokens, thinned, merged]`, with length -1 for a record without timeline. Text, kinds and
  tokens repeat themselves so much that they take next to nothing here; numbers do not, and to try costs more than
  anything else.
* `low`, `high`: the gaps between the events of each stream, all after one another, as integers of `width` bytes in
  nanoseconds, laid out plane by plane (all lowest bytes, then all second ones, …). Of real stamps the three lowest
  planes are mostly noise and stay as they are; the others go through zlib's run-length mode.

What does not fit 64 bits is kept as lists, `width` 0.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.model.record import RequestRecord
from tailrace.model.timeline import Timeline
from tailrace.store.run_frame import inflate
from tailrace.store.table import FIELDS, KINDS, ColumnKind

__all__ = [
    "NUMBERS",
    "TEXTS",
    "block_parts",
    "decode_records",
    "encode_records",
    "gap_planes",
    "stamps_of_gaps",
    "unpacked_texts",
]

_NUMERIC: Final = frozenset(
    {
        ColumnKind.INTEGER,
        ColumnKind.MAYBE_INTEGER,
        ColumnKind.FLOAT,
        ColumnKind.MAYBE_FLOAT,
        ColumnKind.BOOLEAN,
        ColumnKind.MAYBE_BOOLEAN,
    }
)
NUMBERS: Final = tuple(name for name in FIELDS if KINDS[name] in _NUMERIC)
TEXTS: Final = tuple(name for name in FIELDS if KINDS[name] not in _NUMERIC)
"""Fields in the order in which this Tailrace writes them; the header of a file has both lists."""

_ORDER: Final = RequestRecord.__struct_fields__
_NUMBER_PLACES: Final = tuple(_ORDER.index(name) for name in NUMBERS)
_TEXT_PLACES: Final = tuple(_ORDER.index(name) for name in TEXTS)
_LINE: Final = _ORDER.index("timeline")
_DEFAULTS: Final[dict[str, Any]] = {
    info.name: info.default
    for info in msgspec.structs.fields(RequestRecord)
    if info.default is not msgspec.NODEFAULT and info.name != "timeline"
}
_RAW_PLANES: Final = 3
_SMALL: Final = 64
"""Bytes of text a record that are not worth the time to compress."""
_ARRAY: Final = b"\x92"
"""How the msgpack of a pair begins, and no stream of zlib's."""
_WINDOW: Final = -15
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_row_of: Final = msgspec.structs.astuple


def encode_records(records: Sequence[RequestRecord]) -> bytes:
    """One block. OverflowError or TypeError for a value that msgpack cannot hold."""
    columns = list(zip(*map(_row_of, records), strict=True))
    lines: tuple[Timeline | None, ...] = columns[_LINE]
    kept = [line for line in lines if line is not None]
    width, low, high = _gaps([line.at_ns for line in kept])
    streams = [
        [-1 if line is None else len(line.at_ns) for line in lines],
        [line.at_ns[0] for line in kept if line.at_ns] if width else [line.at_ns for line in kept],
        _once([line.kind for line in kept]),
        _once([line.tokens for line in kept]),
        _once([line.thinned for line in kept]),
        _once([line.merged for line in kept]),
    ]
    numbers = [
        (one[0],) if one[0] is one[-1] and one.count(one[0]) == len(one) else one
        for one in [columns[place] for place in _NUMBER_PLACES]
    ]
    # Two equal texts need not be one object.
    texts = [
        (one[0],) if one[0] == one[-1] and one.count(one[0]) == len(one) else one
        for one in [columns[place] for place in _TEXT_PLACES]
    ]
    second = _encode([texts, streams])
    if len(second) > _SMALL * len(records):
        second = zlib.compress(second, 1)
    return _encode([numbers, second, width, low, high])


def _once(values: list[Any]) -> list[Any]:
    """One value where all are the same: answers of one length look alike."""
    return values[:1] if values and values[0] == values[-1] and values.count(values[0]) == len(values) else values


@functools.lru_cache(maxsize=4096)
def _word_packer(count: int) -> Any:
    return struct.Struct(f"{count}n").pack


def _gaps(stamps: list[list[int]]) -> tuple[int, bytes, bytes]:
    """(bytes an event, lowest planes, the other planes packed) of the differences within each list."""
    lengths = [len(one) for one in stamps]
    try:
        # The quickest way from lists to bytes. `n` is the machine's word, which packs in two thirds of the time of `q`.
        joined = b"".join([_word_packer(len(one))(*one) for one in stamps])
    except struct.error:
        return 0, b"", b""
    flat = np.frombuffer(joined, np.int64)
    if not len(flat):
        return 4, b"", b""
    gaps = np.empty_like(flat)
    np.subtract(flat[1:], flat[:-1], out=gaps[1:])
    gaps[_starts(lengths)] = 0
    width = 4 if gaps.min() >= 0 and gaps.max() < 1 << 32 else 8
    narrow = gaps.astype("<u4") if width == 4 else gaps.astype("<i8")
    planes = np.ascontiguousarray(narrow.view(np.uint8).reshape(-1, width).T)
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, 8, zlib.Z_RLE)
    packed = packer.compress(planes[_RAW_PLANES:].tobytes()) + packer.flush()
    return width, planes[:_RAW_PLANES].tobytes(), packed


def _starts(lengths: Sequence[int]) -> Any:
    """Where the lists that are not empty begin when all stand after one another."""
    ends = np.cumsum(np.array(lengths, np.int64))
    return (ends - lengths)[np.array(lengths) > 0]


def block_parts(payload: bytes | memoryview) -> tuple[list[Any], list[Any], Any, int, bytes, bytes]:
    """(columns of numbers, columns of texts, streams, width, low, high) of a block. Whatever is wrong raises."""
    first, packed, width, low, high = _decode(payload)
    second, streams = _decode(unpacked_texts(packed))
    return first, second, streams, width, low, high


def unpacked_texts(packed: bytes) -> bytes:
    """The msgpack of a block's texts and streams. ValueError where it cannot be unpacked."""
    return packed if packed[:1] == _ARRAY else inflate(packed)


def decode_records(
    payload: bytes | memoryview, rows: int, numbers: Sequence[str] = NUMBERS, texts: Sequence[str] = TEXTS
) -> list[RequestRecord]:
    """The records of a block of `rows` rows whose file names `numbers` and `texts`.

    Fields unknown to this Tailrace are left out, fields that the file does not have take their defaults. ValueError
    says what is wrong; nothing else is raised, whatever the bytes are.
    """
    try:
        first, second, streams, width, low, high = block_parts(payload)
        lines = _timelines(streams, width, low, high)
        _must_be(rows, len(lines))
        fields = {
            name: _column(values, rows)
            for name, values in (*zip(numbers, first, strict=True), *zip(texts, second, strict=True))
            if name in _KNOWN and not _is_default(name, values)
        }
        names = tuple(fields)
        listed = [dict(zip(names, row, strict=True)) for row in zip(*fields.values(), strict=True)]
        out = msgspec.convert(listed, list[RequestRecord])
    except (
        msgspec.MsgspecError,
        TypeError,
        ValueError,
        OverflowError,
        IndexError,
        MemoryError,
        RecursionError,
    ) as error:
        raise ValueError(str(error) or type(error).__name__) from None
    _must_be(rows, len(out))
    return [
        record if line is None else msgspec.structs.replace(record, timeline=line)
        for record, line in zip(out, lines, strict=True)
    ]


_KNOWN: Final = frozenset(FIELDS)


def _must_be(rows: int, found: int) -> None:
    if found != rows:
        raise ValueError(f"{found} records, said were {rows}")


def _is_default(name: str, values: Any) -> bool:
    if len(values) != 1 or name not in _DEFAULTS:
        return False
    default = _DEFAULTS[name]
    return type(values[0]) is type(default) and bool(values[0] == default)


def _column(values: list[Any], rows: int) -> list[Any]:
    if len(values) == rows:
        return values
    if len(values) != 1:
        raise ValueError(f"a column of {len(values)} values for {rows} rows")
    return values * rows


def _timelines(streams: Any, width: int, low: bytes, high: bytes) -> list[Timeline | None]:
    lengths, firsts, kinds, tokens, thinned, merged = streams
    sizes = [length for length in lengths if length >= 0]
    stamps = firsts if width == 0 else _stamps_of(sizes, firsts, width, low, high)
    many = len(sizes)
    raw = zip(stamps, *(_column(one, many) for one in (kinds, tokens, thinned, merged)), strict=True)
    found = iter(
        msgspec.convert(
            [
                {"at_ns": at, "kind": kind, "tokens": token, "thinned": thin, "merged": into}
                for at, kind, token, thin, into in raw
            ],
            list[Timeline],
        )
    )
    out = [next(found) if length >= 0 else None for length in lengths]
    for length, line in zip(lengths, out, strict=True):
        if line is not None and length != len(line.at_ns):
            raise ValueError(f"a stream of {len(line.at_ns)} events, said were {length}")
    return out


def _stamps_of(sizes: list[int], firsts: list[int], width: int, low: bytes, high: bytes) -> list[list[int]]:
    flat = _flat_stamps(sizes, firsts, width, low, high).tolist()
    out, at = [], 0
    for size in sizes:
        out.append(flat[at : at + size])
        at += size
    return out


def _flat_stamps(sizes: list[int], firsts: list[int], width: int, low: bytes, high: bytes) -> Any:
    """The stamps of all streams, one behind the other (int64). ValueError where the bytes do not fit."""
    planes = gap_planes(sizes, len(firsts), width, low, high)
    if not planes:
        return np.empty(0, np.int64)
    return stamps_of_gaps(b"".join(planes), width, np.array(sizes, np.int64), np.array(firsts, np.int64))


def gap_planes(sizes: list[int], firsts: int, width: int, low: bytes, high: bytes) -> list[bytes]:
    """The `width` planes of the gaps of all streams; none without events. ValueError where the bytes do not fit."""
    total = sum(sizes)
    if width not in (4, 8):
        raise ValueError(f"gaps of {width} bytes")
    if not total:
        return []
    planes = low + inflate(high, window=_WINDOW)
    if len(planes) != total * width:
        raise ValueError(f"{len(planes)} bytes of gaps for {total} events")
    begun = len(sizes) - sizes.count(0)
    if firsts != begun:
        raise ValueError(f"{firsts} first stamps for {begun} streams")
    return [planes[at : at + total] for at in range(0, total * width, total)]


def stamps_of_gaps(planes: bytes, width: int, sizes: Any, firsts: Any) -> Any:
    """The stamps (int64) of streams whose gaps stand plane by plane; `firsts` is of those that are not empty."""
    each = np.frombuffer(planes, np.uint8).reshape(width, -1).T
    run = np.cumsum(np.ascontiguousarray(each).view("<u4" if width == 4 else "<i8").ravel(), dtype=np.int64)
    some = sizes > 0
    run += np.repeat(firsts - run[(np.cumsum(sizes) - sizes)[some]], sizes[some])
    return run
