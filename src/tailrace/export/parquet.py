"""Records as one Parquet file (zstd), with the columns of the store's segments: see `store.parquet_file`.

And their events as a second one, a row an event, for those who want to join and group instead of unpacking lists.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable

if TYPE_CHECKING:
    import duckdb

__all__ = ["EVENT_COLUMNS", "write_events", "write_parquet"]

EVENT_COLUMNS: Final = ("request_id", "event", "at_ns", "kind", "tokens")
"""Of the file of events: `event` is its number in its stream from 0, `at_ns` counts from the request's start, `kind` is
the name of an `EventKind`, `tokens` is NULL where nobody said how many."""


def write_parquet(table: RecordTable, path: str | Path) -> None:
    """Write the table, timelines included; the file is there whole or not at all. InputError if it cannot be."""
    from tailrace.store.parquet_file import register_table  # noqa: PLC0415  (loaded only where a file is written)

    def select(connection: duckdb.DuckDBPyConnection) -> str:
        return f"{register_table(connection, 'exported', table)} ORDER BY start_unix_ns"

    _write(path, select)


def write_events(table: RecordTable, path: str | Path) -> int:
    """Write every event of the kept timelines, in the order of the rows; how many. As `write_parquet`."""
    lines = [(place, line) for place, line in enumerate(table.timelines) if line is not None and line.at_ns]
    lengths = [len(line.at_ns) for _, line in lines]
    places = [place for place, _ in lines]
    total = sum(lengths)

    def flat(values: Callable[[Timeline], list[int]], dtype: type[np.generic]) -> np.ndarray:
        return np.fromiter((one for _, line in lines for one in values(line)), dtype, total)

    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.array([], np.int64)
    events = {
        "place": np.repeat(np.array(places, np.int64), lengths),
        "event": np.arange(total) - np.repeat(starts, lengths),
        "at_ns": flat(lambda line: line.at_ns, np.int64),
        "kind": flat(lambda line: line.kind, np.int64),
        "tokens": flat(lambda line: line.tokens, np.int64),
    }
    requests = {"place": np.arange(len(table)), "request_id": table.column("request_id")}
    names = "[" + ", ".join(f"'{kind.name.lower()}'" for kind in EventKind) + "]"

    def select(connection: duckdb.DuckDBPyConnection) -> str:
        connection.register("events", events)
        connection.register("requests", requests)
        return (
            f"SELECT request_id, event::INTEGER AS event, at_ns, {names}[kind + 1] AS kind, "  # noqa: S608
            "CASE WHEN tokens < 0 THEN NULL ELSE tokens::INTEGER END AS tokens "
            "FROM events JOIN requests USING (place) ORDER BY place, event"
        )

    _write(path, select)
    return total


def _write(path: str | Path, select: Callable[[duckdb.DuckDBPyConnection], str]) -> None:
    import duckdb  # noqa: PLC0415  (loaded only where a file is written)

    from tailrace.store.parquet_file import connect, copy_to_parquet  # noqa: PLC0415

    final = Path(path)
    if final.is_dir():  # `.` has no name to put an ending to
        raise InputError("Is a directory", place=str(path), remedy="Give --out the name of a file.")
    if final.exists() and not final.is_file():
        # The whole file is put in the place of what was there: a device or a pipe would be gone.
        raise InputError(
            "is no ordinary file, and a Parquet file cannot be written piece by piece",
            place=str(path),
            remedy="Give --out the name of a file; --format csv and jsonl can be piped.",
        )
    temporary = final.with_name(final.name + ".tmp")
    try:
        if not final.parent.is_dir():
            raise FileNotFoundError(2, "No such directory", str(final.parent))
        with connect() as connection:
            copy_to_parquet(connection, select(connection), temporary, final, new_directory=False)
    except (OSError, duckdb.IOException) as error:
        temporary.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"cannot write the Parquet file: {reason}",
            place=str(path),
            remedy="Give --out a path in an existing directory that you may write to.",
        ) from None
