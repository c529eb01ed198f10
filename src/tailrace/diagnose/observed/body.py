"""All observations of a diagnosis, whatever they were read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.diagnose.observed.kinds import (
    Arm,
    Counter,
    Event,
    Histogram,
    Rows,
    Series,
    Setting,
    Understood,
    together,
)

__all__ = ["Observed"]


class Observed(msgspec.Struct, kw_only=True, eq=False, dict=True):
    """What was read. Order is the order of the sources, and within one of its lines."""

    arms: list[Arm] = []
    series: list[Series] = []
    counters: list[Counter] = []
    histograms: list[Histogram] = []
    events: list[Event] = []
    settings: list[Setting] = []
    rows: list[Rows] = []
    understood: list[Understood] = []
    notes: list[str] = []
    """What a person wrote: context, never evidence."""

    def __bool__(self) -> bool:
        return bool(
            self.arms
            or self.series
            or self.counters
            or self.histograms
            or self.events
            or self.settings
            or self.rows
            or self.notes
            or self.understood
        )

    @staticmethod
    def joined(parts: Iterable[Observed]) -> Observed:
        """All of them together."""
        out = Observed()
        for part in parts:
            for name in Observed.__struct_fields__:
                getattr(out, name).extend(getattr(part, name))
        return out

    def finite(self) -> Observed:
        """The same without readings that are no numbers: infinities, and what is as good as one, in series and rows
        become holes (NaN), counters and histograms that hold one are left out. What was left out is counted, by source,
        in `understood`.

        Quoted numbers of arms stay: that one cannot be right is what the checks of the numbers say.
        """
        return _finite(self)

    # -- asking

    def setting(self, *names: str) -> Setting | None:
        """The first setting with one of these names."""
        return next((item for name in names for item in self.settings if item.name == name), None)

    def number(self, *names: str) -> float | None:
        """The first of these settings that is a number."""
        found = (item.number for name in names for item in self.settings if item.name == name)
        return next((value for value in found if value is not None), None)

    def text(self, *names: str) -> str:
        """The first of these settings as text; empty when there is none."""
        found = self.setting(*names)
        return "" if found is None else str(found.value)

    def source_of(self, *names: str) -> str:
        """Where the first setting with one of these names stands; `settings` where that is not known."""
        found = self.setting(*names)
        return str(found.place) if found is not None and found.place.source else "settings"

    def of_series(self, name: str, **labels: str) -> list[Series]:
        """The series of this name whose labels are these (and any others)."""
        found = self._named("series", name)
        if not labels:
            return list(found)
        return [item for item in found if all(item.labels.get(key) == value for key, value in labels.items())]

    def of_counter(self, name: str) -> list[Counter]:
        """The counters of this name."""
        return list(self._named("counters", name))

    def delta(self, name: str) -> float | None:
        """What all counters of this name counted over all windows; `None` when none is known or one was restarted."""
        found = [item.delta for item in self._named("counters", name)]
        return None if not found or None in found else sum(value for value in found if value is not None)

    def of_histogram(self, name: str) -> list[Histogram]:
        """The histograms of this name, in order of their windows."""
        return sorted(self._named("histograms", name), key=lambda item: item.order)

    def windows(self, name: str) -> list[Histogram]:
        """The same, one a window: those of several engines put together, at the bounds that all of them have."""
        found: dict[int, list[Histogram]] = {}
        for item in self.of_histogram(name):
            found.setdefault(item.order, []).append(item)
        return [together(items) for _, items in sorted(found.items())]

    def _named(self, what: str, name: str) -> list[Any]:
        """What a list holds of one name. The scrape of a fleet has a hundred thousand series, and rules ask for those
        of each name: they are told apart once, and again when there are more.
        """
        items: list[Any] = getattr(self, what)
        by_name: dict[str, list[Any]]
        known, n, by_name = vars(self).get(f"named {what}", (None, -1, {}))
        if known is not items or n != len(items):
            by_name = {}
            for item in items:
                by_name.setdefault(item.name, []).append(item)
            vars(self)[f"named {what}"] = items, len(items), by_name
        return by_name.get(name, [])

    def of_kind(self, kind: str) -> list[Event]:
        """The events of this kind."""
        return [item for item in self.events if item.kind == kind]

    def table(self, kind: str) -> list[Rows]:
        """The tables of this kind."""
        return [item for item in self.rows if item.kind == kind]


_LARGEST: Final = 1e150
"""A larger value has an infinite square, and no spread nor product is known of it: it is as good as infinite itself.
NaN, which is a hole, is not larger either."""


_FEW: Final = 8
"""numpy looks at so few numbers more slowly than Python does, and the scrape of a fleet is a hundred thousand such
series."""


def _plain(series: Series) -> bool:
    """Whether it is short and nothing is to be left out of it; with a hole that is not known."""
    return series.at.size <= _FEW and all(
        -_LARGEST <= value <= _LARGEST for value in (*series.at.tolist(), *series.values.tolist())
    )


def _finite_series(items: Iterable[Series], count: Callable[[str, int], None]) -> list[Series]:
    out = []
    for item in items:
        if _plain(item):
            out.append(item)
            continue
        kept = np.abs(item.at) <= _LARGEST
        odd = (np.abs(item.values) > _LARGEST) & kept
        n = int((~kept).sum() + odd.sum())
        count(item.place.source, n)
        if n:
            item = msgspec.structs.replace(  # noqa: PLW2901
                item,
                at=item.at[kept],
                values=np.where(odd, np.nan, item.values)[kept],
                lines=None if item.lines is None else item.lines[kept],
            )
        out.append(item)
    return out


def _finite(body: Observed) -> Observed:
    left: dict[str, int] = {}

    def count(source: str, n: int) -> None:
        if n:
            left[source] = left.get(source, 0) + n

    series = _finite_series(body.series, count)
    rows = []
    for table in body.rows:
        columns = {}
        for name, values in table.columns.items():
            odd = np.abs(values) > _LARGEST if values.dtype.kind == "f" else np.zeros(0, dtype=bool)
            n = int(odd.sum())
            count(table.place.source, n)
            columns[name] = np.where(odd, np.nan, values) if n else values
        rows.append(msgspec.structs.replace(table, columns=columns))
    counters = []
    for counter in body.counters:
        good = abs(counter.first) <= _LARGEST and abs(counter.last) <= _LARGEST
        count(counter.place.source, 0 if good else 1)
        counters += [counter] if good else []
    histograms = []
    for one in body.histograms:
        good = all(abs(value) <= _LARGEST for value in (*one.bounds, *one.counts, one.sum or 0.0))
        count(one.place.source, 0 if good else 1)
        histograms += [one] if good else []
    if not left:
        return body
    said = [
        Understood(
            source=source, format="numbers", understood=0, total=0, what="values",
            said=[f"{n} value{'s are no numbers' if n > 1 else ' is no number'} (infinite or none) and left out"],
        )
        for source, n in left.items()
    ]  # fmt: skip
    return msgspec.structs.replace(
        body, series=series, rows=rows, counters=counters, histograms=histograms, understood=[*body.understood, *said]
    )
