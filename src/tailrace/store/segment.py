"""Segments: immutable Parquet files. This module knows their names and which of them count; it opens none.

A name carries everything a reader must know before opening the file: the earliest and latest start, the rows, the
writer, and the range of the writer's batches inside. So a window opens only the files it needs, and a batch that was
seen in the hot tier and again in a segment is recognised without comparing a single id.

A compacted segment `X` replaces others; `X.replaces.json` lists them (transitively) and is on disk before `X` is
renamed into place. A reader that sees `X` therefore knows what to ignore, and one that does not sees the old files.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["SEGMENT_SUFFIX", "SegmentListing", "SegmentName", "list_segments"]

SEGMENT_SUFFIX: Final = ".parquet"
_TEMPORARY: Final = ".tmp"
_REPLACES: Final = ".replaces.json"


class SegmentName(msgspec.Struct, frozen=True, order=True):
    """The name of a segment, taken apart. `lo` and `hi` are 0 for a compacted one (see its `replaces` list)."""

    min_ns: int
    max_ns: int
    rows: int
    writer: str
    lo: int
    hi: int

    @property
    def text(self) -> str:
        """As the file is called, without the suffix."""
        return f"{self.min_ns}-{self.max_ns}-{self.rows}-{self.writer}-{self.lo}-{self.hi}"

    @classmethod
    def parse(cls, text: str) -> SegmentName:
        """The inverse of `text`. ValueError for anything else."""
        min_ns, max_ns, rows, writer, lo, hi = text.split("-")
        return cls(int(min_ns), int(max_ns), int(rows), writer, int(lo), int(hi))

    @property
    def day(self) -> str:
        """The directory: the day (UTC) of the earliest start."""
        epoch = dt.datetime.fromtimestamp(self.min_ns // 1_000_000_000, tz=dt.UTC)
        return epoch.strftime("%Y-%m-%d")

    def path(self, segments: Path) -> Path:
        """Where the finished file lies."""
        return segments / self.day / (self.text + SEGMENT_SUFFIX)

    def temporary(self, segments: Path) -> Path:
        """Where it lies while it is being written; no reader looks at it."""
        return segments / self.day / (self.text + SEGMENT_SUFFIX + _TEMPORARY)

    def replaces(self, segments: Path) -> Path:
        """The list of names that this segment replaces, if it is a compacted one."""
        return segments / self.day / (self.text + _REPLACES)


class SegmentListing(msgspec.Struct, frozen=True):
    """The segments that count at one moment."""

    names: list[SegmentName]
    """In the order of their earliest start."""
    replaced: list[SegmentName]
    """Still on disk or not, their rows are inside another segment."""

    def holds(self) -> dict[str, list[tuple[int, int]]]:
        """Writer -> the batch ranges that are sealed here."""
        out: dict[str, list[tuple[int, int]]] = {}
        for name in (*self.names, *self.replaced):
            if name.hi:
                out.setdefault(name.writer, []).append((name.lo, name.hi))
        return out

    def window(self, since_ns: int | None, until_ns: int | None) -> list[SegmentName]:
        """Those that may hold a record started in [since, until)."""
        return [
            name
            for name in self.names
            if (since_ns is None or name.max_ns >= since_ns) and (until_ns is None or name.min_ns < until_ns)
        ]


def list_segments(segments: Path) -> SegmentListing:
    """List the finished segments, and leave out those that a compacted one replaces."""
    names: set[SegmentName] = set()
    replaced: set[SegmentName] = set()
    for day in sorted(segments.iterdir()) if segments.is_dir() else []:
        if not day.is_dir():
            continue
        found = [_parse(path) for path in _entries(day) if path.name.endswith(SEGMENT_SUFFIX)]
        for name in found:
            if name is None:
                continue
            names.add(name)
            if not name.hi:
                replaced.update(_replaced_by(name, segments))
    return SegmentListing(sorted(names - replaced), sorted(replaced))


def _entries(day: Path) -> Iterable[Path]:
    try:
        return list(day.iterdir())
    except FileNotFoundError:
        # Pruned between the two listings.
        return []


def _parse(path: Path) -> SegmentName | None:
    try:
        return SegmentName.parse(path.name.removesuffix(SEGMENT_SUFFIX))
    except ValueError:
        # A foreign file in our directory is the user's business.
        return None


def _replaced_by(name: SegmentName, segments: Path) -> list[SegmentName]:
    try:
        listed = json.loads(name.replaces(segments).read_bytes())
    except FileNotFoundError:
        return []
    return [SegmentName.parse(text) for text in listed]
