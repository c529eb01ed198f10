"""Records of two vantages in one table are two records of one request: whoever counts must take one of them."""

from __future__ import annotations

import numpy as np

from tailrace.store.table import RecordTable

__all__ = ["APPLICATION", "one_vantage", "split_applications"]

APPLICATION = "application"


def split_applications(table: RecordTable) -> tuple[RecordTable, RecordTable]:
    """(records of everybody else, records of services before the gateway)."""
    mine = (table.column("vantage") == APPLICATION).astype(bool)
    if not mine.any():
        return table, table.where(np.zeros(0, dtype=np.int64))
    return table.where(~mine), table.where(mine)


def one_vantage(table: RecordTable) -> RecordTable:
    """The table without the records of services, unless it has no others."""
    others, applications = split_applications(table)
    return others if len(others) else applications
