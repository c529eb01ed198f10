"""The hot tier: one SQLite file (write-ahead log) a writer process, holding only what is not sealed yet.

One row is one committed batch (see `batch`), so that a commit of a thousand records inserts four rows. The file has
a single writer; any number of processes read it meanwhile. `synchronous=NORMAL`: a killed process loses nothing that
was committed; a power cut may lose the last commits, never older ones.

Amendments lie in the same file, in tables of their own (`series`): one commit takes both, and whoever finds the file
finds both.

The seal log lives here too. A segment's name and batch range are written down *before* its file is begun, so that a
crash at any step neither loses nor doubles a record:

1. `begin_seal`: name and range are committed as pending;
2. the sealing process writes the segment (`segment.write_segment`: temporary file, fsync, rename, fsync);
3. `finish_seal`: in one transaction the range is deleted and the name marked as sealed.

After a crash, `recover` completes step 3 for a pending name whose file is there, and forgets one whose file is not.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, Self

import msgspec

from tailrace.model.errors import StoreError
from tailrace.store.batch import LAYOUT
from tailrace.store.segment import SegmentName, list_segments
from tailrace.store.series import RECORDS, SERIES, Series

__all__ = ["HotBatch", "HotFile", "HotReader", "ignore_step"]

HOT_FORMAT: Final = 1
_BUSY_S: Final = 10.0
"""How long a reader waits for the moments in which SQLite is exclusive (recovery after a kill, the last close)."""

_SCHEMA: Final = """
create table if not exists meta (key text primary key, value text not null);
create table if not exists counter (name text primary key, value integer not null);
""" + "".join(
    f"""
create table if not exists {series.batches} (
    id integer primary key autoincrement,
    rows integer not null, min_ns integer not null, max_ns integer not null, body blob not null);
create table if not exists {series.seals} (
    name text primary key, lo integer not null, hi integer not null, state text not null);
"""
    for series in SERIES.values()
)

Packed = tuple[int, int, int, bytes]
"""A batch on its way into the file: `(rows, min_ns, max_ns, blob)`."""


def ignore_step(step: str) -> None:
    """The step callback of production: nothing. Tests pass one that kills the process at a named step."""


class HotBatch(msgspec.Struct, frozen=True):
    """One committed batch as a reader sees it."""

    id: int
    rows: int
    min_ns: int
    max_ns: int
    body: bytes


class HotFile:
    """The writer's side. Only one thread may use it; errors of SQLite come out as StoreError."""

    def __init__(self, path: Path, writer: str, *, on_step: Callable[[str], None] = ignore_step) -> None:
        """Open or create the file. StoreError if that cannot be done."""
        self.path = path
        self.writer = writer
        self._step = on_step
        try:
            # The opening thread differs from the writing one; there is still only one at a time.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
            self._db.execute("pragma page_size=8192")
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_SCHEMA)
            meta = {"format": str(HOT_FORMAT), "writer": writer, "layout": json.dumps(LAYOUT)}
            self._db.executemany("insert or ignore into meta values (?, ?)", list(meta.items()))
        except sqlite3.Error as error:
            raise StoreError(f"{path}: cannot open the hot tier: {error}") from None

    def append(self, batches: Sequence[Packed], counters: Mapping[str, int], amendments: Sequence[Packed] = ()) -> None:
        """Commit batches of records and of amendments, and the current counters, in one transaction."""
        insert = "insert into {} (rows, min_ns, max_ns, body) values (?, ?, ?, ?)"
        try:
            self._db.execute("begin immediate")
            try:
                self._db.executemany(insert.format("batch"), batches)
                if amendments:
                    self._db.executemany(insert.format("amendment"), amendments)
                self._put_counters(counters)
                self._db.execute("commit")
            except BaseException:
                self._rollback()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot write records: {error}") from None

    def put_counters(self, counters: Mapping[str, int]) -> None:
        """Commit the counters alone."""
        try:
            self._put_counters(counters)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot write counters: {error}") from None

    def _put_counters(self, counters: Mapping[str, int]) -> None:
        self._db.executemany("insert or replace into counter values (?, ?)", list(counters.items()))

    def _rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("rollback")

    def begin_seal(self, max_rows: int, series: Series = RECORDS) -> SegmentName | None:
        """Step 1: choose the oldest batches up to about `max_rows`, commit their range as pending, return the name.

        `None` when there is nothing to seal. A seal still pending is returned again, so a failed one is retried
        under the same name.
        """
        try:
            pending = self.pending(series)
            if pending:
                return pending[0]
            lo, hi, rows, low_ns, high_ns = 0, 0, 0, 0, 0
            for number, count, min_ns, max_ns in self._db.execute(
                f"select id, rows, min_ns, max_ns from {series.batches} order by id"  # noqa: S608
            ):
                if rows and rows + count > max_rows:
                    break
                low_ns = min(low_ns, min_ns) if rows else min_ns
                high_ns = max(high_ns, max_ns) if rows else max_ns
                lo, hi, rows = lo or number, number, rows + count
            if not rows:
                return None
            name = SegmentName(min_ns=low_ns, max_ns=high_ns, rows=rows, writer=self.writer, lo=lo, hi=hi)
            self._step("before_begin")
            self._db.execute(
                f"insert into {series.seals} values (?, ?, ?, 'pending')",  # noqa: S608
                (name.text, lo, hi),
            )
            self._step("after_begin")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot begin to seal: {error}") from None
        return name

    def pending(self, series: Series = RECORDS) -> list[SegmentName]:
        """Seals that were begun and not finished."""
        rows = self._db.execute(
            f"select name from {series.seals} where state = 'pending' order by lo"  # noqa: S608
        ).fetchall()
        return [SegmentName.parse(name) for (name,) in rows]

    def finish_seal(self, name: SegmentName, series: Series = RECORDS) -> None:
        """Step 3: delete the sealed range and mark the name, in one transaction. Harmless when done twice."""
        try:
            self._db.execute("begin immediate")
            try:
                self._step("before_finish")
                seals = series.seals
                self._db.execute(
                    f"delete from {series.batches} where id between ? and ?",  # noqa: S608
                    (name.lo, name.hi),
                )
                self._db.execute(f"update {seals} set state = 'sealed' where name = ?", (name.text,))  # noqa: S608
                # The log is for a person who looks into the file; the last hundred tell enough.
                self._db.execute(
                    f"delete from {seals} where state = 'sealed' and lo < "  # noqa: S608
                    f"(select min(lo) from (select lo from {seals} order by lo desc limit 100))"
                )
                self._db.execute("commit")
                self._step("after_finish")
            except BaseException:
                self._rollback()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot finish a seal: {error}") from None

    def forget_seal(self, name: SegmentName, series: Series = RECORDS) -> None:
        """Drop a pending seal whose file was never renamed into place; its rows stay to be sealed again."""
        self._db.execute(
            f"delete from {series.seals} where name = ? and state = 'pending'",  # noqa: S608
            (name.text,),
        )

    def recover(self, segments: Path, series: Series = RECORDS) -> None:
        """Complete or forget the seals that a crash left pending. The caller holds the file's locks."""
        listing = list_segments(segments)
        # A segment may have been merged into another since; its rows are on disk all the same.
        sealed = {*listing.names, *listing.replaced}
        for name in self.pending(series):
            if name in sealed:
                self.finish_seal(name, series)
            else:
                name.temporary(segments).unlink(missing_ok=True)
                self.forget_seal(name, series)

    def close(self) -> None:
        """Close; the last close folds the write-ahead log into the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


class HotReader:
    """The reader's side: a read-only snapshot of one hot file, whoever writes it (or wrote it, and was killed)."""

    def __init__(self, path: Path) -> None:
        """Open read-only. FileNotFoundError when it has just been sealed away; StoreError for anything else."""
        self.path = path
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
            self._db.execute("begin")
            meta = dict(self._db.execute("select key, value from meta").fetchall())
        except sqlite3.Error as error:
            self._fail(error)
        if int(meta.get("format", 0)) != HOT_FORMAT:
            raise StoreError(f"{path}: hot tier of format {meta.get('format')}, this Tailrace reads {HOT_FORMAT}")
        self.writer: str = meta["writer"]
        self.layout: tuple[str, ...] = tuple(json.loads(meta["layout"]))
        """Columns of its batches of records; amendments name their fields themselves."""

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        if not self.path.exists():
            raise FileNotFoundError(self.path) from None
        if "no such table" in str(error):
            # Killed between creating the file and its schema: nothing was ever acknowledged in it.
            raise FileNotFoundError(self.path) from None
        raise StoreError(
            f"{self.path}: cannot read the hot tier: {error}. Reading needs write permission on its directory "
            "(SQLite keeps its shared memory there)"
        ) from None

    def batches(
        self,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
        containing: str = "",
        series: Series = RECORDS,
    ) -> list[HotBatch]:
        """Batches that may hold something of [since, until), and whose bytes contain a text if one is given."""
        clauses, values = ["1"], []
        if since_ns is not None:
            clauses.append("max_ns >= ?")
            values.append(since_ns)
        if until_ns is not None:
            clauses.append("min_ns < ?")
            values.append(until_ns)
        sql = f"select id, rows, min_ns, max_ns, body from {series.batches} where {' and '.join(clauses)}"  # noqa: S608
        parameters: list[int | bytes] = list(values)
        if containing:
            # msgpack keeps text as its UTF-8 bytes, so a lookup by id scans blobs in C, and decodes only the hit.
            sql += " and instr(body, ?)"
            parameters.append(containing.encode())
        try:
            return [HotBatch(*row) for row in self._db.execute(sql + " order by id", parameters)]
        except sqlite3.Error as error:
            if series is not RECORDS and "no such table" in str(error):
                return []  # a file of a Tailrace that knew no amendments
            raise StoreError(f"{self.path}: cannot read {series.name}: {error}") from None

    def range(self, lo: int, hi: int, series: Series = RECORDS) -> list[HotBatch]:
        """The batches of a seal."""
        rows = self._db.execute(
            f"select id, rows, min_ns, max_ns, body from {series.batches} "  # noqa: S608
            "where id between ? and ? order by id",
            (lo, hi),
        )
        return [HotBatch(*row) for row in rows]

    def is_pending(self, name: SegmentName, series: Series = RECORDS) -> bool:
        """Whether the seal log still waits for this segment."""
        found = self._db.execute(
            f"select 1 from {series.seals} where name = ? and state = 'pending'",  # noqa: S608
            (name.text,),
        ).fetchone()
        return found is not None

    def counters(self) -> dict[str, int]:
        """The writer's counters as of its last commit."""
        return {str(name): int(value) for name, value in self._db.execute("select name, value from counter")}

    def close(self) -> None:
        """Let the snapshot go."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
