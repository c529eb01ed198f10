"""`tailrace bench --records SOURCE`: a load like the one that the records show."""

from __future__ import annotations

import sys

from tailrace.model.errors import InputError

_SHARE = 0.75


def suggested_concurrency(source: str) -> int:
    """Three quarters of the peak concurrency in `source`; says on stderr what was seen and what it suggests.

    Raises `InputError` for a source that cannot be read or holds no requests.
    """
    from tailrace.analyze.peak_concurrency import peak_concurrency
    from tailrace.app.diagnose import read_any

    tables = [one.table for one in read_any(source) if one.table is not None and len(one.table)]
    if not tables:
        raise InputError(
            "holds no records of requests", place=source, remedy="Give --records a run file, records or their directory"
        )
    found = max((peak_concurrency(table) for table in tables), key=lambda one: one.peak)
    low, high = found.between()
    use = min(max(low, round(found.peak * _SHARE)), high)
    sys.stderr.write(
        f"{source}: at most {found.peak} requests at once ({found.mean:.1f} on average, n = {found.n}); "
        f"a load of {low} to {high} at once is like it. Using --concurrency {use}.\n"
    )
    return use
