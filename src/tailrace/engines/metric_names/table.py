"""What a table of metric names holds, and how a scrape is held against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from tailrace.engines.prometheus_text import Scrape

MOST_REPORTED: Final = 40
"""Unknown names that are listed by name; the rest are counted."""

_LONGEST_NAME: Final = 200

_SERIES: Final = {
    "any": ("", "_total", "_bucket", "_sum", "_count"),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount", "_sum", "_count"),
}


class MetricName(msgspec.Struct, frozen=True):
    """One metric family that an engine is known to export."""

    name: str
    kind: str
    """`counter`, `gauge`, `histogram`, `summary`, `gaugehistogram`: what it is, whatever its name says; `any` where
    only the name is known."""
    what: str
    since: str = ""
    """The oldest version in which it was seen; empty where only one version was looked at."""
    until: str = ""
    """The newest version in which it was seen; empty where the newest one looked at has it."""

    def series(self) -> tuple[str, ...]:
        """The names of its samples in a scrape. Clients write counters with and without `_total`."""
        if self.kind == "counter":
            bare = self.name.removesuffix("_total")
            return (bare, f"{bare}_total")
        return tuple(f"{self.name}{ending}" for ending in _SERIES.get(self.kind, ("",)))


class MetricNames:
    """The families of one engine."""

    __slots__ = ("_series", "by_name")

    def __init__(self, families: Iterable[MetricName]) -> None:
        self.by_name: Mapping[str, MetricName] = {family.name: family for family in families}
        self._series = frozenset(sample for family in self.by_name.values() for sample in family.series())

    def __iter__(self) -> Iterator[MetricName]:
        return iter(self.by_name.values())

    def __contains__(self, series: str) -> bool:
        """Whether a sample's name belongs to one of the families."""
        return series in self._series

    def unknown(self, scrape: Scrape, prefixes: tuple[str, ...]) -> UnknownNames:
        """What the scrape has under one of the engine's prefixes and no family here explains."""
        extra = sorted(name for name in scrape.samples.keys() - self._series if name.startswith(prefixes))
        if not extra:
            return NONE_UNKNOWN
        # The three series of a histogram are one thing to look up.
        families = sorted({_family(name, scrape)[:_LONGEST_NAME] for name in extra})
        return UnknownNames(tuple(families[:MOST_REPORTED]), len(families))


class UnknownNames(msgspec.Struct, frozen=True):
    """Names that nothing here explains, at most `MOST_REPORTED` of them, and how many there are."""

    names: tuple[str, ...] = ()
    count: int = 0


NONE_UNKNOWN: Final = UnknownNames()


def _family(series: str, scrape: Scrape) -> str:
    for ending in ("_bucket", "_sum", "_count"):
        bare = series.removesuffix(ending)
        if bare != series and scrape.type_of(bare) in _SERIES:
            return bare
    return series


def read_names(prefix: str, text: str) -> list[MetricName]:
    """The rows of a table written as text: `name kind since until : what`, `-` for an empty version.

    A line `[words]` heads a group; rows without words of their own take the group's.
    """
    out: list[MetricName] = []
    group = ""
    for line in text.splitlines():
        row = line.strip()
        if not row:
            continue
        if row[0] == "[":
            group = row.strip("[]")
            continue
        left, _, what = row.partition(" : ")
        name, kind, *versions = left.split()
        since, until = (*(("" if each == "-" else each) for each in versions), "", "")[:2]
        out.append(MetricName(f"{prefix}{name}", kind, what.strip() or group, since, until))
    return out
