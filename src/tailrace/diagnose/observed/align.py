"""Several sources in one time, where that can be told; and what cannot, said in words.

What makes two clocks one:

* a line that carries two stamps, the engine's without a zone and a collector's in UTC (`clock_offset_s`);
* a table of requests whose rows carry, beside the stamps of a clock of its own, the wall clock (`wall`);
* two stamps without a zone, or one without a year, whose times overlap: taken for one clock, and that is said;
* a stamp without a zone or year beside UTC: the one shift by whole quarters of an hour (and years) that makes the two
  overlap, if there is only one.

Times of two clocks that nothing joins are never subtracted.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.diagnose.observed.body import Observed
from tailrace.diagnose.observed.kinds import Clock, Event, Rows, Series

__all__ = ["Alignment", "Axis", "align", "wall_seconds"]

_DAY: Final = 86400.0
_QUARTER: Final = 900.0
_FARTHEST: Final = 14 * 3600.0
_ZONE: Final = re.compile(r"(?:Z|([+-])(\d\d):?(\d\d))\s*$")
_BEGAN: Final = 5 * 366 * _DAY
"""Stamps before this have no year: they count as if it were 1970, and years that passed within a log are added."""


class Axis(msgspec.Struct, frozen=True):
    """The clock of one source: times of one are comparable with each other."""

    source: str
    clock: Clock

    @property
    def words(self) -> str:
        """For people."""
        kinds = {
            Clock.LOCAL: "without a zone",
            Clock.UTC: "UTC",
            Clock.RELATIVE: "counted from its own start",
            Clock.NONE: "without time",
        }
        return f"{self.source} ({kinds[self.clock]})"


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the clocks."""

    shifts: dict[Axis, float]
    """What to add to a source's times (s) to have them on the common axis; a clock that is absent cannot be placed."""
    assumed: dict[Axis, str]
    """Of those, the ones that rest on an assumption, with it."""
    said: list[str]
    """What was found of the clocks, and what cannot be aligned."""

    def at(self, axis: Axis, time: float) -> float | None:
        """A time of a source on the common axis; `None` where its clock cannot be placed."""
        shift = self.shifts.get(axis)
        return None if shift is None else time + shift

    def between(self, one: Axis, other: Axis) -> float | None:
        """What to add to times of `one` to have them on the clock of `other`."""
        if one == other:
            return 0.0
        first, second = self.shifts.get(one), self.shifts.get(other)
        return None if first is None or second is None else first - second

    def sure(self, *axes: Axis) -> bool:
        """Whether none of these rests on an assumption."""
        return not any(axis in self.assumed for axis in axes)


def axis_of(item: Series | Event | Rows) -> Axis:
    """Whose clock the times of an observation are on."""
    return Axis(item.place.source, item.clock)


def wall_seconds(text: str) -> float | None:
    """`03-09 10:00:08`, `2026-03-09T10:00:08.25+02:00` as seconds since 1970: in UTC where there is a zone, else as if
    in UTC; without a year as if in 1970.
    """
    zone = _ZONE.search(text)
    east = 0.0
    if zone is not None:
        text = text[: zone.start()]
        if zone[1]:
            east = (-1.0 if zone[1] == "-" else 1.0) * (int(zone[2]) * 3600 + int(zone[3]) * 60)
    digits = "".join(char if char.isdigit() or char == "." else " " for char in text.replace(",", ".")).split()
    numbers = [float(part) for part in digits if part.strip(".")]
    parts = [int(number) for number in numbers]
    if len(parts) >= 6 and parts[0] > 31:
        year, month, day, hour, minute = parts[:5]
        second = numbers[5]
    elif len(parts) >= 5 and parts[0] <= 12:
        year, (month, day, hour, minute), second = 1970, parts[:4], numbers[4]
    else:
        return None
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 24 and minute <= 59 and second < 61):
        return None
    day0 = np.datetime64(f"{year:04d}-{month:02d}", "D").astype(np.int64) + day - 1
    return float(day0) * _DAY + hour * 3600 + minute * 60 + second - east


def _wall_shift(rows: Rows) -> tuple[float, bool] | None:
    """(wall minus the table's own clock in s, whether the wall clock has year and zone). Walls are cut to whole
    seconds, so each row allows one second; what all rows allow is believed.
    """
    own = next((rows.numbers(name) / 1e3 for name in ("t_send_ms", "t_intended_ms") if rows.has(name)), None)
    if own is None or not rows.has("wall"):
        return None
    low, high, zoned = -np.inf, np.inf, True
    for text, time in zip(rows.texts("wall"), own, strict=True):
        wall = wall_seconds(text)
        if wall is None or np.isnan(time):
            continue
        zoned = zoned and wall > _BEGAN and _ZONE.search(text) is not None
        whole = "." not in text
        low = max(low, wall - time)
        high = min(high, wall - time + (1.0 if whole else 1e-3))
    if not np.isfinite(low):
        return None
    return (low + (high - low) / 2 if high > low else low), zoned


def _spans(observed: Observed) -> dict[Axis, tuple[float, float]]:
    """From when to when each source speaks, on its own clock."""
    out: dict[Axis, tuple[float, float]] = {}

    def see(axis: Axis, times: Any) -> None:
        values = np.asarray(times, dtype=np.float64)
        values = values[np.isfinite(values)]
        if values.size and axis.clock is not Clock.NONE:
            low, high = out.get(axis, (np.inf, -np.inf))
            out[axis] = (min(low, float(values.min())), max(high, float(values.max())))

    for series in observed.series:
        if series.axis == "time":
            see(axis_of(series), series.at)
    for event in observed.events:
        if event.at is not None:
            see(axis_of(event), [event.at])
    for rows in observed.rows:
        for name, scale in (("at", 1.0), ("t_send_ms", 1e-3), ("t_last_ms", 1e-3)):
            if rows.has(name):
                see(Axis(rows.place.source, rows.clock if rows.clock is not Clock.NONE else Clock.RELATIVE),
                    rows.numbers(name) * scale)  # fmt: skip
    return out


def align(observed: Observed) -> Alignment:
    """Place the clocks of all sources on one axis, as far as something joins them."""
    spans = _spans(observed)
    shifts: dict[Axis, float] = {}
    assumed: dict[Axis, str] = {}
    said: list[str] = []
    place: dict[Axis, tuple[float, float]] = {}
    for axis, span in spans.items():
        shift, words = _of_its_own(observed, axis, said)
        if shift is not None:
            shifts[axis] = shift
            place[axis] = (span[0] + shift, span[1] + shift)
            if words:
                assumed[axis] = words
    _on_one_axis(observed, place, shifts, assumed, said)
    for axis in spans:
        if axis not in shifts and len(spans) > 1 and not any(axis.source in text for text in said):
            said.append(f"{axis.words} cannot be aligned with the other sources: no line carries both clocks")
    return Alignment(shifts=shifts, assumed=assumed, said=said)


def _on_one_axis(
    observed: Observed,
    place: dict[Axis, tuple[float, float]],
    shifts: dict[Axis, float],
    assumed: dict[Axis, str],
    said: list[str],
) -> None:
    """The common axis is that of the stamps with a zone, if there are any; else of the first source. Others come to it
    where their times overlap with it, and leave where they do not.
    """
    anchors = [axis for axis in shifts if _dated(observed, axis)] or list(shifts)[:1]
    for axis in list(shifts):
        if axis in anchors:
            continue
        moved = _moved(place[axis], [place[one] for one in anchors])
        if moved is None:
            said.append(f"{axis.words} cannot be aligned with {anchors[0].words}: their times do not overlap")
            del shifts[axis]
            continue
        assumed[axis] = _assumption(axis.source, anchors[0].source, moved)
        shifts[axis] += moved
        said.append(assumed[axis])


def _assumption(source: str, anchor: str, moved: float) -> str:
    """What is taken for granted when times of `source` are moved by so much (s) to stand beside those of `anchor`."""
    if not moved:
        return f"{source} and {anchor} are taken for one clock: their times overlap"
    if abs(moved) < 300 * _DAY:
        return f"{source} is taken to be {_words(abs(moved))} {'behind' if moved > 0 else 'before'} {anchor}"
    # A shift of years is what the missing year makes; the rest is a zone that nobody wrote.
    zone = abs(moved) % _DAY
    zone = min(zone, _DAY - zone)
    if zone < 1.0:
        return f"{source} and {anchor} are taken for one year and one clock: one of them has no year"
    return (
        f"{source} and {anchor} are taken for one year, and for clocks {_words(zone)} apart: one of them has neither "
        "year nor zone"
    )


def _dated(observed: Observed, axis: Axis) -> bool:
    """Whether its times, once shifted, are UTC for sure."""
    if axis.clock is Clock.UTC:
        return True
    if any(item.name == "clock_offset_s" and item.scope == axis.source for item in observed.settings):
        return True
    walls = [_wall_shift(rows) for rows in observed.rows if rows.place.source == axis.source]
    return any(found is not None and found[1] for found in walls)


def _of_its_own(observed: Observed, axis: Axis, said: list[str]) -> tuple[float | None, str]:
    """(what its own lines say of its clock, what is assumed)."""
    if axis.clock is Clock.UTC:
        return 0.0, ""
    for setting in observed.settings:
        if setting.name == "clock_offset_s" and setting.scope == axis.source and setting.number is not None:
            offset = setting.number
            whole = round(offset / _QUARTER) * _QUARTER
            # A collector stamps a moment after the engine; zones differ by whole quarters.
            near = abs(offset - whole) < 30
            shown = whole if near else offset
            behind = "behind" if shown > 0 else "before"
            said.append(
                f"{axis.source}: the engine's stamps are {_words(abs(shown))} {behind} the collector's (UTC)"
                if shown
                else f"{axis.source}: the engine's stamps are UTC"
            )
            return (whole if near and offset < 2 * _DAY else offset), ""
    if axis.clock is Clock.RELATIVE:
        for rows in observed.rows:
            if rows.place.source == axis.source:
                found = _wall_shift(rows)
                if found is not None:
                    return found[0], ""
        return None, ""
    return 0.0, ""


def _words(seconds: float) -> str:
    if abs(seconds) >= 300 * _DAY:
        years = round(seconds / (365.2425 * _DAY))
        rest = round((seconds - years * 365.2425 * _DAY) / _QUARTER) * _QUARTER
        return f"{years:+d} years" + (f" and {_words(rest)}" if abs(rest) > 2 * _DAY else "")
    if abs(seconds) >= 3600:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if abs(seconds) >= 60 else f"{seconds:.1f} s"


def _moved(span: tuple[float, float], others: list[tuple[float, float]]) -> float | None:
    """The one shift that makes `span` overlap with `others`: none at all if it does already; years where it has no
    year, then whole quarters of an hour. `None` where there is none.
    """
    low, high = min(one[0] for one in others), max(one[1] for one in others)
    slack = 60.0
    if span[0] <= high + slack and span[1] >= low - slack:
        return 0.0
    years = 0.0
    if span[0] < _BEGAN <= low:
        year = np.datetime64(int(low), "s").astype("datetime64[Y]")
        years = float(year.astype("datetime64[s]").astype(np.int64))
        # A leap day before this date moves it by one day against 1970.
        leap = (int(str(year)) % 4 == 0 and int(str(year)) % 100 != 0) or int(str(year)) % 400 == 0
        years += _DAY if leap and span[0] >= 59 * _DAY else 0.0
    elif low < _BEGAN <= span[0]:
        back = _moved((low, high), [span])
        return None if back is None else -back
    moved = (span[0] + years, span[1] + years)
    if moved[0] <= high + slack and moved[1] >= low - slack:
        return years
    # The nearest quarter of an hour that makes them overlap: believed where both are too short for two to do so.
    length = max(span[1] - span[0], high - low)
    best = round((low - moved[0]) / _QUARTER) * _QUARTER
    if (
        abs(best) <= _FARTHEST
        and length < 2 * _QUARTER
        and moved[0] + best <= high + slack
        and moved[1] + best >= low - slack
    ):
        return years + best
    return None
