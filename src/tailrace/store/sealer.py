"""The sealing process: turns ranges of hot files into segments, beside the gateway and never inside it.

Transposing and compressing 25,000 records holds an interpreter for a fifth of a second, so it happens in a child
started once (a fresh interpreter, never a fork of a threaded gateway), at low priority, on one thread. Parent and
child speak JSON lines over the child's standard input and output; the child ends when its input does, so it cannot
outlive a killed gateway by more than the job in hand.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from tailrace.model.errors import StoreError
from tailrace.store.batch import decode_batches
from tailrace.store.hot import HotBatch, HotFile, HotReader, ignore_step
from tailrace.store.layout import DataDirectory
from tailrace.store.segment import SegmentName
from tailrace.store.series import RECORDS, SERIES, Series

if TYPE_CHECKING:
    import duckdb

__all__ = ["Job", "Reply", "main", "seal_range", "serve"]

_NICE: Final = 10
SEAL_ROWS: Final = 25_000


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do, by `kind`.

    `seal` writes one pending segment of a living writer, `adopt` seals away a hot file that was left behind, `tidy`
    compacts and prunes.
    """

    kind: str
    root: str
    writer: str = ""
    segment: str = ""
    keep_days: float | None = None
    series: str = RECORDS.name


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a job; `error` is empty when it is done. `skipped` says that there was nothing to do."""

    kind: str
    segment: str = ""
    series: str = RECORDS.name
    error: str = ""
    skipped: bool = False


def seal_range(
    hot: Path,
    name: SegmentName,
    segments: Path,
    on_step: Callable[[str], None] = ignore_step,
    series: Series = RECORDS,
) -> bool:
    """Step 2 of the protocol: write the batches of `name` as a segment, and nothing else.

    False, and nothing written, when the seal log does not wait for that segment (any more).
    """
    from tailrace.store.parquet_file import connect, copy_to_parquet  # noqa: PLC0415

    try:
        with HotReader(hot) as reader:
            # The parent may be dead, and its file adopted by the next start, since this job was sent.
            if not reader.is_pending(name, series):
                return False
            batches = reader.range(name.lo, name.hi, series)
            layout = reader.layout
    except FileNotFoundError:
        return False
    # The snapshot is let go before the work: while one is held, the log of the hot file cannot be reused.
    with connect(threads=1) as connection:
        rows, select = _register(connection, batches, layout, series)
        if rows != name.rows:
            raise StoreError(f"{hot}: segment {name.text} should have {name.rows} {series.name}, the file has {rows}")
        # By start, not by end: row groups of a time window then lie together, whichever records the queue preferred.
        select += f" ORDER BY {series.clock}"
        copy_to_parquet(connection, select, name.temporary(segments), name.path(segments), on_step=on_step)
    return True


def _register(
    connection: duckdb.DuckDBPyConnection, batches: Sequence[HotBatch], layout: Sequence[str], series: Series
) -> tuple[int, str]:
    """Decode batches into `connection`; returns how many rows they hold and the SELECT for them."""
    if series is RECORDS:
        from tailrace.store.parquet_file import register_columns  # noqa: PLC0415

        rows = sum(batch.rows for batch in batches)
        columns = decode_batches([(batch.rows, batch.body) for batch in batches], layout)
        return rows, register_columns(connection, "sealing", columns, rows)
    from tailrace.store.amendment_file import decode_amendments, register_amendments  # noqa: PLC0415

    amendments = [one for batch in batches for one in decode_amendments(batch.body)]
    return len(amendments), register_amendments(connection, "sealing", amendments)


def _seal(directory: DataDirectory, job: Job, on_step: Callable[[str], None]) -> Reply:
    name, series = SegmentName.parse(job.segment), SERIES[job.series]
    with directory.sealing_lock(job.writer):
        done = seal_range(directory.hot_file(job.writer), name, directory.segments_of(series), on_step, series)
    return Reply(kind=job.kind, segment=job.segment, series=job.series, skipped=not done)


def _adopt(directory: DataDirectory, job: Job, on_step: Callable[[str], None]) -> Reply:
    """Seal away the hot file of a writer that died. Skipped when its owner, or another adopter, is alive."""
    writer = job.writer
    path = directory.hot_file(writer)
    life, sealing = directory.life_lock(writer), directory.sealing_lock(writer)
    if not life.acquire():
        return Reply(kind=job.kind, skipped=True)
    try:
        # Its sealing child may still be at its last job.
        if not sealing.acquire(timeout_s=10.0) or not path.exists():
            return Reply(kind=job.kind, skipped=True)
        hot = HotFile(path, writer, on_step=on_step)
        try:
            for series in SERIES.values():
                segments = directory.segments_of(series)
                hot.recover(segments, series)
                while (name := hot.begin_seal(SEAL_ROWS, series)) is not None:
                    seal_range(path, name, segments, on_step, series)
                    hot.finish_seal(name, series)
            with HotReader(path) as reader:
                _keep_counters(directory, writer, reader.counters())
        finally:
            hot.close()
        on_step("before_remove")
        directory.remove_hot(writer)
        on_step("after_remove")
    finally:
        sealing.release()
        life.release()
    return Reply(kind=job.kind)


def _keep_counters(directory: DataDirectory, writer: str, counters: dict[str, int]) -> None:
    line = msgspec.json.encode({"writer": writer, "counters": counters}) + b"\n"
    fd = os.open(directory.counters, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)


def _tidy(directory: DataDirectory, job: Job, on_step: Callable[[str], None]) -> Reply:
    from tailrace.store.upkeep import compact, prune  # noqa: PLC0415

    if job.keep_days is not None:
        prune(directory, older_than_s=job.keep_days * 86_400)
    compact(directory, on_step=on_step)
    return Reply(kind=job.kind)


_WORK: Final = {"seal": _seal, "adopt": _adopt, "tidy": _tidy}


def serve(source: BinaryIO, sink: BinaryIO, on_step: Callable[[str], None] = ignore_step) -> None:
    """Work off jobs until `source` ends. A job that fails answers with its error; the process goes on."""
    for line in source:
        job = msgspec.json.decode(line, type=Job)
        try:
            reply = _WORK[job.kind](DataDirectory(job.root), job, on_step)
        except Exception as error:  # noqa: BLE001  (every fault of a job is an answer: disk full, duckdb, damaged file)
            reply = Reply(
                kind=job.kind, segment=job.segment, series=job.series, error=f"{type(error).__name__}: {error}"
            )
        sink.write(msgspec.json.encode(reply) + b"\n")
        sink.flush()
        # Decoding makes millions of containers and no cycles, so the collector rests while a job runs.
        gc.collect()


def main() -> None:
    """`python -m tailrace.store.sealer`, started by the writer."""
    import duckdb  # noqa: F401, PLC0415  (before the first job comes, so that it does not wait)

    # Ctrl-C goes to the whole terminal group; the parent ends us by closing our input, after its last job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    gc.freeze()
    gc.disable()
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
