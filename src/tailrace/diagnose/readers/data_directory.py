"""A gateway's data directory: its records, with their timelines, and what its writers dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tailrace.model.errors import InputError
from tailrace.store.query import RecordStore
from tailrace.store.table import RecordTable

__all__ = ["read_directory"]

NEWEST: Final = 1_000_000
"""Records that are read at most; the newest."""


def read_directory(path: Path) -> tuple[RecordTable, float]:
    """(the newest records of the gateway and of services before it, share of records that were dropped).

    InputError when it is no data directory or empty.
    """
    store = RecordStore(path)
    vantages = [store.table(limit=NEWEST, with_timelines=True, vantage=name) for name in ("gateway", "application")]
    table = RecordTable.concat(vantages)
    if not len(table):
        raise InputError("there is no record in it yet", place=str(path), remedy="Send requests through the gateway.")
    dropped = sum(value for name, value in store.counters().items() if name.startswith("dropped"))
    return table, dropped / (dropped + len(table))
