"""Requests of a small class, each against itself: the same request in both runs of the same arrivals.

Nine documents have no p90, but if nine of nine waited longer than before, that is no accident.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import completed
from tailrace.analyze.classes import Classes
from tailrace.analyze.timebase import starts_ns
from tailrace.store.table import RecordTable

__all__ = ["MIN_MATCHED", "Matched", "matched_change"]

MIN_MATCHED: Final = 6
"""Six of six is the least that a two-sided sign test calls significant (p = 0.03)."""


class Matched(NamedTuple):
    """One metric of one class, request by request (ms)."""

    n: int
    rose: int
    fell: int
    a: float
    """Median in A."""
    b: float
    p_value: float
    """Exact two-sided sign test; ties are left out."""


def matched_change(a: RecordTable, b: RecordTable, classes: Classes, name: str, metric: str) -> Matched | None:
    """Match the requests of class `name` by their place in the schedule. None where fewer than six can be matched.

    Both tables must hold the same arrivals (`same_work`).
    """
    order = [_order(table) for table in (a, b)]
    if order[0].size != order[1].size:
        return None
    label = [classes.labels[i].astype(str)[order[i]] for i in (0, 1)]
    keep = (label[0] == name) & (label[1] == name)
    values = []
    for table, rows in ((a, order[0]), (b, order[1])):
        column = np.where(completed(table), table.ms(metric), np.nan)[rows]
        keep &= ~np.isnan(column)
        values.append(column)
    one, two = values[0][keep], values[1][keep]
    rose, fell = int((two > one).sum()), int((two < one).sum())
    if rose + fell < MIN_MATCHED:
        return None
    from scipy.special import bdtr  # noqa: PLC0415  (scipy is loaded only where it is used)

    p_value = min(1.0, 2.0 * float(bdtr(min(rose, fell), rose + fell, 0.5)))
    return Matched(one.size, rose, fell, float(np.median(one)), float(np.median(two)), p_value)


def _order(table: RecordTable) -> NDArray[np.int64]:
    """Rows in the order of the schedule: by the intended time where it is known, else by the start."""
    offsets = table.column("run_offset_ns")
    times = starts_ns(table) if np.isnan(offsets).any() else offsets
    ordered: NDArray[np.int64] = np.argsort(times, kind="stable")
    return ordered
