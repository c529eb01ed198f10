"""Fetching: rows in DuckDB back into a `RecordTable`, without a Python object for every cell.

A record has three dozen text columns, most of which say the same thing in every row, and as many numbers that nobody
saw. Fetched naively, a million records are two gigabytes of equal strings and one of NaN; here a column of one value is
one value (an array without strides), and a column of few texts is fetched as codes. Columns come a few at a time, so
that a relation that is a view over files never is in memory as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.model.timeline import Timeline
from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable, build_column

if TYPE_CHECKING:
    import duckdb

__all__ = ["fetch_columns", "fetch_table"]

_TEXTS: Final = frozenset(
    name for name in FIELDS if KINDS[name] in (ColumnKind.TEXT, ColumnKind.ENUM, ColumnKind.OBJECT)
)
_MAYBE: Final = frozenset({ColumnKind.MAYBE_INTEGER, ColumnKind.MAYBE_FLOAT, ColumnKind.MAYBE_BOOLEAN})
_IDS: Final = frozenset({"request_id", "client_request_id", "trace_id", "session_id", "parent_id"})
_SHARED_ROWS: Final = 5_000
"""Below this, looking for equal values costs more than the values."""
_MAX_LABELS: Final = 4096
_AT_ONCE: Final = 12
"""Columns that are fetched together."""
_TIMELINES_AT_ONCE: Final = 2_000


class _Survey(msgspec.Struct, frozen=True):
    """Columns that need not be fetched as they are: those of one value, and texts of few (sorted)."""

    constants: dict[str, Any] = {}
    """The value; `None` where the column is absent in every row."""
    labels: dict[str, list[str]] = {}


def fetch_table(connection: duckdb.DuckDBPyConnection, relation: str, *, with_timelines: bool) -> RecordTable:
    """The relation (a temporary table or view with columns of `parquet_file`), in its order, as numpy columns."""
    columns = fetch_columns(connection, relation, FIELDS)
    timelines = _timelines(connection, relation, columns["request_id"]) if with_timelines else None
    return RecordTable(columns, timelines)


def fetch_columns(
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Some columns of the relation, in its order, laid out as those of a `RecordTable`.

    DuckDB keeps the order of files and of a table's rows in every query alike (its `preserve_insertion_order`).
    """
    found = connection.execute(f"SELECT count(*) FROM {relation}").fetchone()  # noqa: S608
    count = found[0] if found else 0
    if not count:
        empty = RecordTable.empty().columns
        return {name: empty[name] for name in names}
    survey = _surveyed(connection, relation, names, count) if count >= _SHARED_ROWS else _Survey()
    out = {name: _constant(name, value, count) for name, value in survey.constants.items()}
    wanted = iter([name for name in names if name not in survey.constants])
    while some := list(itertools.islice(wanted, _AT_ONCE)):
        chosen = ", ".join(_selected(name, survey) for name in some)
        fetched = connection.execute(f"SELECT {chosen} FROM {relation}").fetchnumpy()  # noqa: S608
        out |= {name: _column(name, fetched[name], survey) for name in some}
    return {name: out[name] for name in names}


def _surveyed(connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], count: int) -> _Survey:
    ends = connection.execute(
        "SELECT " + ", ".join(f'min("{name}"), max("{name}"), count("{name}")' for name in names) + f" FROM {relation}"  # noqa: S608
    ).fetchone()
    if ends is None:
        return _Survey()
    survey = _Survey(constants={}, labels={})
    for place, name in enumerate(names):
        low, high, there = ends[3 * place : 3 * place + 3]
        if there == count and low == high:
            survey.constants[name] = low
        elif not there and KINDS[name] in _MAYBE:
            survey.constants[name] = None
        elif name in _TEXTS and name not in _IDS:
            distinct = connection.execute(
                f'SELECT DISTINCT "{name}" FROM {relation} LIMIT {_MAX_LABELS + 1}'  # noqa: S608
            ).fetchall()
            if len(distinct) <= _MAX_LABELS:
                survey.labels[name] = sorted(value for (value,) in distinct)
                quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in survey.labels[name])
                connection.execute(f'CREATE OR REPLACE TYPE "labels_{name}" AS ENUM ({quoted})')
    return survey


def _constant(name: str, value: Any, count: int) -> np.ndarray[Any, Any]:
    one = _texts_of(name, [value]) if name in _TEXTS else build_column(name, [value])
    return np.broadcast_to(one, (count,))


def _selected(name: str, survey: _Survey) -> str:
    if name in survey.labels:
        return f'enum_code("{name}"::"labels_{name}")::INTEGER AS "{name}"'
    if KINDS[name] in (ColumnKind.MAYBE_INTEGER, ColumnKind.MAYBE_BOOLEAN):
        return f'"{name}"::DOUBLE AS "{name}"'
    return f'"{name}"'


def _column(name: str, fetched: Any, survey: _Survey) -> np.ndarray[Any, Any]:
    if name in survey.labels:
        return np.take(_texts_of(name, survey.labels[name]), np.asarray(fetched))
    if name in _TEXTS:
        return _texts_of(name, np.asarray(fetched).tolist())
    if not isinstance(fetched, np.ma.MaskedArray):
        return np.asarray(fetched)
    return np.asarray(fetched.filled(np.nan) if fetched.dtype == np.float64 else fetched.data)


def _texts_of(name: str, values: Sequence[str]) -> np.ndarray[Any, Any]:
    if KINDS[name] is not ColumnKind.OBJECT:
        return build_column(name, values)
    # Few distinct texts stand behind many rows; the parsed objects are shared, as frozen records expect.
    parsed = {text: msgspec.json.decode(text) for text in set(values)}
    return build_column(name, [parsed[text] for text in values])


def _timelines(
    connection: duckdb.DuckDBPyConnection, relation: str, ids: np.ndarray[Any, Any]
) -> list[Timeline | None]:
    out: list[Timeline | None] = [None] * len(ids)
    kept = connection.execute(
        "SELECT place, request_id, timeline_at_ns, timeline_kind, timeline_tokens, timeline_thinned "  # noqa: S608
        "FROM (SELECT row_number() OVER () - 1 AS place, request_id, timeline_at_ns, timeline_kind, timeline_tokens, "
        f"timeline_thinned FROM {relation}) WHERE timeline_at_ns IS NOT NULL"
    )
    while rows := kept.fetchmany(_TIMELINES_AT_ONCE):
        for row, request, at_ns, kind, tokens, thinned in rows:
            if ids[row] != request:
                # A timeline at another request would be worse than none: the order that we rely on did not hold.
                raise RuntimeError(f"timelines and records were read in different orders (row {row})")
            out[row] = Timeline(at_ns=at_ns, kind=kind, tokens=tokens, thinned=thinned)
    return out
