"""Records as one Parquet file (zstd), with the columns of the store's segments: see `store.parquet_file`."""

from __future__ import annotations

from pathlib import Path

from tailrace.model.errors import InputError
from tailrace.store.table import RecordTable

__all__ = ["write_parquet"]


def write_parquet(table: RecordTable, path: str | Path) -> None:
    """Write the table, timelines included; the file is there whole or not at all. InputError if it cannot be."""
    import duckdb  # noqa: PLC0415  (loaded only where a file is written)

    from tailrace.store.parquet_file import connect, copy_to_parquet, register_table  # noqa: PLC0415

    final = Path(path)
    temporary = final.with_name(final.name + ".tmp")
    try:
        if final.is_dir():
            raise IsADirectoryError(21, "Is a directory", str(final))
        if not final.parent.is_dir():
            raise FileNotFoundError(2, "No such directory", str(final.parent))
        with connect() as connection:
            select = register_table(connection, "exported", table)
            copy_to_parquet(connection, f"{select} ORDER BY start_unix_ns", temporary, final, new_directory=False)
    except (OSError, duckdb.IOException) as error:
        temporary.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"cannot write the Parquet file: {reason}",
            place=str(path),
            remedy="Give --out a path in an existing directory that you may write to.",
        ) from None
