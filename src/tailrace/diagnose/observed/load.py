"""The load of one engine over time: gauges that one line of a log (or one scrape) tells together."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.observed.body import Observed
from tailrace.diagnose.observed.kinds import Clock, Place, Series

__all__ = ["Load", "Stretch", "loads"]

Floats = NDArray[np.float64]
_APART = frozenset({"model_name", "model"})


class Stretch(msgspec.Struct, frozen=True):
    """Some readings in a row."""

    first: int
    last: int
    """The last of them, itself included."""

    @property
    def n(self) -> int:
        """How many readings."""
        return self.last - self.first + 1

    @property
    def rows(self) -> slice:
        """To index a column with."""
        return slice(self.first, self.last + 1)


class Load(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One engine. Columns have one length; NaN where a reading does not say."""

    name: str
    """`engine 0`, with the replica where there are several."""
    labels: dict[str, str]
    at: Floats
    """Place on the axis, ascending (s where `timed`)."""
    columns: dict[str, Floats]
    timed: bool
    clock: Clock
    lines: NDArray[np.int64] | None
    place: Place

    def __len__(self) -> int:
        return int(self.at.size)

    def get(self, name: str) -> Floats:
        """A column; all NaN where nothing says it."""
        found = self.columns.get(name)
        return np.full(len(self), np.nan) if found is None else found

    def has(self, name: str) -> bool:
        """Whether any reading says it."""
        return name in self.columns and not bool(np.isnan(self.columns[name]).all())

    @property
    def interval(self) -> float:
        """Seconds between two readings in a row, as a rule (median); NaN where that is not known."""
        steps = np.diff(self.at)
        steps = steps[steps > 0]
        return float(np.median(steps)) if self.timed and steps.size else float("nan")

    @property
    def rate(self) -> Floats:
        """Tokens a second of one running request (tok/s); NaN where none runs."""
        running, made = self.get("running"), self.get("output_tok_s")
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(running > 0, made / running, np.nan)

    def where(self, index: int) -> str:
        """`vllm.log:12`."""
        return str(self.place if self.lines is None else Place(self.place.source, int(self.lines[index])))

    def stretches(self, holds: NDArray[np.bool_]) -> list[Stretch]:
        """The longest runs of readings for which `holds`; a hole of more than three intervals ends a run."""
        out: list[Stretch] = []
        interval, begin = self.interval, None
        for index, yes in enumerate(holds):
            hole = index > 0 and not math.isnan(interval) and self.at[index] - self.at[index - 1] > 3.5 * interval
            if begin is not None and (not yes or hole):
                out.append(Stretch(begin, index - 1))
                begin = None
            if yes and begin is None:
                begin = index
        if begin is not None:
            out.append(Stretch(begin, len(holds) - 1))
        return out

    def seconds(self, stretch: Stretch) -> float:
        """How long a stretch lasted: from the reading before it to its last; each reading tells of the time before it.
        NaN without times.
        """
        if not self.timed:
            return float("nan")
        before = self.at[stretch.first - 1] if stretch.first > 0 else self.at[stretch.first] - self.interval
        interval = self.interval
        length = float(self.at[stretch.last] - max(before, self.at[stretch.first] - 1.5 * interval))
        return length if not math.isnan(length) else float(self.at[stretch.last] - self.at[stretch.first])

    def within(self, begin: float, end: float) -> NDArray[np.bool_]:
        """Which readings lie in a time (s on this engine's clock)."""
        return np.asarray((self.at >= begin) & (self.at <= end))


@asked_once
def loads(observed: Observed) -> list[Load]:
    """All engines of which at least running or waiting requests are known over several readings."""
    groups: dict[tuple[object, ...], list[Series]] = {}
    for series in observed.series:
        labels = tuple(sorted((key, value) for key, value in series.labels.items() if key not in _APART))
        groups.setdefault((series.place.source, series.axis, series.clock, labels), []).append(series)
    several = len({key[3] for key, items in groups.items() if _tells(items)}) > 1
    return [_joined(items, several=several) for items in groups.values() if _tells(items)]


def _tells(items: list[Series]) -> bool:
    return any(item.name in ("running", "waiting") and len(item) for item in items)


def _joined(items: list[Series], *, several: bool) -> Load:
    first = next(item for item in items if item.name in ("running", "waiting") and len(item))
    at = first.at
    if any(item.at.size != at.size or not np.array_equal(item.at, at) for item in items):
        at = np.unique(np.concatenate([item.at for item in items if item.axis == first.axis]))
    columns: dict[str, Floats] = {}
    lines = None
    for item in items:
        if item.at.size == at.size and np.array_equal(item.at, at):
            values = item.values
            lines = item.lines if lines is None else lines
        else:
            values = np.full(at.size, np.nan)
            values[np.searchsorted(at, item.at)] = item.values
        columns.setdefault(item.name, values)
    labels = {key: value for key, value in first.labels.items() if key not in _APART}
    engine = labels.get("engine", "")
    replica = labels.get("replica") or labels.get("instance") or labels.get("rank") or ""
    name = (
        " ".join(part for part in (replica, f"engine {engine}" if engine else "") if part) if several else "the engine"
    )
    return Load(
        name=name or "the engine",
        labels=labels,
        at=at,
        columns=columns,
        timed=first.axis == "time",
        clock=first.clock,
        lines=lines,
        place=first.place,
    )
