"""A table of requests, or of moments, as one arm: the medians of its columns, for what compares numbers of one run."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.moments import middle
from tailrace.diagnose.arms.of_requests import classes_of
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.readers.heading import heading

__all__ = ["part_of", "tables_by_load", "with_whole_tables"]

FEWEST: Final = 3
FEWEST_LINES: Final = 10
"""Of an access log, which has thousands: a handful may be any."""
_LOAD: Final = re.compile(r"^(?:offered_?)?(?:rps|qps|rate)$|concurrency|^clients$|^users$|in_flight$")
_TIMED: Final = re.compile(r"(?:^|_)(?:overhead|lag|blocked|connect|delay|write|callback)")
"""Durations that no vocabulary has: readers keep them in ms."""


@asked_once
def with_whole_tables(observed: Observed) -> list[Arm]:
    """The arms, then one for each table with a row a request or a moment."""
    tables = [rows for kind in ("requests", "access", "moments") for rows in observed.table(kind)]
    return [*observed.arms, *(arm for rows in tables if (arm := _of(rows)) is not None), *middle(observed)]


@asked_once
def tables_by_load(observed: Observed) -> list[Arm]:
    """Tables whose rows were made under several loads (a column `offered_rps`, `concurrency`), an arm for each load."""
    out = []
    for rows in (rows for kind in ("requests", "access") for rows in observed.table(kind)):
        for name, masks in classes_of(rows):
            if _LOAD.search(name):
                for value, mask in masks.items():
                    arm = _of(part_of(rows, mask), least=FEWEST)
                    if arm is not None:
                        label = f"{name.replace('_', ' ')} {value}"
                        out.append(msgspec.structs.replace(arm, name=label, label=label))
    return out


def part_of(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """Some rows of a table as a table."""
    columns = {name: values[mask] for name, values in rows.columns.items()}
    return msgspec.structs.replace(rows, columns=columns, lines=None if rows.lines is None else rows.lines[mask])


def _of(rows: Rows, least: int = FEWEST_LINES) -> Arm | None:
    values: dict[str, Quoted] = {}
    for name, column in rows.columns.items():
        head = heading(name)
        known_name = head.quantity in QUANTITIES
        if column.dtype == object or head.change or not (known_name or _TIMED.search(name)):
            continue
        known = column[np.isfinite(column)]
        if known.size < (least if rows.kind == "access" else FEWEST):
            continue
        # Readers keep every duration of a row in ms, also one whose quantity has seconds elsewhere.
        unit = QUANTITIES[head.quantity].unit if known_name else "ms"
        unit = "ms" if unit == "s" else unit
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
