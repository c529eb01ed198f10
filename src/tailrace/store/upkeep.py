"""Upkeep of sealed records: merge many small segments into few, delete the old.

Compaction writes the merged segment beside the old ones, with the list of what it replaces on disk first; its rename
is the moment in which readers change over. The old files stay for a grace period, longer than any query, because a
reader may hold the earlier list. Both jobs run under one lock, so that several writers of one directory do not meet.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tailrace.store.hot import ignore_step
from tailrace.store.layout import DataDirectory, FileLock
from tailrace.store.segment import SegmentName, list_segments
from tailrace.store.series import AMENDMENTS, RECORDS, SERIES, Series

__all__ = ["Pruned", "compact", "prune"]

SMALL_ROWS: Final = 250_000
"""A segment with fewer rows is worth merging."""
MERGE_FILES: Final = 16
"""Merge a day's small segments once there are so many."""
MERGE_ROWS: Final = 1_000_000
"""... into segments of about this size."""
GRACE_S: Final = 300.0
_LITTER_S: Final = 3600.0


class Pruned(msgspec.Struct, frozen=True):
    """What a pruning deleted."""

    segments: int = 0
    records: int = 0
    bytes: int = 0
    amendments: int = 0


def prune(directory: DataDirectory, *, older_than_s: float, now_unix_ns: int | None = None) -> Pruned:
    """Delete every segment whose newest record started more than `older_than_s` ago, and empty day directories.

    A segment goes whole or stays whole, so a record may outlive the limit by the width of its segment (a day at
    most). Unsealed records are never deleted. Amendments go by when they came, which is after their record's start:
    they outlive it, never the other way round.
    """
    now = time.time_ns() if now_unix_ns is None else now_unix_ns
    cutoff = now - int(older_than_s * 1e9)
    with _upkeep_lock(directory):
        gone = {series: _prune(directory.segments_of(series), cutoff) for series in SERIES.values()}
    records, amendments = gone[RECORDS], gone[AMENDMENTS]
    return Pruned(
        records.segments + amendments.segments, records.records, records.bytes + amendments.bytes, amendments.records
    )


def _prune(segments: Path, cutoff: int) -> Pruned:
    listing = list_segments(segments)
    # Those that a merged segment replaces first: the other way round they would come back to life.
    old = [name for name in (*listing.replaced, *listing.names) if name.max_ns < cutoff]
    files, rows, size = 0, 0, 0
    for name in old:
        path = name.path(segments)
        try:
            size += path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            continue
        name.replaces(segments).unlink(missing_ok=True)
        files += 1
        rows += name.rows if name in listing.names else 0
    _remove_empty_days(segments)
    return Pruned(files, rows, size)


def compact(
    directory: DataDirectory,
    *,
    merge_files: int = MERGE_FILES,
    grace_s: float = GRACE_S,
    on_step: Callable[[str], None] = ignore_step,
) -> int:
    """Merge each day's small segments where there are `merge_files` or more, and clear what earlier merges left.

    Returns the number of segments written. Does nothing when another process is at it.
    """
    lock = FileLock(directory.root / "upkeep.lock")
    if not lock.acquire():
        return 0
    try:
        written = 0
        for series in SERIES.values():
            segments = directory.segments_of(series)
            by_day: dict[str, list[SegmentName]] = {}
            for name in list_segments(segments).names:
                if name.rows < SMALL_ROWS:
                    by_day.setdefault(name.day, []).append(name)
            for small in by_day.values():
                if len(small) >= merge_files:
                    for group in _groups(small):
                        _merge(segments, group, on_step, series)
                        written += 1
            _sweep(segments, grace_s)
        _sweep_hot(directory)
        return written
    finally:
        lock.release()


def _upkeep_lock(directory: DataDirectory) -> FileLock:
    lock = FileLock(directory.root / "upkeep.lock")
    lock.acquire(30.0)
    return lock


def _groups(names: list[SegmentName]) -> list[list[SegmentName]]:
    out: list[list[SegmentName]] = [[]]
    rows = 0
    for name in names:
        if out[-1] and rows + name.rows > MERGE_ROWS:
            out.append([])
            rows = 0
        out[-1].append(name)
        rows += name.rows
    return [group for group in out if len(group) > 1]


def _merge(segments: Path, group: list[SegmentName], on_step: Callable[[str], None], series: Series) -> None:
    from tailrace.store.amendment_file import select_amendments  # noqa: PLC0415
    from tailrace.store.parquet_file import connect, copy_to_parquet, select_segments  # noqa: PLC0415

    name = SegmentName(
        min_ns=min(one.min_ns for one in group),
        max_ns=max(one.max_ns for one in group),
        rows=sum(one.rows for one in group),
        writer=f"merged{secrets.token_hex(4)}",
        lo=0,
        hi=0,
    )
    replaced = [one.text for one in group]
    for one in group:
        if not one.hi:
            replaced += json.loads(one.replaces(segments).read_bytes())

    def publish() -> None:
        path = name.replaces(segments)
        with path.open("wb") as file:
            file.write(json.dumps(replaced).encode())
            file.flush()
            os.fsync(file.fileno())

    with connect(threads=1) as connection:
        read = select_segments if series is RECORDS else select_amendments
        select = read(connection, [one.path(segments) for one in group])
        copy_to_parquet(
            connection,
            f"{select} ORDER BY {series.clock}",
            name.temporary(segments),
            name.path(segments),
            before_rename=publish,
            on_step=on_step,
        )


def _sweep(segments: Path, grace_s: float) -> None:
    """Delete replaced segments after the grace period, and the litter of crashes after an hour."""
    now = time.time()  # noqa: TID251  (compared with file times)
    listing = list_segments(segments)
    merged_before = {
        text
        for name in listing.names
        if not name.hi and now - _changed(name.path(segments)) > grace_s
        for text in json.loads(name.replaces(segments).read_bytes())
    }
    for name in listing.replaced:
        if name.text in merged_before:
            name.path(segments).unlink(missing_ok=True)
            name.replaces(segments).unlink(missing_ok=True)
    known = {name.replaces(segments) for name in listing.names}
    for path in (*segments.glob("*/*.tmp"), *segments.glob("*/*.replaces.json")):
        if path not in known and now - _changed(path) > _LITTER_S:
            path.unlink(missing_ok=True)
    _remove_empty_days(segments)


def _sweep_hot(directory: DataDirectory) -> None:
    now = time.time()  # noqa: TID251  (compared with file times)
    for path in directory.hot.glob("*"):
        writer = path.name.split(".", maxsplit=1)[0]
        if not directory.hot_file(writer).exists() and now - _changed(path) > _LITTER_S:
            path.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _remove_empty_days(segments: Path) -> None:
    for day in segments.iterdir() if segments.is_dir() else []:
        try:
            day.rmdir()
        except OSError:
            # Not empty, or not a directory.
            continue
