"""Tables with one moment a row and one quantity a column: over time, a session's age, iterations, output positions.

Long tables, in which a column says whom a row is of (`stream`, `replica`, `gpu`), give one series for each of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Clock, Counter, Observed, Place, Rows, Series, Setting, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.headings import heading, number, stamp_ms
from tailrace.diagnose.readers.logs.access_json import is_access_object
from tailrace.diagnose.readers.series_columns import Axis, Column, axis_of, column_of_series, is_label, is_weak_axis
from tailrace.diagnose.readers.table_text import TableText, first_headings, read_table
from tailrace.model.errors import InputError

__all__ = ["TIMESERIES", "looks_like_series", "read_timeseries"]

Floats = NDArray[np.float64]
_TO_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
MOST_GROUPS: Final = 1_000
"""Owners of series: streams, replicas, devices."""
_OF_STEPS: Final = frozenset({"cpu_step", "wall", "typical_wall", "chunk_gap"})
_OF_TURNS: Final = frozenset({"end_of_turn", "transcription_delay"})
_LONGEST_TURN_S: Final = 20.0
"""Agents name these without a unit and mean seconds; nobody waits for so few milliseconds."""
_LEFT: Final = re.compile(
    r"(?:since|after|from)_(?:the_)?(?:client_)?(?:disconnect|cancel|abort|kill|close|hang_?up|ctrl)"
)
"""An axis that counts from the moment at which a client left."""
_PERCENT: Final = 1.5
"""A share above it is a percentage, whatever the heading says."""


def looks_like_series(head: str) -> bool:
    """Whether the beginning of a file is that of a time series: an axis in the first column, numbers in others."""
    names = first_headings(head)
    if len(names) < 2 or axis_of(names[0]) is None or len(set(names)) < len(names):
        return False
    if is_weak_axis(names[0]) and not {column_of_series(name).name for name in names[1:]} & _OF_STEPS:
        return False  # a sweep: one arm a row
    if head.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return any(column_of_series(name).known for name in names[1:])
    for line in head.splitlines()[1:]:
        cells = [cell.strip() for cell in line.replace(";", ",").replace("\t", ",").split(",")]
        if len(cells) < 2 or line.lstrip().startswith("#"):
            continue
        if number(cells[0]) is None and stamp_ms([cells[0]]) is None:
            continue
        return any(cell and number(cell) is not None for cell in cells[1:])
    return False


def read_timeseries(path: Path, name: str) -> Observed:
    """The series in a file. InputError where its axis has no numbers."""
    return series_of_table(read_table(path), name)


def series_of_table(table: TableText, name: str) -> Observed:
    """The same of a table that was read already."""
    headings = list(table.columns)
    axis = axis_of(headings[0]) if headings else None
    placed = None if axis is None else _axis(table, headings[0], axis)
    if axis is None or placed is None:
        raise InputError(
            "its first column is no axis: no numbers, or no name like t_s, session_age_s, iteration, output_position",
            place=name,
            remedy="Put the time (s) or the position into the first column.",
        )
    at, clock = placed
    doubts: list[str] = []
    labels: dict[str, list[str]] = {}
    columns: list[tuple[str, Column, Floats]] = []
    texts: dict[str, list[str]] = {}
    for theirs in headings[1:]:
        label = is_label(theirs)
        column = column_of_series(theirs)
        cells = table.numbers(theirs, column.unit, column.wanted)
        if label and (cells is None or _repeats(at)):
            labels[label] = table.texts(theirs)
        elif cells is None:
            texts[theirs] = table.texts(theirs)
        else:
            columns.append((theirs, column, _in_unit(np.array(cells, dtype=np.float64), theirs, column, doubts)))
    lines = np.array(table.lines, dtype=np.int64)
    out = Observed()
    groups = _groups(labels, at)
    for chosen, of in groups[:MOST_GROUPS]:
        for theirs, column, values in columns:
            series = Series(
                name=column.name,
                labels={**column.labels, **of},
                axis=axis.name,
                at=at[chosen],
                values=values[chosen],
                unit=column.wanted or column.unit or ("count" if column.name.endswith("_total") else ""),
                clock=clock,
                lines=lines[chosen],
                place=Place(name),
            )
            out.series.append(series)
            if column.name.endswith("_total"):
                out.counters += counters_of(series, theirs)
    if axis.name == "turn" or texts:
        out.rows.append(_rows(table, axis, at, clock, columns, name))
    out.settings = _told_by_axis(headings[0], name)
    out.understood = _understood(table, name, doubts, texts)
    if len(groups) > MOST_GROUPS:
        left, of = groups[MOST_GROUPS]
        out.understood.append(
            Understood(
                source=name,
                format="time series: too many to look at, give those that matter",
                understood=MOST_GROUPS,
                total=len(groups),
                what="streams, replicas or devices",
                examples=[f"{int(lines[left[0]])}: {', '.join(of.values())[:80]}"],
            )
        )
    return out


def _told_by_axis(theirs: str, name: str) -> list[Setting]:
    """`seconds_after_disconnect` says when a client left: at its 0."""
    if not _LEFT.search(heading(theirs).name):
        return []
    return [Setting(name="client_killed_at", value=0.0, unit="s", place=Place(name, 1))]


def _axis(table: TableText, name: str, axis: Axis) -> tuple[Floats, Clock] | None:
    values = table.numbers(name)
    if values is None:
        told = stamp_ms(table.columns[name])
        if told is None:
            return None
        return np.array(told[0]) / 1e3, Clock.UTC if told[1] else Clock.LOCAL
    at = np.array(values, dtype=np.float64)
    known = at[np.isfinite(at)]
    if not known.size:
        return None
    if axis.name not in ("time", "session_age", "uptime"):
        return at, Clock.NONE
    middle = float(np.median(known))
    for unit, least in (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 1e8)):
        if least <= middle < least * 1e3 and (not axis.unit or axis.unit == unit):
            return at * _TO_S[unit], Clock.UTC
    return at * _TO_S.get(axis.unit, 1.0), Clock.RELATIVE


def _repeats(at: Floats) -> bool:
    return np.unique(at).size < at.size


def _in_unit(values: Floats, theirs: str, column: Column, doubts: list[str]) -> Floats:
    if column.wanted == "share" and column.unit != "%":
        known = values[np.isfinite(values)]
        if known.size and float(known.max()) > _PERCENT:
            return values / 100.0
    if column.wanted == "ms" and not column.unit:
        known = values[np.isfinite(values)]
        if column.name in _OF_TURNS and known.size and float(np.abs(known).max()) < _LONGEST_TURN_S:
            doubts.append(f"{theirs}: no unit is written, taken as s")
            return values * 1e3
        doubts.append(f"{theirs}: no unit is written, taken as ms")
    return values


def _groups(labels: dict[str, list[str]], at: Floats) -> list[tuple[NDArray[np.int64], dict[str, str]]]:
    """Rows in order of the axis, apart by what they are of. Rows without a place on it are left out."""
    keys: dict[tuple[str, ...], list[int]] = {}
    rows = zip(*labels.values(), strict=True) if labels else iter([()] * at.size)
    for row, key in enumerate(rows):
        if np.isfinite(at[row]):
            keys.setdefault(tuple(key), []).append(row)
    out = []
    for key, members in keys.items():
        chosen = np.array(members, dtype=np.int64)
        order = chosen[np.argsort(at[chosen], kind="stable")]
        out.append((order, {name: value for name, value in zip(labels, key, strict=True) if value}))
    return out


def counters_of(series: Series, raw: str) -> list[Counter]:
    """A counter's column as deltas: one for each stretch without a restart. What was counted between the last reading
    before a restart and the first one after it is in none of them.
    """
    known = np.flatnonzero(np.isfinite(series.values))
    if known.size < 2:
        return []
    values = series.values[known]
    cuts = [0, *(np.flatnonzero(np.diff(values) < 0) + 1), known.size]
    out = []
    for order, (begin, end) in enumerate(itertools.pairwise(cuts)):
        if end - begin < 2:
            continue
        first, last = known[begin], known[end - 1]
        out.append(
            Counter(
                name=series.name.removesuffix("_total"),
                labels=series.labels,
                first=float(series.values[first]),
                last=float(series.values[last]),
                window_s=float(series.at[last] - series.at[first]) if series.axis == "time" else None,
                order=order,
                unit=series.unit,
                raw=raw,
                place=series.line_of(int(last)),
            )
        )
    return out


def _rows(
    table: TableText,
    axis: Axis,
    at: Floats,
    clock: Clock,
    columns: Sequence[tuple[str, Column, Floats]],
    name: str,
) -> Rows:
    """The table as it stands, for what compares columns within a row."""
    out: dict[str, NDArray[Any]] = {axis.name: at}
    for theirs, column, values in columns:
        out[column.name if column.name not in out else heading(theirs).name] = values
    for theirs in table.columns:
        if heading(theirs).name not in out and table.numbers(theirs) is None:
            cells = np.empty(len(table), dtype=object)
            cells[:] = table.texts(theirs)
            out[heading(theirs).name] = cells
    return Rows(
        kind="turns" if axis.name == "turn" else "moments",
        columns=out,
        clock=clock,
        lines=np.array(table.lines, dtype=np.int64),
        place=Place(name),
    )


def _understood(table: TableText, name: str, doubts: list[str], texts: dict[str, list[str]]) -> list[Understood]:
    out = [
        Understood(
            source=name,
            format="time series",
            understood=len(table),
            total=table.total,
            what="rows",
            examples=table.not_read,
        ),
        *table.cut(name, "time series"),
    ]
    unread = [*doubts, *(f"{theirs}: no numbers" for theirs in texts)]
    if unread:
        whole = len(table.columns)
        out.append(
            Understood(
                source=name,
                format="time series",
                understood=whole - len(unread),
                total=whole,
                what="columns",
                examples=unread,
            )
        )
    return out


def _matches(head: str, name: str) -> bool:
    _ = name
    # A gateway's log of requests has stamps and numbers, too.
    return looks_like_series(head) and not is_access_object(first_headings(head))


TIMESERIES: Final = Format(name="time series", matches=_matches, read=read_timeseries)
