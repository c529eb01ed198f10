"""One request with everything around it, from whatever holds its record: a data directory, a run, a live gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from tailrace.analyze.explanation import Explanation, explain, worst_row
from tailrace.analyze.timebase import timed
from tailrace.app.diagnose import is_url, read_any
from tailrace.model.errors import InputError
from tailrace.store.query import RecordStore
from tailrace.store.table import RecordTable

__all__ = ["WORST", "explain_request", "find_request"]

WORST: Final = "worst"
"""In the place of an id: the request whose reader waited longest at one time."""
_AROUND_NS: Final = 600_000_000_000
"""What is read before a request began and after it ended: whoever was under way then lives no longer than that."""
_MOST: Final = 200_000


def find_request(request_id: str, source: str, *, token: str = "", partial: bool = False) -> tuple[RecordTable, int]:
    """(the requests around it, its row). By our id or the client's; `worst` finds one by itself.

    InputError when there is no such request, or no record at all.
    """
    if not request_id.strip():  # requests whose client named none have an empty one, too
        raise InputError("an empty id names no request", remedy="Give one, or `worst`.")
    table = _around(request_id, source, token=token, partial=partial)
    if not len(table):
        raise InputError("it holds no records of requests", place=source, remedy="Give a run file or records.")
    if request_id == WORST:
        try:
            return table, worst_row(table)
        except ValueError as error:
            raise InputError(str(error), place=source) from None
    for name in ("request_id", "client_request_id"):
        rows = np.flatnonzero(table.column(name).astype(str) == request_id)
        if rows.size:
            return table, int(rows[-1])
    raise InputError(
        f"there is no request {request_id!r} among {len(table)} records",
        place=source,
        remedy="`tailrace records query --slowest 10` lists ids; `worst` stands for the longest wait.",
    )


def _around(request_id: str, source: str, *, token: str, partial: bool) -> RecordTable:
    if not is_url(source) and Path(source).is_dir() and request_id != WORST:
        store = RecordStore(source)
        record = store.get(request_id)
        if record is None:
            return store.table(limit=_MOST, with_timelines=True)
        since, until = record.start_unix_ns - _AROUND_NS, record.start_unix_ns + record.e2e_ns + _AROUND_NS
        return store.table(since, until, _MOST, with_timelines=True)
    tables = [one.table for one in read_any(source, token=token, allow_partial=partial) if one.table is not None]
    if not tables:
        raise InputError("it holds no records of requests", place=source, remedy="Give a run file or records.")
    return tables[0]


def explain_request(request_id: str, source: str, *, token: str = "", partial: bool = False) -> Explanation:
    """Explain it. InputError as `find_request`, and where the source does not say when requests began."""
    table, row = find_request(request_id, source, token=token, partial=partial)
    if not timed(table):
        raise InputError(
            "it does not say when its requests began, so nobody can be laid beside another",
            place=source,
            remedy="Give a run file of `tailrace bench`, or a gateway's records.",
        )
    return explain(table, row)
