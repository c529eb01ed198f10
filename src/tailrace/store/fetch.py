"""Fetching: rows in DuckDB back into a `RecordTable`, without a Python string for every cell.

A record has three dozen text columns, most of which say the same thing in every row. Fetched naively, a million
records are two gigabytes of equal strings; here a column of one value is one string, and a column of few values is
fetched as codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.model.timeline import Timeline
from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable, build_column

if TYPE_CHECKING:
    import duckdb

__all__ = ["fetch_columns", "fetch_table"]

_TEXTS: Final = tuple(name for name in FIELDS if KINDS[name] in (ColumnKind.TEXT, ColumnKind.ENUM, ColumnKind.OBJECT))
_IDS: Final = frozenset({"request_id", "client_request_id", "trace_id", "session_id", "parent_id"})
_SHARED_TEXT_ROWS: Final = 5_000
"""Below this, looking for equal texts costs more than the texts."""
_MAX_LABELS: Final = 4096


class _Texts(msgspec.Struct, frozen=True):
    """Text columns that need not be fetched as text: those of one value, and those of few (sorted)."""

    constants: dict[str, str] = {}
    labels: dict[str, list[str]] = {}


def fetch_table(connection: duckdb.DuckDBPyConnection, relation: str, *, with_timelines: bool) -> RecordTable:
    """The temporary table `relation` (columns of `parquet_file`), in its order, as numpy columns."""
    columns = fetch_columns(connection, relation, FIELDS)
    timelines = _timelines(connection, relation, len(columns[FIELDS[0]])) if with_timelines else None
    return RecordTable(columns, timelines)


def fetch_columns(
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Some columns of the temporary table `relation`, in its order, laid out as those of a `RecordTable`."""
    found = connection.execute(f"SELECT count(*) FROM {relation}").fetchone()  # noqa: S608
    count = found[0] if found else 0
    if not count:
        empty = RecordTable.empty().columns
        return {name: empty[name] for name in names}
    survey = [name for name in _TEXTS if name in names] if count >= _SHARED_TEXT_ROWS else []
    texts = _survey(connection, relation, survey) if survey else _Texts()
    chosen = ", ".join(_selected(name, texts) for name in names if name not in texts.constants)
    fetched = connection.execute(f"SELECT {chosen} FROM {relation} ORDER BY rowid").fetchnumpy()  # noqa: S608
    return {name: _column(name, fetched.get(name), texts, count) for name in names}


def _survey(connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str]) -> _Texts:
    ends = connection.execute(
        "SELECT " + ", ".join(f'min("{name}"), max("{name}")' for name in names) + f" FROM {relation}"  # noqa: S608
    ).fetchone()
    if ends is None:
        return _Texts()
    texts = _Texts(constants={}, labels={})
    for place, name in enumerate(names):
        if ends[2 * place] == ends[2 * place + 1]:
            texts.constants[name] = ends[2 * place]
        elif name not in _IDS:
            distinct = connection.execute(
                f'SELECT DISTINCT "{name}" FROM {relation} LIMIT {_MAX_LABELS + 1}'  # noqa: S608
            ).fetchall()
            if len(distinct) <= _MAX_LABELS:
                texts.labels[name] = sorted(value for (value,) in distinct)
                quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in texts.labels[name])
                connection.execute(f'CREATE OR REPLACE TYPE "labels_{name}" AS ENUM ({quoted})')
    return texts


def _selected(name: str, texts: _Texts) -> str:
    if name in texts.labels:
        return f'enum_code("{name}"::"labels_{name}")::INTEGER AS "{name}"'
    if KINDS[name] in (ColumnKind.MAYBE_INTEGER, ColumnKind.MAYBE_BOOLEAN):
        return f'"{name}"::DOUBLE AS "{name}"'
    return f'"{name}"'


def _column(name: str, fetched: Any, texts: _Texts, count: int) -> np.ndarray[Any, Any]:
    if name in texts.constants:
        return np.repeat(_texts_of(name, [texts.constants[name]]), count)
    if name in texts.labels:
        return np.take(_texts_of(name, texts.labels[name]), np.asarray(fetched))
    if KINDS[name] in (ColumnKind.TEXT, ColumnKind.ENUM, ColumnKind.OBJECT):
        return _texts_of(name, np.asarray(fetched).tolist())
    if not isinstance(fetched, np.ma.MaskedArray):
        return np.asarray(fetched)
    return np.asarray(fetched.filled(np.nan) if fetched.dtype == np.float64 else fetched.data)


def _texts_of(name: str, values: Sequence[str]) -> np.ndarray[Any, Any]:
    if KINDS[name] is not ColumnKind.OBJECT:
        return build_column(name, values)
    # Few distinct texts stand behind many rows; the parsed objects are shared, as frozen records expect.
    parsed = {text: json.loads(text) for text in set(values)}
    return build_column(name, [parsed[text] for text in values])


def _timelines(connection: duckdb.DuckDBPyConnection, relation: str, count: int) -> list[Timeline | None]:
    out: list[Timeline | None] = [None] * count
    kept = connection.execute(
        "SELECT rowid, timeline_at_ns, timeline_kind, timeline_tokens, timeline_thinned "  # noqa: S608
        f"FROM {relation} WHERE timeline_at_ns IS NOT NULL"
    )
    for row, at_ns, kind, tokens, thinned in kept.fetchall():
        out[row] = Timeline(at_ns=at_ns, kind=kind, tokens=tokens, thinned=thinned)
    return out
