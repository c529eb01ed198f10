"""Amendments in SQL and in Parquet: one column a field, as `parquet_file` does it for records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.model.amendment import Amendment

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "AMENDMENT_TYPES",
    "decode_amendments",
    "encode_amendments",
    "fetch_amendments",
    "register_amendments",
    "select_amendments",
]

_INFO: Final = {info.name: info for info in msgspec.structs.fields(Amendment)}
_DICTS: Final = frozenset({"parts_ns", "sources"})
_TEXTS: Final = frozenset({"origin", "request_id", "trace_id", "parent_span_id", "span_id", "finish_reason"})
AMENDMENT_TYPES: Final = {name: "VARCHAR" if name in _DICTS | _TEXTS else "BIGINT" for name in _INFO}
"""Field -> SQL type; dicts are JSON text."""
_json: Final = msgspec.json.Encoder().encode

encode_amendments: Final = msgspec.msgpack.Encoder().encode
"""A list of amendments as one batch of the hot tier: what is absent costs nothing, and fields go by their names."""
decode_amendments: Final = msgspec.msgpack.Decoder(list[Amendment]).decode
"""The inverse; fields that this Tailrace does not know are left out."""


def register_amendments(connection: duckdb.DuckDBPyConnection, view: str, amendments: Sequence[Amendment]) -> str:
    """Register amendments as `view`; returns the SELECT that gives their columns the SQL types."""
    arrays: dict[str, Any] = {}
    chosen: list[str] = []
    for name, sql_type in AMENDMENT_TYPES.items():
        values = [getattr(one, name) for one in amendments]
        if sql_type == "BIGINT":
            absent = np.array([value is None for value in values], dtype=bool)
            numbers = np.array([value or 0 for value in values], dtype=np.int64)
            arrays[name] = np.ma.MaskedArray(numbers, absent) if absent.any() else numbers
        else:
            column = np.empty(len(values), dtype=object)
            column[:] = [_json(value).decode() for value in values] if name in _DICTS else values
            arrays[name] = column
        chosen.append(f'"{name}"::{sql_type} AS "{name}"')
    connection.register(view, arrays)
    return f"SELECT {', '.join(chosen)} FROM {view}"  # noqa: S608  (names are the amendment's fields)


def select_amendments(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> str:
    """The SELECT that reads segments of amendments with the columns of today's amendment; absent ones are NULL."""
    files = "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"
    found = {
        name
        for (name,) in connection.execute(f"SELECT DISTINCT name FROM parquet_schema({files})").fetchall()  # noqa: S608
    }
    chosen = [
        f'"{name}"' if name in found else f'NULL::{sql_type} AS "{name}"' for name, sql_type in AMENDMENT_TYPES.items()
    ]
    return f"SELECT {', '.join(chosen)} FROM read_parquet({files}, union_by_name = true)"  # noqa: S608


def fetch_amendments(connection: duckdb.DuckDBPyConnection, select: str) -> list[Amendment]:
    """The rows of a SELECT with an amendment's columns."""
    rows = connection.execute(f"SELECT {', '.join(AMENDMENT_TYPES)} FROM ({select})").fetchall()  # noqa: S608
    parsed: dict[str, dict[str, Any]] = {}
    return [_amendment(row, parsed) for row in rows]


def _amendment(row: Sequence[Any], parsed: dict[str, dict[str, Any]]) -> Amendment:
    fields: dict[str, Any] = {}
    for name, value in zip(AMENDMENT_TYPES, row, strict=True):
        if value is None:
            continue
        if name in _DICTS:
            found = parsed.get(value)
            if found is None:
                # Few texts stand behind many rows; the parsed dicts are shared, as frozen structs expect.
                found = parsed[value] = json.loads(value)
            fields[name] = found
        else:
            fields[name] = value
    return Amendment(**fields)
