"""`RecordStore`: read a data directory, hot rows and sealed segments as one, while any number of gateways write it.

The order of reading is the whole trick: hot files first, then the list of segments. A batch that is sealed in
between is then seen twice, and is recognised, because a segment's name carries its writer and its range of batches;
in the other order it would be missed.

What became known of requests later (amendments) is joined here, whoever asks: rows of a table after they were chosen,
and, where a question or an order goes by what amendments change, before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from tailrace.measure.amend import AMENDABLE
from tailrace.model.errors import InputError, StoreError
from tailrace.model.record import RequestRecord
from tailrace.store.batch import decode_batches, table_of
from tailrace.store.fetch import fetch_table
from tailrace.store.hot import HotReader
from tailrace.store.late import LATEST_NS, LateReports, amend_table, join_view
from tailrace.store.layout import DEFAULT_DIRECTORY, DataDirectory
from tailrace.store.queries import query_sql
from tailrace.store.segment import SegmentName, list_segments
from tailrace.store.series import AMENDMENTS
from tailrace.store.table import KINDS, RecordTable

if TYPE_CHECKING:
    import duckdb

__all__ = ["Answer", "RecordStore"]

_T = TypeVar("_T")
_ATTEMPTS: Final = 4
_MANY: Final = 5_000
"""Rows that are better found once more in their files than kept in memory while they are put in order."""
GATEWAY: Final = "gateway"
"""The vantage that every question is about unless it says otherwise: two records of one request are not two requests.
"""
_AMENDABLE: Final = frozenset(AMENDABLE)


class Answer(msgspec.Struct, frozen=True):
    """The answer to a named query: column names, and rows of plain values."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """One dict a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]


_HOUR_NS: Final = 3_600_000_000_000
"""How far apart the requests of one trace may be, to be told from a trace of a single one."""


class _Snapshot(msgspec.Struct, frozen=True):
    hot: RecordTable
    segments: list[Path]
    late: LateReports


class RecordStore:
    """The records of one data directory. Holds nothing open between calls; safe to use from several threads.

    Times are wall clock in ns; a window is [since, until) on a record's start.
    """

    def __init__(self, root: str | Path = DEFAULT_DIRECTORY, *, threads: int | None = None) -> None:
        """InputError when `root` is no data directory. `threads` limits the query engine (default: all cores)."""
        self.directory = DataDirectory(root)
        self.directory.require()
        self._threads = threads

    # -- records

    def table(
        self,
        since_unix_ns: int | None = None,
        until_unix_ns: int | None = None,
        limit: int | None = None,
        *,
        with_timelines: bool = False,
        equal: Mapping[str, str] | None = None,
        slowest_by: str = "",
        vantage: str | None = GATEWAY,
        amended: bool = True,
    ) -> RecordTable:
        """Records in the window, ordered by start; with `limit`, the newest so many of them.

        One `vantage`, the gateway's own unless another is asked for (`application`: what services before it have
        reported of the same requests); `None`: whatever there is.
        `equal` keeps those whose text fields say this (`{"lane": "batch"}`). `slowest_by` names a column: the rows
        that have it come largest first, and `limit` keeps the largest. Timelines are read only when asked for: they
        are most of the bytes. Without `amended`, records come as they were written.
        """
        order = slowest_by or "start_unix_ns"
        wanted = {**(equal or {}), **({} if vantage is None else {"vantage": vantage})}
        for name in (order, *wanted):
            if name not in KINDS:
                raise InputError(f"records have no field {name!r}", remedy=f"They have: {', '.join(KINDS)}.")

        def read() -> RecordTable:
            snapshot = self._snapshot(since_unix_ns, until_unix_ns, amended=amended)
            window = (since_unix_ns, until_unix_ns)
            if snapshot.late and not _AMENDABLE.isdisjoint((order, *wanted)):
                return self._table_of_amended(
                    snapshot, window, order, limit, equal=wanted, largest=bool(slowest_by), timelines=with_timelines
                )
            hot = snapshot.hot if with_timelines else RecordTable(snapshot.hot.columns)
            for name, text in wanted.items():
                hot = hot.where((hot.column(name) == text).astype(bool))
            if slowest_by and hot.column(order).dtype == np.float64:
                hot = hot.where(~np.isnan(hot.column(order)))
            parts = [hot]
            if snapshot.segments:
                where = _window(*window) + _says(wanted) + f' AND "{order}" IS NOT NULL'
                cold = self._read_segments(snapshot.segments, where, order, limit, with_timelines=with_timelines)
                parts.insert(0, cold)
            largest_first = RecordTable.concat(parts).sorted_by(order, descending=True)
            if limit is not None and len(largest_first) > limit:
                largest_first = largest_first.where(np.arange(limit))
            chosen = largest_first if slowest_by else largest_first.sorted_by(order)
            return self._amended(chosen, snapshot.late, window) if snapshot.late else chosen

        return self._retry(read)

    def records(
        self,
        since_unix_ns: int | None = None,
        limit: int | None = None,
        until_unix_ns: int | None = None,
        *,
        vantage: str | None = GATEWAY,
    ) -> list[RequestRecord]:
        """Like `table`, as records with their timelines."""
        table = self.table(since_unix_ns, until_unix_ns, limit, with_timelines=True, vantage=vantage)
        return list(table.records())

    def get(self, request_id: str, *, vantage: str | None = None, amended: bool = True) -> RequestRecord | None:
        """The record of one request, by our id or the client's, with its timeline; the newest if there are several.

        `vantage` `None`: the gateway's, or where it has none, an application's.
        """
        if vantage is None:
            return self._get(request_id, GATEWAY, amended=amended) or self._get(request_id, "", amended=amended)
        return self._get(request_id, vantage, amended=amended)

    def _get(self, request_id: str, vantage: str, *, amended: bool) -> RequestRecord | None:
        if not request_id or request_id.endswith("\0"):
            # Most records have no client id, and an empty one must not find them; numpy cuts NULs off what it compares.
            return None

        def read() -> RequestRecord | None:
            found, _, batches = self._hot(containing=request_id)
            mine = (found.column("request_id") == request_id) | (found.column("client_request_id") == request_id)
            if vantage:
                mine &= found.column("vantage") == vantage
            hits = found.where(mine.astype(bool))
            if not len(hits):
                listing = list_segments(self.directory.segments)
                if not listing.names:
                    return None
                quoted = _quoted(request_id)
                where = f"(request_id = {quoted} OR client_request_id = {quoted})"
                where += f' AND "vantage" = {_quoted(vantage)}' if vantage else ""
                paths = [name.path(self.directory.segments) for name in listing.names]
                hits = self._read_segments(paths, where, "start_unix_ns", 1, with_timelines=True)
            newest = hits.sorted_by("start_unix_ns", descending=True).where(np.arange(min(1, len(hits))))
            late = self._late(batches, None, None) if amended else LateReports()
            if late and len(newest):
                start = int(newest.column("start_unix_ns")[0])
                newest = self._amended(newest, late, (start, start + 1))
            return next(newest.records(), None)

        return self._retry(read)

    # -- questions

    def ask(
        self,
        name: str,
        *,
        metric: str | None = None,
        since_unix_ns: int | None = None,
        until_unix_ns: int | None = None,
        vantage: str = GATEWAY,
        amended: bool = True,
        numbers: Mapping[str, float] | None = None,
        **more: float,
    ) -> Answer:
        """Answer a named query (see `queries.QUERIES`) over a window, of the records of one vantage.

        InputError for an unknown name or parameter. Its parameters go by their names (`bound_ms=500`), or all in
        `numbers`.
        """
        sql = query_sql(name, metric, **(numbers or {}), **more)
        # A question that goes by nothing that amendments change is answered without a look at them.
        fields = [column for column in AMENDABLE if column in sql] if amended else []

        def read() -> Answer:
            from tailrace.store.parquet_file import connect  # noqa: PLC0415

            window = (since_unix_ns, until_unix_ns)
            snapshot = self._snapshot(*window, amended=bool(fields))
            with connect(threads=self._threads) as connection:
                self._make_view(connection, snapshot, window, vantage, fields)
                cursor = connection.execute(sql)
                columns = [column[0] for column in cursor.description or []]
                return Answer(columns, cursor.fetchall())

        return self._retry(read)

    def counters(self) -> dict[str, int]:
        """What the writers of this directory counted, summed: `dropped.normal`, `dropped.slow`, ..."""
        by_writer: dict[str, dict[str, int]] = {}
        for path in self.directory.hot_files():
            try:
                with HotReader(path) as reader:
                    by_writer[reader.writer] = reader.counters()
            except FileNotFoundError:
                continue
        if self.directory.counters.exists():
            for line in self.directory.counters.read_bytes().splitlines():
                try:
                    kept = json.loads(line)
                except ValueError:
                    # The last line may be half written by a process that is at it now.
                    continue
                # By writer, not added up: a crash between keeping and deleting writes a line twice.
                by_writer[kept["writer"]] = kept["counters"]
        out: dict[str, int] = {}
        for counters in by_writer.values():
            for name, value in counters.items():
                out[name] = out.get(name, 0) + value
        return out

    def size(self) -> dict[str, int]:
        """How much there is: `hot_files`, `hot_records`, `segments`, `sealed_records`, `amendments`, `bytes`."""
        hot, _seen = self._hot_rows()
        listing = list_segments(self.directory.segments)
        paths = [name.path(self.directory.segments) for name in listing.names]
        files = [*paths, *self.directory.hot.glob("*"), *self.directory.amendments.glob("*/*.parquet")]
        return {
            "hot_files": len(self.directory.hot_files()),
            "hot_records": hot,
            "segments": len(paths),
            "sealed_records": sum(name.rows for name in listing.names),
            "amendments": self._late_rows(),
            "bytes": sum(path.stat().st_size for path in files if path.exists()),
        }

    # -- inside

    def _retry(self, read: Callable[[], _T]) -> _T:
        import duckdb  # noqa: PLC0415

        for attempt in range(_ATTEMPTS):
            try:
                return read()
            except (duckdb.IOException, FileNotFoundError) as error:
                # A segment was pruned or merged away between listing and opening: the next list is right.
                if attempt == _ATTEMPTS - 1:
                    raise self._unreadable(error) from None
            except duckdb.Error as error:
                raise self._unreadable(error) from None
        raise AssertionError("unreachable")

    def _unreadable(self, error: Exception) -> StoreError:
        # Refused, not skipped: a percentile over what happened to be readable would look like an answer.
        said = str(error).partition("\n")[0].rstrip(".")
        return StoreError(
            f"{self.directory.root}: cannot read records: {said}. Move the file that it names out of the directory to "
            "read the others."
        )

    def _snapshot(self, since: int | None, until: int | None, *, amended: bool = True) -> _Snapshot:
        hot, batches, late = self._hot(since_ns=since, until_ns=until)
        listing = list_segments(self.directory.segments)
        held = listing.holds()
        fresh = np.array(
            [not any(lo <= number <= hi for lo, hi in held.get(writer, ())) for writer, number in batches], dtype=bool
        )
        if not fresh.all():
            hot = hot.where(fresh)
        starts = hot.column("start_unix_ns")
        inside = np.ones(len(hot), dtype=bool)
        if since is not None:
            inside &= starts >= since
        if until is not None:
            inside &= starts < until
        if not inside.all():
            hot = hot.where(inside)
        paths = [name.path(self.directory.segments) for name in listing.window(since, until)]
        return _Snapshot(hot, paths, self._late(late, since, until) if amended else LateReports())

    def _late(self, batches: list[bytes], since: int | None, until: int | None) -> LateReports:
        """The amendments to records of a window; `batches` were read before this, like hot records."""
        listing = list_segments(self.directory.amendments)
        chosen = listing.window(since, None if until is None else until + LATEST_NS)
        return LateReports(batches, [name.path(self.directory.amendments) for name in chosen])

    def _hot(
        self, *, since_ns: int | None = None, until_ns: int | None = None, containing: str = ""
    ) -> tuple[RecordTable, list[tuple[str, int]], list[bytes]]:
        """Hot rows, for each the writer and batch it came from, and batches of hot amendments."""
        tables: list[RecordTable] = []
        origin: list[tuple[str, int]] = []
        late: list[bytes] = []
        latest = None if until_ns is None else until_ns + LATEST_NS
        for path in self.directory.hot_files():
            try:
                with HotReader(path) as reader:
                    batches = reader.batches(since_ns=since_ns, until_ns=until_ns, containing=containing)
                    said = reader.batches(since_ns=since_ns, until_ns=latest, series=AMENDMENTS)
            except FileNotFoundError:
                # Sealed away a moment ago: its rows are in segments, which are listed after this.
                continue
            late.extend(batch.body for batch in said)
            if not batches:
                continue
            columns = decode_batches([(batch.rows, batch.body) for batch in batches], reader.layout)
            tables.append(table_of(columns, sum(batch.rows for batch in batches)))
            origin.extend((reader.writer, batch.id) for batch in batches for _row in range(batch.rows))
        return RecordTable.concat(tables), origin, late

    def _hot_rows(self) -> tuple[int, int]:
        rows, files = 0, 0
        for path in self.directory.hot_files():
            try:
                with HotReader(path) as reader:
                    rows += sum(batch.rows for batch in reader.batches())
            except FileNotFoundError:
                continue
            files += 1
        return rows, files

    def _late_rows(self) -> int:
        rows = sum(name.rows for name in list_segments(self.directory.amendments).names)
        for path in self.directory.hot_files():
            try:
                with HotReader(path) as reader:
                    rows += sum(batch.rows for batch in reader.batches(series=AMENDMENTS))
            except FileNotFoundError:
                continue
        return rows

    def _amended(self, table: RecordTable, late: LateReports, window: tuple[int | None, int | None]) -> RecordTable:
        """The table with what is known of its records now."""
        from tailrace.store.parquet_file import connect  # noqa: PLC0415

        with connect(threads=self._threads) as connection:
            amendments = late.about(connection, table.columns)
        return amend_table(table, amendments, lambda traces: self._traces_of_many(traces, window))

    def _traces_of_many(self, traces: set[str], window: tuple[int | None, int | None]) -> set[str]:
        """Of these traces, those of which more than one request is kept, inside the window or within an hour of it."""
        from tailrace.store.parquet_file import connect, select_segments  # noqa: PLC0415

        since, until = window
        wide = self._snapshot(
            None if since is None else since - _HOUR_NS, None if until is None else until + _HOUR_NS, amended=False
        )
        ours = wide.hot.column("vantage") != "application"
        count = Counter(trace for trace in wide.hot.column("trace_id")[ours].tolist() if trace in traces)
        if wide.segments:
            with connect(threads=self._threads) as connection:
                connection.register("traces", {"id": np.array(sorted(traces), dtype=object)})
                found = connection.execute(
                    f"SELECT trace_id, count(*) FROM ({select_segments(connection, wide.segments)}) "  # noqa: S608
                    f"WHERE vantage <> 'application' AND trace_id IN (SELECT id FROM traces) GROUP BY 1"
                ).fetchall()
            count.update(dict(found))
        return {trace for trace, n in count.items() if n > 1}

    def _make_view(
        self,
        connection: duckdb.DuckDBPyConnection,
        snapshot: _Snapshot,
        window: tuple[int | None, int | None],
        vantage: str | None,
        fields: Sequence[str] = AMENDABLE,
    ) -> None:
        """The records of a window, of one vantage or all, as the view `records`, amended in `fields` if they were."""
        from tailrace.store.parquet_file import register_table, select_segments  # noqa: PLC0415

        parts = [register_table(connection, "hot", snapshot.hot)]
        if snapshot.segments:
            parts.append(select_segments(connection, snapshot.segments))
        where = _window(*window) + ("" if vantage is None else f" AND vantage = {_quoted(vantage)}")
        union = " UNION ALL ".join(f"(SELECT * FROM ({part}) WHERE {where})" for part in parts)  # noqa: S608
        name = "written" if snapshot.late else "records"
        connection.execute(f"CREATE TEMP VIEW {name} AS {union}")
        if snapshot.late:
            join_view(
                connection,
                name,
                snapshot.late,
                lambda traces: self._traces_of_many(traces, window),
                "records",
                fields,
            )

    def _table_of_amended(
        self,
        snapshot: _Snapshot,
        window: tuple[int | None, int | None],
        order: str,
        limit: int | None,
        *,
        equal: Mapping[str, str],
        largest: bool,
        timelines: bool,
    ) -> RecordTable:
        """A table whose choice goes by what amendments change: chosen among the amended rows."""
        from tailrace.store.parquet_file import connect  # noqa: PLC0415

        with connect(threads=self._threads) as connection:
            self._make_view(connection, snapshot, window, None)
            rows = f'SELECT * FROM records WHERE "{order}" IS NOT NULL{_says(equal)} ORDER BY "{order}" DESC'  # noqa: S608
            if limit is not None:
                rows += f" LIMIT {int(limit)}"
            connection.execute(f"CREATE TEMP TABLE chosen AS {rows}")
            found = fetch_table(connection, "chosen", with_timelines=timelines)
        return found if largest else found.sorted_by(order)

    def _read_segments(
        self, paths: list[Path], where: str, order: str, limit: int | None, *, with_timelines: bool
    ) -> RecordTable:
        from tailrace.store.parquet_file import TIMELINE_TYPES, alike_in, connect, select_segments  # noqa: PLC0415

        with connect(threads=self._threads) as connection:
            segments = select_segments(connection, paths)
            # All that there is need not be sorted, nor be in memory as a whole: columns are read one by one.
            whole = limit is None or sum(SegmentName.parse(path.stem).rows for path in paths) <= limit
            by_time = order == "start_unix_ns"  # which files' statistics know: most of them are not opened
            if not whole and limit is not None and (limit >= _MANY or by_time):
                # Nor are the largest many: what comes after the last of them is left where it is.
                found = connection.execute(
                    f'SELECT min(least) FROM (SELECT "{order}" AS least FROM ({segments}) WHERE {where} '  # noqa: S608
                    f'ORDER BY "{order}" DESC LIMIT {int(limit)})'
                ).fetchone()
                if found is not None and found[0] is not None:
                    where += f' AND "{order}" >= {found[0]}'
                    whole = True
            rows = f"SELECT * FROM ({segments}) WHERE {where}"  # noqa: S608
            if not whole:
                rows += f' ORDER BY "{order}" DESC LIMIT {int(limit or 0)}'
            if not with_timelines:
                rows = f"SELECT * EXCLUDE ({', '.join(TIMELINE_TYPES)}) FROM ({rows})"  # noqa: S608
            connection.execute(f"CREATE TEMP {'VIEW' if whole else 'TABLE'} chosen AS {rows}")
            alike = alike_in(connection, paths) if whole else None
            return fetch_table(connection, "chosen", with_timelines=with_timelines, alike=alike)


def _window(since: int | None, until: int | None) -> str:
    clauses = ["true"]
    if since is not None:
        clauses.append(f"start_unix_ns >= {int(since)}")
    if until is not None:
        clauses.append(f"start_unix_ns < {int(until)}")
    return " AND ".join(clauses)


def _says(equal: Mapping[str, str]) -> str:
    return "".join(f' AND "{name}" = {_quoted(text)}' for name, text in equal.items())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
