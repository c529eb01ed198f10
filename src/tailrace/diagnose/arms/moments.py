"""A short time series as arms, one a moment: rules that compare windows ask both kinds of table in one way."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Series

__all__ = ["in_order", "middle", "moments"]

MOST: Final = 200
"""Longer ones are readings of a machine, no windows that somebody made."""


@asked_once
def moments(observed: Observed) -> list[Arm]:
    """One arm for each moment of every short series table, in order of time; the series of one source and label share
    their moments. None for long ones.
    """
    groups: dict[tuple[str, str, int, tuple[tuple[str, str], ...]], list[Series]] = {}
    for series in observed.series:
        own = tuple(sorted((key, value) for key, value in series.labels.items() if key != "stat"))
        if len(series) and series.axis in {"time", "session_age", "uptime"}:
            groups.setdefault((series.place.source, series.axis, len(series), own), []).append(series)
    out: list[Arm] = []
    for (_, axis, n, own), items in groups.items():
        first = items[0]
        if n > MOST:
            continue
        named = ", ".join(f"{key} {value}" for key, value in own)
        for row in range(n):
            place = first.line_of(row)
            values = {item.key: item for series in items if (item := _quoted(series, row, place)) is not None}
            at = f"{axis} {first.at[row]:g}"
            out.append(Arm(name=f"{named} at {at}".strip(), label=at, values=values, place=place))
    return out


def _quoted(series: Series, row: int, place: Place) -> Quoted | None:
    if row >= len(series) or not np.isfinite(series.values[row]):
        return None
    return Quoted(
        quantity=series.name,
        stat=series.labels.get("stat", ""),
        value=float(series.values[row]),
        unit=series.unit,
        label=series.name.replace("_", " "),
        place=place,
    )


def in_order(observed: Observed) -> list[Arm]:
    """The rows of the tables as they stand: arms first, then the moments of short series."""
    return [*observed.arms, *moments(observed)]


@asked_once
def middle(observed: Observed) -> list[Arm]:
    """For each series table one arm with the median of its columns: what a single row would have said."""
    out: list[Arm] = []
    by_source: dict[str, list[Arm]] = {}
    for arm in moments(observed):
        by_source.setdefault(arm.place.source, []).append(arm)
    for source, arms in by_source.items():
        keys = dict.fromkeys(key for arm in arms for key in arm.values)
        values = {}
        for key in keys:
            known = [arm.values[key] for arm in arms if key in arm.values]
            ordered = sorted(known, key=lambda one: one.value)
            values[key] = ordered[len(ordered) // 2]
        name = f"median of {len(arms)} rows"
        out.append(Arm(name=name, label=name, values=values, place=Place(source)))
    return out
