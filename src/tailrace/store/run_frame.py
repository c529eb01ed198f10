"""Frames: the bytes of a run file, checked piece by piece, whatever is in the pieces.

::

    preamble  32 bytes   magic (12), format version (u32), the Tailrace that wrote it (16 bytes of text, zero-padded)
    frame     24 bytes   sync (4), kind (u8), coding (u8), zero (u16), number (u32), rows (u32), length (u32), CRC (u32)
              length     payload
    …                    more frames, numbered from 0
    end mark  16 bytes   place of the last frame (u64), magic (8)

Numbers are little-endian. The CRC (zlib's CRC-32) is of the frame's head behind its sync mark and of the payload; it
is seeded with the CRC of all bytes up to the end of frame 0, so that a frame of another run never passes for one of
this. The first 32 bytes keep this form in every version of the format, so that any Tailrace can name a newer file.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

import msgspec

__all__ = [
    "END_BYTES",
    "FORMAT",
    "MAGIC",
    "PREAMBLE_BYTES",
    "Flaw",
    "FlawKind",
    "Frame",
    "FrameKind",
    "end_mark",
    "frame",
    "inflate",
    "pack",
    "preamble",
    "read_preamble",
    "scan",
]

FORMAT: Final = 2
"""Version of the bytes; 1 was JSON lines."""
MAGIC: Final = b"\x89tailrun\r\n\x1a\n"
"""Not text, and damaged by a transfer that changes line ends."""
_END_MAGIC: Final = b"tailrend"
_SYNC: Final = b"\xf7\x1fRB"
PREAMBLE_BYTES: Final = 32
END_BYTES: Final = 16
_PREAMBLE: Final = struct.Struct("<12sI16s")
_HEAD: Final = struct.Struct("<4sBBHIIII")
_END: Final = struct.Struct("<Q8s")
_HEAD_BYTES: Final = _HEAD.size
_CRC_FROM, _CRC_TO = 4, 20
_PACK_FROM: Final = 256
"""Shorter payloads are not compressed."""
_LARGEST: Final = 1 << 30
"""Of one payload, also when it is unpacked."""
_PLAIN, _ZLIB = 0, 1


class FrameKind(IntEnum):
    """What a frame holds. A kind that this Tailrace does not know is skipped: the frame says how long it is."""

    HEADER = 1
    RECORDS = 2
    STATES = 3
    SAMPLES = 4
    TRAILER = 5


class Frame(msgspec.Struct, frozen=True):
    """One frame that is whole."""

    kind: int
    number: int
    rows: int
    """Records, states or samples in it."""
    payload: bytes | memoryview
    """Where it is not compressed, a view of the file's bytes: a run of a gigabyte is not copied."""
    at: int
    """Its first byte in the file."""
    end: int
    """The first byte behind it."""


class FlawKind(IntEnum):
    """What is wrong at a place."""

    CUT = 1
    """The file ends inside the frame."""
    DAMAGED = 2
    """Bytes that are no frame, or one whose checksum does not match."""
    MISSING = 3
    """Frames between two that are there."""
    JOINED = 4
    """Another run file begins here."""
    NO_END = 5
    """Every frame is whole, and the one that says the run ended is not there."""
    TRAILING = 6
    """Something stands behind the end of the run."""


class Flaw(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    kind: FlawKind
    at: int
    """The first byte of it."""
    end: int
    """The first byte behind it."""
    number: int
    """The frame that should be there."""
    missing: int = 1
    """How many frames are lost, as far as it is known."""


def preamble(version: str) -> bytes:
    """The first bytes of a file."""
    return _PREAMBLE.pack(MAGIC, FORMAT, version.encode("ascii", "replace")[:16])


def read_preamble(data: bytes) -> tuple[int, str]:
    """(format version, the Tailrace that wrote it) of data that begins with `MAGIC` and is long enough."""
    _, version, tool = _PREAMBLE.unpack_from(data)
    return version, tool.rstrip(b"\0").decode("ascii", "replace")


def pack(payload: bytes) -> tuple[int, bytes]:
    """(coding, bytes) of a payload: compressed, quickly, where it is long enough for that to be worth anything."""
    return (_PLAIN, payload) if len(payload) < _PACK_FROM else (_ZLIB, zlib.compress(payload, 1))


def inflate(packed: bytes | memoryview, *, window: int = zlib.MAX_WBITS) -> bytes:
    """The inverse of `zlib.compress`, bounded. ValueError for anything that is not whole or too long."""
    opener = zlib.decompressobj(window)
    try:
        out = opener.decompress(packed, _LARGEST)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if not opener.eof or opener.unused_data:
        raise ValueError("it cannot be unpacked: what was packed is not whole")
    return out


def frame(kind: FrameKind, number: int, rows: int, payload: bytes, *, coding: int = _PLAIN, seed: int) -> bytes:
    """One frame. `seed`: the CRC of everything up to the end of frame 0; for frame 0, of the preamble."""
    head = _HEAD.pack(_SYNC, kind, coding, 0, number, rows, len(payload), 0)
    crc = zlib.crc32(payload, zlib.crc32(head[_CRC_FROM:_CRC_TO], seed))
    return head[:_CRC_TO] + crc.to_bytes(4, "little") + payload


def end_mark(trailer_at: int) -> bytes:
    """The last bytes of a file whose last frame begins at `trailer_at`."""
    return _END.pack(trailer_at, _END_MAGIC)


def scan(data: bytes) -> tuple[list[Frame], list[Flaw]]:
    """All whole frames of a file that begins with a whole preamble, and what is wrong, both in the file's order.

    Behind damage, reading goes on at the next frame that is whole. Frames of another file that was joined to this
    one are never among the result.
    """
    return _Scan(data).run()


class _Scan:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.view = memoryview(data)
        self.frames: list[Frame] = []
        self.flaws: list[Flaw] = []
        self.seed = zlib.crc32(data[:PREAMBLE_BYTES])
        self.next = 0
        self.budget = 4 * len(data)
        """Bytes that may be checked in search of a frame: a file made to be slow is given up."""

    def run(self) -> tuple[list[Frame], list[Flaw]]:
        data, at = self.data, PREAMBLE_BYTES
        while at < len(data):
            found = self.frame_at(at)
            if found is not None:
                at = self.take(found)
                if found.kind == FrameKind.TRAILER:
                    self.end(at, found)
                    return self.frames, self.flaws
                continue
            if data.startswith(MAGIC, at):
                self.flaw(FlawKind.JOINED, at, len(data))
                return self.frames, self.flaws
            if self.next == 0:
                # Without the header, whose checksum seeds all others, nothing can be told.
                kind = FlawKind.CUT if self.reaches_beyond(at) else FlawKind.DAMAGED
                self.flaw(kind, at, len(data))
                return self.frames, self.flaws
            again = self.search(at + 1)
            if again is None:
                second = data.find(MAGIC, at)
                stop = len(data) if second < 0 else second
                whole = second < 0 and self.reaches_beyond(at)
                self.flaw(FlawKind.CUT if whole else FlawKind.DAMAGED, at, stop)
                if second >= 0:
                    self.flaw(FlawKind.JOINED, second, len(data))
                return self.frames, self.flaws
            self.flaw(FlawKind.DAMAGED, at, again.at, missing=max(1, again.number - self.next))
            self.next = max(self.next, again.number)
            at = again.at
        self.flaw(FlawKind.NO_END, at, at)
        return self.frames, self.flaws

    def flaw(self, kind: FlawKind, at: int, end: int, *, missing: int = 1) -> None:
        self.flaws.append(Flaw(kind, at, end, self.next, missing))

    def take(self, found: Frame) -> int:
        if found.number > self.next:
            self.flaw(FlawKind.MISSING, found.at, found.at, missing=found.number - self.next)
        if not self.frames:
            self.seed = zlib.crc32(self.view[: found.end])
        self.frames.append(found)
        self.next = found.number + 1
        return found.end

    def end(self, at: int, trailer: Frame) -> None:
        data = self.data
        mark = data[at : at + END_BYTES]
        if mark != end_mark(trailer.at):
            if data.startswith(MAGIC, at):
                self.flaw(FlawKind.JOINED, at, len(data))
            else:
                cut = end_mark(trailer.at).startswith(mark)
                self.flaw(FlawKind.CUT if cut else FlawKind.DAMAGED, at, min(len(data), at + END_BYTES), missing=0)
            return
        behind = at + END_BYTES
        if behind < len(data):
            kind = FlawKind.JOINED if data.startswith(MAGIC, behind) else FlawKind.TRAILING
            self.flaw(kind, behind, len(data), missing=0)

    def head_at(self, at: int) -> tuple[int, int, int, int, int, int] | None:
        """(kind, coding, number, rows, length, CRC) where a frame may begin."""
        if at + _HEAD_BYTES > len(self.data):
            return None
        sync, kind, coding, zero, number, rows, length, crc = _HEAD.unpack_from(self.data, at)
        if sync != _SYNC or zero or coding > _ZLIB or number < self.next or length > _LARGEST:
            return None
        return kind, coding, number, rows, length, crc

    def frame_at(self, at: int) -> Frame | None:
        head = self.head_at(at)
        if head is None:
            return None
        kind, coding, number, rows, length, crc = head
        start = at + _HEAD_BYTES
        end = start + length
        first = not self.frames
        if end > len(self.data) or first != (kind == FrameKind.HEADER) or (first and number):
            return None
        self.budget -= length
        if self.budget < 0:
            return None
        payload = self.view[start:end]
        if zlib.crc32(payload, zlib.crc32(self.view[at + _CRC_FROM : at + _CRC_TO], self.seed)) != crc:
            return None
        try:
            return Frame(kind, number, rows, inflate(payload) if coding == _ZLIB else payload, at, end)
        except ValueError:
            return None

    def reaches_beyond(self, at: int) -> bool:
        """Whether what begins here looks like a frame that the end of the file has cut."""
        rest = self.data[at : at + _HEAD_BYTES]
        if len(rest) < _HEAD_BYTES:
            return rest[:4] == _SYNC[: len(rest)]
        head = self.head_at(at)
        return head is not None and at + _HEAD_BYTES + head[4] > len(self.data)

    def search(self, at: int) -> Frame | None:
        """The next whole frame of this run at or behind `at`."""
        data = self.data
        while (at := data.find(_SYNC, at)) >= 0:
            found = self.frame_at(at)
            if found is not None:
                return found
            if self.budget < 0:
                return None
            at += 1
        return None
