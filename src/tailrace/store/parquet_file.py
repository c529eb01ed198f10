"""Record columns in SQL and in Parquet: the types, and writing a file that is whole or not there at all.

In SQL a record's columns have the names of its fields. Absent values are NULL, enumerations and text are VARCHAR,
dicts and lists are JSON text, the timeline is four columns (`timeline_at_ns`, `timeline_kind`, `timeline_tokens`,
`timeline_thinned`), so that any Parquet reader can use the files without Tailrace.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.store.batch import Columns, Constant
from tailrace.store.hot import ignore_step
from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable, build_column, default_of

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "SQL_TYPES",
    "TIMELINE_TYPES",
    "alike_in",
    "connect",
    "copy_to_parquet",
    "register_arrays",
    "register_columns",
    "register_table",
    "select_segments",
]

SQL_TYPES: Final[dict[str, str]] = {
    name: {
        ColumnKind.INTEGER: "BIGINT",
        ColumnKind.MAYBE_INTEGER: "BIGINT",
        ColumnKind.FLOAT: "DOUBLE",
        ColumnKind.MAYBE_FLOAT: "DOUBLE",
        ColumnKind.BOOLEAN: "BOOLEAN",
        ColumnKind.MAYBE_BOOLEAN: "BOOLEAN",
        ColumnKind.TEXT: "VARCHAR",
        ColumnKind.ENUM: "VARCHAR",
        ColumnKind.OBJECT: "VARCHAR",
    }[kind]
    for name, kind in KINDS.items()
}
"""Field -> SQL type, in the record's order."""
TIMELINE_TYPES: Final = {
    "timeline_at_ns": "BIGINT[]",
    "timeline_kind": "TINYINT[]",
    "timeline_tokens": "INTEGER[]",
    "timeline_thinned": "BIGINT",
}
_NULLABLE: Final = {ColumnKind.MAYBE_INTEGER, ColumnKind.MAYBE_FLOAT, ColumnKind.MAYBE_BOOLEAN}
_json: Final = msgspec.json.Encoder().encode


def connect(*, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB that lives in memory and touches no file but those named to it."""
    import duckdb  # noqa: PLC0415  (69 MB: loaded where a query or a segment needs it, never in the gateway)

    settings: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": False}
    if threads is not None:
        settings["threads"] = threads
    return duckdb.connect(":memory:", config=settings)


def _literal(value: Any, sql_type: str) -> str:
    if value is None or (sql_type == "BIGINT" and not -(2**63) <= value < 2**63):
        return f"NULL::{sql_type}"
    if isinstance(value, bool):
        return f"{str(value).upper()}::{sql_type}"
    if isinstance(value, (dict, list)):
        value = _json(value).decode()
    return "'" + str(value).replace("'", "''") + f"'::{sql_type}"


def _from_numpy(name: str, array: np.ndarray[Any, Any]) -> str:
    kind, sql_type = KINDS[name], SQL_TYPES[name]
    if kind in _NULLABLE and array.dtype == np.float64:
        # NaN would sort above every number and poison quantiles; NULL is what absence means in SQL.
        return f'CASE WHEN isnan("{name}") THEN NULL ELSE TRY_CAST("{name}" AS {sql_type}) END AS "{name}"'
    return f'"{name}"::{sql_type} AS "{name}"'


def _array_of(name: str, values: list[Any]) -> np.ndarray[Any, Any]:
    kind = KINDS[name]
    if kind is ColumnKind.OBJECT:
        return _json_texts(values)
    if kind is ColumnKind.MAYBE_INTEGER:
        # Mostly all are there: then 64-bit integers are exact over their whole range and need no NULL test.
        try:
            return np.array(values, dtype=np.int64)
        except (TypeError, OverflowError):
            pass
    return build_column(name, values)


def _json_texts(values: list[Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = [_json(value).decode() for value in values]
    return out


_TIMELINE_SELECT: Final = (
    "timelines.at_ns AS timeline_at_ns, timelines.kind AS timeline_kind, timelines.tokens AS timeline_tokens, "
    "timelines.thinned AS timeline_thinned"
)
_NO_TIMELINES: Final = ", ".join(f'NULL::{sql_type} AS "{name}"' for name, sql_type in TIMELINE_TYPES.items())


def _timeline_join(connection: duckdb.DuckDBPyConnection, view: str, timelines: Sequence[Any]) -> str:
    """Register kept timelines (dicts, `None` where not kept) as flat events; returns the join that makes lists of them.

    DuckDB takes object arrays of lists too, but inspects each element twice: four times the cost of flat arrays.
    """
    rows = [row for row, timeline in enumerate(timelines) if timeline is not None]
    kept = [timelines[row] for row in rows]
    lengths = [len(timeline.get("at_ns", ())) for timeline in kept]
    total = sum(lengths)

    def flat(key: str, dtype: Any) -> np.ndarray[Any, Any]:
        return np.fromiter(itertools.chain.from_iterable(timeline.get(key, ()) for timeline in kept), dtype, total)

    place = np.array(rows, dtype=np.int64)
    thinned = np.array([timeline.get("thinned", 0) for timeline in kept], dtype=np.int64)
    connection.register(f"{view}_kept", {"place": place, "thinned": thinned})
    events = {
        "place": np.repeat(place, lengths),
        "step": np.arange(total),
        "at_ns": flat("at_ns", np.int64),
        "kind": flat("kind", np.int8),
        "tokens": flat("tokens", np.int32),
    }
    connection.register(f"{view}_events", events)
    # An empty timeline has no events, yet it was kept: hence the second join and the empty lists.
    return (
        f"LEFT JOIN (SELECT kept.place, coalesce(lists.at_ns, []::BIGINT[]) AS at_ns, "  # noqa: S608
        f"coalesce(lists.kind, []::TINYINT[]) AS kind, coalesce(lists.tokens, []::INTEGER[]) AS tokens, kept.thinned "
        f"FROM {view}_kept AS kept LEFT JOIN (SELECT place, list(at_ns ORDER BY step) AS at_ns, "
        f"list(kind ORDER BY step) AS kind, list(tokens ORDER BY step) AS tokens "
        f"FROM {view}_events GROUP BY place) AS lists ON kept.place = lists.place) AS timelines "
        f"ON {view}.place = timelines.place"
    )


def register_columns(connection: duckdb.DuckDBPyConnection, view: str, columns: Columns, rows: int) -> str:
    """Register decoded batches as `view`; returns the SELECT that gives them their SQL types.

    Columns of one value become literals, which costs nothing a row.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {"place": np.arange(rows)}
    chosen: list[str] = []
    for name in FIELDS:
        values = columns[name]
        if isinstance(values, Constant):
            chosen.append(f'{_literal(values.value, SQL_TYPES[name])} AS "{name}"')
            continue
        arrays[name] = _array_of(name, values)
        chosen.append(_from_numpy(name, arrays[name]))
    kept = columns["timeline"]
    timelines = [kept.value] * rows if isinstance(kept, Constant) else kept
    return _register(connection, view, arrays, chosen, timelines)


def register_table(connection: duckdb.DuckDBPyConnection, view: str, table: RecordTable) -> str:
    """Register a `RecordTable` as `view`; returns the SELECT that gives its columns their SQL types."""
    columns: Mapping[str, np.ndarray[Any, Any]] = table.columns
    arrays = {
        name: _json_texts(list(columns[name])) if KINDS[name] is ColumnKind.OBJECT else columns[name] for name in FIELDS
    }
    arrays["place"] = np.arange(len(table))
    timelines = [None if line is None else msgspec.structs.asdict(line) for line in table.timelines]
    chosen = [_from_numpy(name, arrays[name]) for name in FIELDS]
    return _register(connection, view, arrays, chosen, timelines)


def register_arrays(
    connection: duckdb.DuckDBPyConnection, view: str, columns: Mapping[str, np.ndarray[Any, Any]]
) -> str:
    """Register some columns of a table as `view`; returns the SELECT that gives them their SQL types."""
    arrays = {
        name: _json_texts(list(column)) if KINDS[name] is ColumnKind.OBJECT else column
        for name, column in columns.items()
    }
    connection.register(view, arrays)
    chosen = ", ".join(_from_numpy(name, array) for name, array in arrays.items())
    return f"SELECT {chosen} FROM {view}"  # noqa: S608  (names are the record's fields)


def _register(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    arrays: dict[str, np.ndarray[Any, Any]],
    chosen: list[str],
    timelines: Sequence[Any],
) -> str:
    connection.register(view, arrays)
    if all(timeline is None for timeline in timelines):
        return f"SELECT {', '.join(chosen)}, {_NO_TIMELINES} FROM {view}"  # noqa: S608  (names are the record's fields)
    join = _timeline_join(connection, view, timelines)
    return f"SELECT {', '.join(chosen)}, {_TIMELINE_SELECT} FROM {view} {join}"  # noqa: S608


def select_segments(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> str:
    """The SELECT that reads segments as one relation with the columns of today's record.

    A file written before a field was added lacks its column; the field's default stands in, as it does for a record.
    """
    files = "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"
    in_files = dict(
        connection.execute(
            f"SELECT name, count(DISTINCT file_name) FROM parquet_schema({files}) GROUP BY name"  # noqa: S608
        ).fetchall()
    )
    chosen: list[str] = []
    for name, sql_type in SQL_TYPES.items():
        default = _literal(default_of(name), sql_type)
        found = in_files.get(name, 0)
        if found == len(paths) or (found and KINDS[name] in _NULLABLE):
            chosen.append(f'"{name}"')
        elif found:
            chosen.append(f'coalesce("{name}", {default}) AS "{name}"')
        else:
            chosen.append(f'{default} AS "{name}"')
    for name, sql_type in TIMELINE_TYPES.items():
        chosen.append(f'"{name}"' if in_files.get(name) else f'NULL::{sql_type} AS "{name}"')
    by_name = ", union_by_name = true" if len(paths) > 1 else ""
    return f"SELECT {', '.join(chosen)} FROM read_parquet({files}{by_name})"  # noqa: S608


def alike_in(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> frozenset[str]:
    """The columns that say the same in every row of these segments, as the files' own statistics know: a few
    milliseconds, where asking a million rows takes a second. One that is not named may be alike all the same.
    """
    files = "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"
    # Statistics leave out a NaN: fractions count only where all of them are absent.
    named = connection.execute(
        "SELECT path_in_schema FROM (SELECT path_in_schema, count(*) AS blocks, sum(num_values) AS rows, "  # noqa: S608
        "sum(stats_null_count) AS absent, count(stats_null_count) AS counted, "
        "bool_and(stats_min_value IS NOT NULL AND min_is_exact AND max_is_exact) AS exact, "
        "min(stats_min_value) AS low, max(stats_max_value) AS high, any_value(type) AS type "
        f"FROM parquet_metadata({files}) GROUP BY path_in_schema) "
        "WHERE counted = blocks AND (absent = rows OR (absent = 0 AND exact AND low = high AND type <> 'DOUBLE')) "
        f"AND rows = (SELECT sum(num_rows) FROM parquet_file_metadata({files}))"
    ).fetchall()
    return frozenset(name for (name,) in named if name in SQL_TYPES)


def copy_to_parquet(
    connection: duckdb.DuckDBPyConnection,
    select: str,
    temporary: Path,
    final: Path,
    *,
    new_directory: bool = True,
    before_rename: Callable[[], None] = lambda: None,
    on_step: Callable[[str], None] = ignore_step,
) -> None:
    """Write the rows of `select` to `final`, which then is on disk whole, or is not there.

    Temporary file, fsync, `before_rename`, rename, fsync of the directory. Raises OSError or `duckdb.Error`.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    on_step("before_write")
    target = str(temporary).replace("'", "''")
    connection.execute(
        f"COPY ({select}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, PARQUET_VERSION v2)"
    )
    on_step("after_write")
    _fsync(temporary)
    before_rename()
    on_step("before_rename")
    temporary.rename(final)
    on_step("after_rename")
    _fsync(final.parent)
    if new_directory:
        # A day directory may be new itself; its own entry must last as well.
        _fsync(final.parent.parent)
    on_step("after_fsync")


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
