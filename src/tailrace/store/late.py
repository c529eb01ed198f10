"""The join: what is kept of amendments, found for the records that somebody reads, and read into them.

Amendments lie by when they came. A record's come after its start, most within seconds: they are looked for from the
start of the window until `LATEST_NS` after its end. Only the fields that `measure.amend` may set are replaced, in
copies of the columns.

Where two requests of one trace could both be meant, the whole trace must be known, not only what a filter or a limit
left of it; that is looked up only when an amendment has nothing but its trace to go by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace.measure.amend import AMENDABLE, NEEDED, amend
from tailrace.measure.lineage import share_out
from tailrace.model.amendment import Amendment
from tailrace.model.record import RequestRecord
from tailrace.store.amendment_file import (
    decode_amendments,
    fetch_amendments,
    select_amendments,
)
from tailrace.store.fetch import fetch_columns
from tailrace.store.parquet_file import register_arrays
from tailrace.store.table import RecordTable, build_column, values_of

if TYPE_CHECKING:
    import duckdb

__all__ = ["LATEST_NS", "Amended", "LateReports", "amend_columns", "amend_table", "join_view"]

LATEST_NS: Final = 86_400_000_000_000
"""How long after a window's end an amendment to one of its records is still looked for: a day."""

_FEW: Final = 20_000

_KEY: Final = ("request_id", "start_unix_ns")
"""Tells records apart, those of several hops of one request too."""

Columns = Mapping[str, npt.NDArray[Any]]
TracesOfMany = Callable[[set[str]], set[str]]
"""Of these traces, those of which more than one request is kept."""


class LateReports(msgspec.Struct, frozen=True):
    """The amendments that may be about the records of a window: unsealed ones as batches, and segments."""

    batches: list[bytes] = []
    segments: list[Path] = []

    def __bool__(self) -> bool:
        return bool(self.batches or self.segments)

    def about(self, connection: duckdb.DuckDBPyConnection, columns: Columns) -> list[Amendment]:
        """Those that name a request or a trace of these rows (and more, of many rows); unsealed ones first."""
        requests, traces = set(columns["request_id"].tolist()), set(columns["trace_id"].tolist()) - {""}
        few = len(requests) <= _FEW
        out: list[Amendment] = []
        for batch in self.batches:
            found = decode_amendments(batch)
            out += [one for one in found if one.request_id in requests or one.trace_id in traces] if few else found
        if self.segments:
            select = select_amendments(connection, self.segments)
            if few:
                # Only then: it costs more to have a million ids looked up than to read all amendments of a window.
                connection.register("wanted_requests", {"id": _texts(requests)})
                connection.register("wanted_traces", {"id": _texts(traces)})
                select = (
                    f"SELECT * FROM ({select}) WHERE request_id IN (SELECT id FROM wanted_requests) "  # noqa: S608
                    "OR trace_id IN (SELECT id FROM wanted_traces)"
                )
            out += fetch_amendments(connection, select)
        return out

    def everything(self, connection: duckdb.DuckDBPyConnection) -> list[Amendment]:
        """All of them."""
        out = [one for batch in self.batches for one in decode_amendments(batch)]
        if self.segments:
            out += fetch_amendments(connection, select_amendments(connection, self.segments))
        return out


class Amended(msgspec.Struct, frozen=True):
    """What changes: places in the rows given, and the records that stand there now (of the needed fields only)."""

    places: list[int]
    records: list[RequestRecord]


def amend_columns(columns: Columns, amendments: Sequence[Amendment], traces_of_many: TracesOfMany) -> Amended:
    """Read amendments into rows; `columns` are at least those of `measure.amend.NEEDED`."""
    requests = {one.request_id for one in amendments} - {""}
    traces = {one.trace_id for one in amendments} - {""}
    ids, trails = columns["request_id"].tolist(), columns["trace_id"].tolist()
    places = [
        place
        for place, (request, trace) in enumerate(zip(ids, trails, strict=True))
        if request in requests or trace in traces
    ]
    records = _records(columns, places)
    shares = share_out(records, amendments)
    of_many = traces_of_many(set(shares.by_trace)) if shares.by_trace else set()
    if of_many:
        unsure = {id(one) for trace in of_many for one in shares.by_trace[trace]}
        shares = share_out(records, [one for one in amendments if id(one) not in unsure])
    changed = [(place, amend(records[at], mine)) for at, place in enumerate(places) if (mine := shares.of.get(at))]
    return Amended([place for place, _ in changed], [record for _, record in changed])


def amend_table(table: RecordTable, amendments: Sequence[Amendment], traces_of_many: TracesOfMany) -> RecordTable:
    """The table with these amendments; the same object where none is about it."""
    if not amendments or not len(table):
        return table
    amended = amend_columns(table.columns, amendments, traces_of_many)
    if not amended.places:
        return table
    columns = dict(table.columns)
    rows = np.array(amended.places)
    for name in AMENDABLE:
        column = columns[name].copy()
        column[rows] = build_column(name, [getattr(record, name) for record in amended.records])
        columns[name] = column
    return RecordTable(columns, table.timelines)


def join_view(
    connection: duckdb.DuckDBPyConnection,
    raw: str,
    late: LateReports,
    traces_of_many: TracesOfMany,
    view: str,
    fields: Sequence[str] = AMENDABLE,
) -> None:
    """Make the temporary view `view`: the rows of the view `raw`, amended in these fields."""
    amendments = late.everything(connection)
    for name in ("request_id", "trace_id"):
        texts = {getattr(one, name) for one in amendments} - {""}
        connection.register(f"late_{name}", {"id": _texts(texts)})
    connection.execute(
        f"CREATE TEMP TABLE late_rows AS SELECT {', '.join(NEEDED)} FROM {raw} "  # noqa: S608
        "WHERE request_id IN (SELECT id FROM late_request_id) OR trace_id IN (SELECT id FROM late_trace_id)"
    )
    columns = fetch_columns(connection, "late_rows", NEEDED)
    amended = amend_columns(columns, amendments, traces_of_many) if len(columns["request_id"]) else Amended([], [])
    if not amended.places:
        connection.execute(f"CREATE TEMP VIEW {view} AS SELECT * FROM {raw}")  # noqa: S608
        return
    changes = {
        name: build_column(name, [getattr(record, name) for record in amended.records]) for name in (*_KEY, *fields)
    }
    select = register_arrays(connection, "late_changes", changes)
    connection.execute(f"CREATE TEMP TABLE changes AS {select}")
    chosen = ", ".join(
        f'CASE WHEN changes.request_id IS NULL THEN raw."{name}" ELSE changes."{name}" END AS "{name}"'
        for name in fields
    )
    same = " AND ".join(f"raw.{name} = changes.{name}" for name in _KEY)
    connection.execute(
        f"CREATE TEMP VIEW {view} AS SELECT raw.* REPLACE ({chosen}) "  # noqa: S608
        f"FROM {raw} AS raw LEFT JOIN changes ON {same}"
    )


_Slim: Final = msgspec.defstruct("_Slim", [(name, Any) for name in NEEDED], frozen=True)
"""A record of the needed fields only: made in a fifth of the time, and amended like the whole one."""


def _records(columns: Columns, places: list[int]) -> list[RequestRecord]:
    chosen = np.array(places, dtype=np.int64)
    lists = [values_of(name, columns[name][chosen]) for name in NEEDED]
    return [cast("RequestRecord", _Slim(*values)) for values in zip(*lists, strict=True)]


def _texts(values: Iterable[str]) -> npt.NDArray[Any]:
    texts = list(values)
    out = np.empty(len(texts), dtype=object)
    out[:] = texts
    return out
