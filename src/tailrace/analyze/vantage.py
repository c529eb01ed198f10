"""Records of two vantages in one table are two records of one request: whoever counts must take one of them."""

from __future__ import annotations

import numpy as np

from tailrace.analyze.labels import among
from tailrace.model.record import FROM_CACHE
from tailrace.store.table import RecordTable

__all__ = ["APPLICATION", "one_vantage", "split_applications", "without_cached"]

APPLICATION = "application"


def split_applications(table: RecordTable) -> tuple[RecordTable, RecordTable]:
    """(records of everybody else, records of services before the gateway)."""
    mine = among(table.column("vantage"), {APPLICATION})
    if not mine.any():
        return table, table.where(np.zeros(0, dtype=np.int64))
    return table.where(~mine), table.where(mine)


def one_vantage(table: RecordTable) -> tuple[RecordTable, RecordTable | None]:
    """(the records to count, those of services that stood beside them): the services' own where there are no others."""
    others, applications = split_applications(table)
    if not len(applications):
        return table, None
    return (others, applications) if len(others) else (applications, None)


def without_cached(table: RecordTable) -> RecordTable:
    """The requests that an engine worked for: what came from the response cache would make every engine look better."""
    cached = among(table.column("cache"), FROM_CACHE)
    return table.where(~cached) if cached.any() else table
