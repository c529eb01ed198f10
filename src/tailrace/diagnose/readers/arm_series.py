"""Arms along a time axis are a time series, too: a Markdown table of moments reads as the same table in CSV does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tailrace.diagnose.observed import Arm, Clock, Series
from tailrace.diagnose.readers.headings import heading, stamp_ms
from tailrace.diagnose.readers.series_columns import axis_of, column_of_series, is_weak_axis

__all__ = ["series_of_arms"]

LEAST: Final = 3
"""Two moments are a before and an after."""
_TO_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_TIMED: Final = frozenset({"time", "session_age", "uptime", "output_position", "iteration", "turn"})


def series_of_arms(arms: Sequence[Arm]) -> list[Series]:
    """The series of every table whose rows are moments in ascending order."""
    tables: dict[tuple[str, object], list[Arm]] = {}
    for arm in arms:
        tables.setdefault((arm.place.source, arm.keys.get("section")), []).append(arm)
    return [series for rows in tables.values() if len(rows) >= LEAST for series in _of_table(rows)]


def _of_table(rows: list[Arm]) -> list[Series]:
    placed = _axis(rows)
    if placed is None:
        return []
    key, axis, at, clock = placed
    lines = np.array([arm.place.line for arm in rows], dtype=np.int64)
    out = []
    for name in dict.fromkeys(name for arm in rows for name in arm.values):
        items = [arm.values.get(name) for arm in rows]
        first = next(item for item in items if item is not None)
        if first.relative or first.quantity == key:
            continue
        column = column_of_series(first.label)
        ours = column.name if column.known or not first.quantity else first.quantity
        labels = dict(column.labels) or ({"stat": first.stat} if first.stat else {})
        values = np.array([np.nan if item is None else item.value for item in items], dtype=np.float64)
        out.append(
            Series(
                name=ours, labels=labels, axis=axis, at=at, values=values, unit=first.unit, clock=clock, lines=lines,
                place=rows[0].place,
            )
        )  # fmt: skip
    return out


def _axis(rows: list[Arm]) -> tuple[str, str, np.ndarray, Clock] | None:
    """(key of the axis, its name, its places, their clock)."""
    for key in rows[0].keys:
        cells = [arm.keys.get(key) for arm in rows]
        quoted = next((item for arm in rows for item in arm.values.values() if item.quantity == key), None)
        label = quoted.label if quoted is not None else key
        axis = axis_of(label)
        if axis is None or axis.name not in _TIMED or is_weak_axis(label) or heading(label).name != heading(key).name:
            continue
        if all(isinstance(cell, int | float) for cell in cells):
            scale = _TO_S.get(axis.unit or (quoted.unit if quoted is not None else ""), 1.0)
            at, clock = np.array(cells, dtype=np.float64) * scale, Clock.RELATIVE
        else:
            told = stamp_ms(cells)
            if told is None:
                continue
            at, clock = np.array(told[0]) / 1e3, Clock.UTC if told[1] else Clock.LOCAL
        if np.isfinite(at).all() and bool((np.diff(at) > 0).all()):
            return key, axis.name, at, clock
    return None
