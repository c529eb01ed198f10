"""Fetching: rows in DuckDB back into a `RecordTable`, without a Python object for every cell.

A record has three dozen text columns, most of which say the same thing in every row, and as many numbers that nobody
saw. Fetched naively, a million records are two gigabytes of equal strings and one of NaN; here a column of one value is
one value (an array without strides), and a column of few texts is fetched as codes. Columns come a few at a time, so
that a relation that is a view over files never is in memory as a whole. What the files' own statistics say of a column
need not be looked for in its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable, build_column
from tailrace.store.timelines import Packed, Timelines

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


class _Survey(msgspec.Struct, frozen=True):
    """Columns that need not be fetched as they are: those of one value, and texts of few (sorted)."""

    constants: dict[str, Any] = {}
    """The value; `None` where the column is absent in every row."""
    labels: dict[str, list[str]] = {}


def fetch_table(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    *,
    with_timelines: bool,
    alike: Collection[str] | None = None,
) -> RecordTable:
    """The relation (a temporary table or view with columns of `parquet_file`), in its order, as numpy columns.

    `alike`: columns that are known to say the same in every row (`parquet_file.alike_in`), so that no other needs to be
    asked; without it, all are.
    """
    columns = fetch_columns(connection, relation, FIELDS, alike=alike)
    rows = len(columns["request_id"])
    return RecordTable(columns, _timelines(connection, relation, rows) if with_timelines and rows else None)


def fetch_columns(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    names: Sequence[str],
    *,
    alike: Collection[str] | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Some columns of the relation, in its order, laid out as those of a `RecordTable`. `alike` as for `fetch_table`.

    DuckDB keeps the order of files and of a table's rows in every query alike (its `preserve_insertion_order`).
    """
    found = connection.execute(f"SELECT count(*) FROM {relation}").fetchone()  # noqa: S608
    count = found[0] if found else 0
    if not count:
        empty = RecordTable.empty().columns
        return {name: empty[name] for name in names}
    survey = _Survey()
    if count >= _SHARED_ROWS:
        survey = _Survey(constants={}, labels={})
        if alike is None:
            _compare(connection, relation, names, count, survey)
        else:
            _first(connection, relation, [name for name in names if name in alike], survey)
        _label(connection, relation, names, survey)
    out = {name: _constant(name, value, count) for name, value in survey.constants.items()}
    wanted = iter([name for name in names if name not in survey.constants])
    while some := list(itertools.islice(wanted, _AT_ONCE)):
        chosen = ", ".join(_selected(name, survey) for name in some)
        fetched = connection.execute(f"SELECT {chosen} FROM {relation}").fetchnumpy()  # noqa: S608
        out |= {name: _column(name, fetched[name], survey) for name in some}
    return {name: out[name] for name in names}


def _compare(
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], count: int, survey: _Survey
) -> None:
    """Find the columns of one value among the values."""
    ends = connection.execute(
        "SELECT " + ", ".join(f'min("{name}"), max("{name}"), count("{name}")' for name in names) + f" FROM {relation}"  # noqa: S608
    ).fetchone()
    if ends is None:
        return
    for place, name in enumerate(names):
        low, high, there = ends[3 * place : 3 * place + 3]
        if there == count and low == high:
            survey.constants[name] = low
        elif not there and KINDS[name] in _MAYBE:
            survey.constants[name] = None


def _first(connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], survey: _Survey) -> None:
    """Columns that are known to have one value: what it is."""
    if names:
        chosen = ", ".join(f'"{name}"' for name in names)
        row = connection.execute(f"SELECT {chosen} FROM {relation} LIMIT 1").fetchone()  # noqa: S608
        survey.constants.update(zip(names, row or (), strict=bool(row)))


def _label(connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], survey: _Survey) -> None:
    """Texts of few values become codes."""
    for name in names:
        if name not in _TEXTS or name in _IDS or name in survey.constants:
            continue
        distinct = connection.execute(
            f'SELECT DISTINCT "{name}" FROM {relation} LIMIT {_MAX_LABELS + 1}'  # noqa: S608
        ).fetchall()
        if len(distinct) == 1:
            survey.constants[name] = distinct[0][0]
        elif len(distinct) <= _MAX_LABELS:
            survey.labels[name] = sorted(value for (value,) in distinct)
            quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in survey.labels[name])
            connection.execute(f'CREATE OR REPLACE TYPE "labels_{name}" AS ENUM ({quoted})')


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


def _timelines(connection: duckdb.DuckDBPyConnection, relation: str, rows: int) -> Timelines:
    """The timelines of all rows, as flat arrays: first how long each is, then all events one after the other."""
    found = connection.execute(
        "SELECT coalesce(len(timeline_at_ns), -1)::BIGINT AS size, coalesce(timeline_thinned, 0)::BIGINT AS thinned, "  # noqa: S608
        f"coalesce(timeline_at_ns[1], -1)::BIGINT AS first FROM {relation}"
    ).fetchnumpy()
    size, thinned, first = (np.asarray(found[name]) for name in ("size", "thinned", "first"))
    kept = np.flatnonzero(size >= 0)
    if not kept.size:
        return Timelines.none(rows)
    flat = connection.execute(
        "SELECT unnest(timeline_at_ns) AS at_ns, unnest(timeline_kind) AS kind, unnest(timeline_tokens) AS tokens "  # noqa: S608
        f"FROM {relation} WHERE timeline_at_ns IS NOT NULL"
    ).fetchnumpy()
    at_ns, kind, tokens = (np.asarray(flat[name]) for name in ("at_ns", "kind", "tokens"))
    ends = np.cumsum(size[kept])
    begins = ends - size[kept]
    some = size[kept] > 0
    if at_ns.size != ends[-1] or len(size) != rows or (at_ns[begins[some]] != first[kept][some]).any():
        # A timeline at another request would be worse than none: the order that we rely on did not hold.
        raise RuntimeError("timelines and records were read in different orders")
    slot = np.full(rows, -1, dtype=np.int64)
    slot[kept] = np.arange(kept.size)
    return Timelines(slot, Packed(np.concatenate([[0], ends]), at_ns, kind, tokens, thinned[kept], {}))
