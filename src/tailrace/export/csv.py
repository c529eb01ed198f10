"""Records as CSV: one row a record, durations in milliseconds, for spreadsheets and notebooks.

Columns are the record's fields in its order; `x_ns` is `x_ms` with up to six decimals, so that nothing is rounded;
absent values are empty cells, dicts and lists are JSON. `start_unix_ns` and `parts_ns` stay in nanoseconds. Timelines
do not fit a row and are left out: use JSON lines or Parquet for them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable

__all__ = ["CSV_COLUMNS", "csv_lines"]


def _is_duration(name: str) -> bool:
    return name.endswith("_ns") and name not in {"start_unix_ns", "parts_ns"}


CSV_COLUMNS: Final = tuple(f"{name[:-3]}_ms" if _is_duration(name) else name for name in FIELDS)
"""The header."""
_CHUNK: Final = 1000
_json: Final = msgspec.json.Encoder().encode


def csv_lines(table: RecordTable, *, header: bool = True) -> Iterator[str]:
    """The table as CSV text, in pieces of up to a thousand rows."""
    if header:
        yield _text([CSV_COLUMNS])
    for at in range(0, len(table), _CHUNK):
        part = table.where(np.arange(at, min(at + _CHUNK, len(table))))
        columns = [list(map(_writer_of(name), part.column(name).tolist())) for name in FIELDS]
        yield _text(zip(*columns, strict=True))


def _text(rows: Any) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _writer_of(name: str) -> Callable[[Any], Any]:
    return _milliseconds if _is_duration(name) else _WRITERS.get(KINDS[name], _same)


def _same(value: Any) -> Any:
    return value


def _milliseconds(value: float) -> str:
    if value != value:  # noqa: PLR0124  (NaN: absent)
        return ""
    nanoseconds = int(value)
    sign, whole = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    text = f"{sign}{whole // 1_000_000}.{whole % 1_000_000:06d}".rstrip("0")
    return text.removesuffix(".")


def _maybe(value: float) -> float | str:
    return "" if value != value else value  # noqa: PLR0124


def _maybe_integer(value: float) -> int | str:
    return "" if value != value else int(value)  # noqa: PLR0124


def _maybe_boolean(value: float) -> str:
    return "" if value != value else _boolean(bool(value))  # noqa: PLR0124


def _boolean(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"


def _object(value: Any) -> str:
    return _json(value).decode() if value else ""


_WRITERS: Final[dict[ColumnKind, Callable[[Any], Any]]] = {
    ColumnKind.MAYBE_INTEGER: _maybe_integer,
    ColumnKind.MAYBE_FLOAT: _maybe,
    ColumnKind.MAYBE_BOOLEAN: _maybe_boolean,
    ColumnKind.BOOLEAN: _boolean,
    ColumnKind.OBJECT: _object,
}
