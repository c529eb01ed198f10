"""A table of requests, or of moments, as one arm: the medians of its columns, for what compares numbers of one run."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.moments import middle
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.readers.heading import heading

__all__ = ["with_whole_tables"]

FEWEST: Final = 3
FEWEST_LINES: Final = 10
"""Of an access log, which has thousands: a handful may be any."""
_TIMED: Final = re.compile(r"(?:^|_)(?:overhead|lag|blocked|connect|delay|write|callback)")
"""Durations that no vocabulary has: readers keep them in ms."""


@asked_once
def with_whole_tables(observed: Observed) -> list[Arm]:
    """The arms, then one for each table with a row a request or a moment."""
    tables = [rows for kind in ("requests", "access", "moments") for rows in observed.table(kind)]
    return [*observed.arms, *(arm for rows in tables if (arm := _of(rows)) is not None), *middle(observed)]


def _of(rows: Rows) -> Arm | None:
    values: dict[str, Quoted] = {}
    for name, column in rows.columns.items():
        head = heading(name)
        known_name = head.quantity in QUANTITIES
        if column.dtype == object or head.change or not (known_name or _TIMED.search(name)):
            continue
        known = column[np.isfinite(column)]
        if known.size < (FEWEST_LINES if rows.kind == "access" else FEWEST):
            continue
        unit = QUANTITIES[head.quantity].unit if known_name else "ms"
        item = Quoted(
            quantity=head.quantity if known_name else name,
            stat="p50",
            value=round(float(np.median(known)), 3),
            unit=unit,
            place=rows.place,
            qualifier=head.qualifier,
            label=name.replace("_", " "),
        )
        values.setdefault(item.key if not head.qualifier else f"{item.key}@{head.qualifier}", item)
    name = f"median of {len(rows)} rows"
    return Arm(name=name, label=name, values=values, place=rows.place) if values else None
