"""Numbers by the words over them, wherever they stand: in a row of a table, in a group of a form, or in its context.

A rule that wants to know how long an encoder took asks here once, and gets it from a column `vit_ms`, a key
`vision.encode_ms` and a statement `encoder: 2.4 s` alike.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from typing import Final, NamedTuple

from tailrace.diagnose.arms.asked import told
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.observed.vocabulary import TO_MS, in_unit
from tailrace.model.finding import Evidence

__all__ = ["Measure", "Measures", "measures_of"]


_COUNTED: Final = frozenset({"turn", "iteration"})
MOST_ROWS: Final = 200
"""Of a table along turns or steps: a longer one was written by a program, and is judged as the series that it is."""


class Measure(NamedTuple):
    """One number with the words over it (lower case, blanks between words)."""

    words: str
    value: float
    unit: str
    place: str
    stat: str = ""

    @property
    def ms(self) -> float | None:
        """It as a duration (ms); `None` where it is none."""
        return in_unit(self.value, self.unit, "ms") if self.unit in TO_MS else None

    @property
    def share(self) -> float:
        """It as a share (0..1): a percentage by its unit or because no share is above 1."""
        return self.value / 100.0 if self.unit == "%" or (self.value > 1.0 and self.unit != "share") else self.value

    @property
    def evidence(self) -> Evidence:
        """It with its place."""
        name = re.sub(r"\W+", "_", self.words).strip("_")[:60]
        return Evidence(f"{self.words}: {number(self.value, self.unit)}", self.place, name, self.value, self.unit)


class Measures(NamedTuple):
    """What was measured under one condition, and what was stated of all of them."""

    name: str
    own: tuple[Measure, ...]
    common: tuple[Measure, ...]

    def find(self, words: str, without: str = "") -> Measure | None:
        """The first number whose words match `words` and not `without`; its own before what is stated of all."""
        pattern, other = _pattern(words), _pattern(without) if without else None
        for item in (*self.own, *self.common):
            if pattern.search(item.words) and (other is None or not other.search(item.words)):
                return item
        return None

    def ms(self, words: str, without: str = "") -> Measure | None:
        """The same, of durations only."""
        pattern, other = _pattern(words), _pattern(without) if without else None
        for item in (*self.own, *self.common):
            if item.unit in TO_MS and pattern.search(item.words) and (other is None or not other.search(item.words)):
                return item
        return None


@lru_cache(maxsize=512)
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[_./\-]+", " ", text).split()).lower()


@asked_once
def measures_of(observed: Observed) -> list[Measures]:
    """One for each arm; one of what was stated alone where there is no arm. Claims and changes in percent are none."""
    common = tuple(
        Measure(_plain(item.name), value, item.unit, str(item.place) or "form")
        for item in told(observed)
        for value in _numbers(item.value)[-1:]
        if isfinite(value)
    )
    out = []
    for arm in observed.arms:
        own = [
            Measure(
                _plain(f"{item.label} {item.quantity.replace('_', ' ')} {item.qualifier}"),
                item.value, item.unit, str(item.place) or str(arm.place) or "form", item.stat,
            )
            for item in arm.values.values()
            if not item.relative and isfinite(item.value)
        ]  # fmt: skip
        own += [
            Measure(_plain(name), float(value), "", str(arm.place) or "form")
            for name, value in arm.keys.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        ]
        out.append(Measures(arm.name, tuple(own), common))
    out += _rows_of_turns(observed, common)
    return out or ([Measures("", (), common)] if common else [])


def _rows_of_turns(observed: Observed, common: tuple[Measure, ...]) -> list[Measures]:
    """A table along turns or steps is read as series: each of its rows is a condition as well."""
    tables: dict[tuple[str, str], list[Series]] = {}
    for one in observed.series:
        if one.axis in _COUNTED and len(one) <= MOST_ROWS:
            tables.setdefault((one.place.source, one.axis), []).append(one)
    out = []
    for (_, axis), columns in tables.items():
        for row, at in enumerate(columns[0].at):
            own = tuple(
                Measure(_plain(one.name), float(one.values[row]), one.unit, str(one.line_of(row)))
                for one in columns
                if len(one) > row and one.at[row] == at and isfinite(one.values[row])
            )
            out.append(Measures(f"{axis} {at:g}", own, common))
    return out


def _numbers(value: object) -> list[float]:
    """A number, or a range, of which the upper end counts."""
    items = value if isinstance(value, list) else [value]
    return [float(one) for one in items if isinstance(one, (int, float)) and not isinstance(one, bool)]
