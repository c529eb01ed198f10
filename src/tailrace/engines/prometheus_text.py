"""The Prometheus text format: a scrape as samples, with what is needed to read engines honestly.

`_created` series are dropped (every counter and histogram of vLLM has one). A name's type comes from its `# TYPE`
line, because names lie: vLLM's `iteration_tokens_total` is a histogram. Of a series that stands twice in one scrape the
first is taken, as Prometheus does: adding them up would count twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

import msgspec

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*$")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE: Final = re.compile(r"\\(.)")
_MOST_KNOWN: Final = 20_000
"""Series that a memo keeps (some 6 MB); above it (a label with a value for each request) it begins anew."""

_LARGEST: Final = 2.0**63
"""No engine counts so far, and sums and differences of smaller values are finite."""

Labels = tuple[tuple[str, str], ...]
"""A label set that can be a key: (name, value), sorted by name."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line of a scrape."""

    labels: dict[str, str]
    value: float
    sorted: Labels | None = None
    """`label_key(labels)`, where it is known already."""

    @property
    def key(self) -> Labels:
        """Its labels as a key."""
        return label_key(self.labels) if self.sorted is None else self.sorted


class Series(msgspec.Struct, frozen=True, eq=False):
    """What a sample's name and labels say, read once for all scrapes that repeat them."""

    name: str
    labels: dict[str, str]
    key: Labels


class SeriesMemo:
    """Every series that the scrapes of one engine have told so far, read once.

    An engine repeats itself with each scrape: with a memo reading vLLM's 60 kB costs a third.
    """

    __slots__ = ("by_labels", "by_spelling", "met", "names")

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Metrics that were met and are not dropped."""
        self.by_labels: dict[str, tuple[dict[str, str], Labels]] = {}
        """What stands between the braces -> the labels, and as a key: a metric's are often another's."""
        self.by_spelling: dict[str, Series | None] = {}
        """A line up to its value -> what it says; `None` for what is dropped."""
        self.met: dict[tuple[str, Labels], Series] = {}

    def series(self, name: str, spelled: str | None) -> Series:
        """The one series of this name and these labels, whatever their order."""
        if len(self.met) > _MOST_KNOWN:
            self.met.clear()
            self.by_spelling.clear()
            self.by_labels.clear()
            self.names.clear()
        known = self.by_labels.get(spelled or "")
        if known is None:
            labels = _labels(spelled)
            known = self.by_labels[spelled or ""] = labels, label_key(labels)
        labels, key = known
        there = self.met.get((name, key))
        if there is None:
            there = self.met[name, key] = Series(name, labels, key)
        return there


class Summary(msgspec.Struct, frozen=True):
    """A summary: quantiles over a window of the engine's own choice. They cannot be added up over series or time."""

    quantiles: dict[float, tuple[float, float]]
    """q -> the lowest and the highest value over the series: the quantile of all lies between them."""
    sum: float
    count: float

    @property
    def mean(self) -> float | None:
        """`sum / count`, since the engine's start."""
        return self.sum / self.count if self.count else None


class Histogram(msgspec.Struct, frozen=True):
    """A cumulative histogram, its series summed."""

    bounds: list[float]
    """Upper bounds, ascending, the infinite one left out."""
    counts: list[float]
    """Cumulative counts, one per bound."""
    sum: float
    """NaN where the scrape does not have it."""
    count: float

    @property
    def mean(self) -> float | None:
        """`sum / count`; always readable, whatever the buckets are."""
        return self.sum / self.count if self.count else None

    def quantile_range(self, q: float) -> tuple[float, float] | None:
        """The bucket `[low, high]` in which the q-quantile lies; `None` where the histogram is empty.

        The first bucket begins at 0 and the last has no end (`inf`): a quantile there is not a number, and a reader
        must not interpolate one. vLLM's phase histograms begin at 0.3 s, so anything below reads as "0 to 300 ms".
        """
        if not self.count:
            return None
        rank = q * self.count
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank:
                return low, bound
            low = bound
        return low, math.inf

    def quantile(self, q: float) -> float | None:
        """The q-quantile by interpolation inside its bucket; `None` in the first bucket and in the open last one."""
        span = self.quantile_range(q)
        if span is None or not self.bounds or span[1] == math.inf or span[1] == self.bounds[0]:
            return None
        index = self.bounds.index(span[1])
        before = self.counts[index - 1]
        inside = self.counts[index] - before
        share = (q * self.count - before) / inside if inside else 1.0
        return span[0] + (span[1] - span[0]) * share

    def share_at_most(self, value: float) -> float | None:
        """The share of observations at or below `value`; `None` where no bucket ends there, so nobody can know."""
        if not self.count:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if math.isclose(bound, value, rel_tol=1e-9):
                return count / self.count
        return None


class Scrape:
    """The samples of one scrape by name."""

    __slots__ = ("duplicates", "samples", "types")

    def __init__(self, samples: dict[str, list[Sample]], types: dict[str, str], duplicates: int = 0) -> None:
        self.samples = samples
        self.types = types
        self.duplicates = duplicates
        """Lines that repeat a series which the scrape has already told."""

    def __contains__(self, name: str) -> bool:
        return name in self.samples

    @property
    def names(self) -> set[str]:
        """Names of all samples and families in the scrape."""
        return set(self.samples) | set(self.types)

    def total(self, name: str) -> float | None:
        """The sum over all series of `name`; `None` where the scrape has none."""
        found = self.samples.get(name)
        return sum(sample.value for sample in found) if found else None

    def largest(self, name: str) -> float | None:
        """The largest value over all series of `name`; `None` where the scrape has none."""
        found = self.samples.get(name)
        return max(sample.value for sample in found) if found else None

    def type_of(self, name: str) -> str:
        """The declared type of a family (`counter`, `gauge`, `histogram`, `summary`), or empty."""
        return self.types.get(name, "")

    def series(self, name: str) -> dict[Labels, float]:
        """Label set -> value, of what can be one."""
        found = self.samples.get(name, ())
        return {sample.key: sample.value for sample in found if -_LARGEST < sample.value < _LARGEST}

    def histograms(self, name: str) -> dict[Labels, Histogram]:
        """Label set (without `le`) -> its histogram. Its count is the bucket without end, or `_count` without one."""
        buckets: dict[Labels, dict[float, float]] = {}
        at = 0
        for sample in self.samples.get(f"{name}_bucket", ()):
            bound = _number(sample.labels.get("le", ""))
            if bound is not None and not math.isnan(bound) and _possible(sample.value):
                key = sample.key
                # In the series of one metric it stands where it stood in the one before.
                if at >= len(key) or key[at][0] != "le":
                    at = next(place for place, item in enumerate(key) if item[0] == "le")
                buckets.setdefault(key[:at] + key[at + 1 :], {})[bound] = sample.value
        if not buckets:
            return {}
        sums, counts = self.series(f"{name}_sum"), self.series(f"{name}_count")
        out: dict[Labels, Histogram] = {}
        for labels, cells in buckets.items():
            whole = cells.pop(math.inf, None)
            bounds = sorted(cells)
            count = counts.get(labels, 0.0) if whole is None else whole
            out[labels] = Histogram(bounds, [cells[bound] for bound in bounds], sums.get(labels, math.nan), count)
        return out

    def histogram(self, name: str) -> Histogram | None:
        """The histogram `name`, its series (engines, models) put together; `None` where there is none."""
        found = self.histograms(name)
        return put_together(found.values()) if found else None

    def summary(self, name: str) -> Summary | None:
        """The summary `name` over all its series; `None` where the scrape has none, or without quantiles."""
        spans: dict[float, tuple[float, float]] = {}
        for sample in self.samples.get(name, ()):
            q = _number(sample.labels.get("quantile", ""))
            if q is not None and 0 <= q <= 1 and _possible(sample.value):
                low, high = spans.get(q, (sample.value, sample.value))
                spans[q] = min(low, sample.value), max(high, sample.value)
        if not spans:
            return None
        return Summary(
            dict(sorted(spans.items())), self.total(f"{name}_sum") or 0.0, self.total(f"{name}_count") or 0.0
        )


def label_key(labels: dict[str, str]) -> Labels:
    """A label set as a key."""
    return tuple(sorted(labels.items()))


def put_together(parts: Iterable[Histogram]) -> Histogram:
    """Several series of one histogram as one.

    Only bounds that all of them have are kept: what one of them counted below a bound that it does not have, nobody
    knows. Series that saw nothing say nothing about bounds.
    """
    every = list(parts)
    seen = [part for part in every if part.count] or every
    if not seen:
        return Histogram([], [], 0.0, 0.0)
    if len(seen) == 1:
        return Histogram(seen[0].bounds, seen[0].counts, seen[0].sum, seen[0].count)
    common = set(seen[0].bounds).intersection(*(part.bounds for part in seen[1:]))
    bounds = sorted(common)
    sums = dict.fromkeys(bounds, 0.0)
    for part in seen:
        for bound, count in zip(part.bounds, part.counts, strict=True):
            if bound in common:
                sums[bound] += count
    counts = [sums[bound] for bound in bounds]
    return Histogram(bounds, counts, sum(part.sum for part in seen), sum(part.count for part in seen))


def _possible(value: float) -> bool:
    """Whether something was counted or measured there: not NaN or infinite, nor so large that sums of it would be."""
    return -_LARGEST < value < _LARGEST


def _number(text: str) -> float | None:
    try:
        return float(text)  # accepts +Inf, -Inf, NaN and exponents
    except ValueError:
        return None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


def _labels(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    if "\\" not in text:
        return dict(_LABEL.findall(text))
    return {found[1]: _unescape(found[2]) for found in _LABEL.finditer(text)}


def parse_scrape(text: str, *, prefixes: Iterable[str] = (), memo: SeriesMemo | None = None) -> Scrape:
    """Read a scrape. Lines that are no samples are skipped; values that are NaN are absent.

    `prefixes` limits the work to names that begin with one of them; types are read all the same. `memo` makes the next
    scrape of the same engine cheaper; it is filled here.
    """
    wanted = tuple(prefixes)
    known = SeriesMemo() if memo is None else memo
    samples: dict[str, list[Sample]] = {}
    types: dict[str, str] = {}
    told: set[Series] = set()
    duplicates = 0
    # Not splitlines(): label values may hold any other separator.
    for raw in text.split("\n"):
        line = raw.strip()
        if not line:
            continue
        if line[0] == "#":
            words = line.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                types[words[2]] = words[3].strip().lower()
            continue
        if wanted and not line.startswith(wanted):
            continue
        spelled, _, number = line.rpartition(" ")
        if spelled in known.by_spelling:
            series, value = known.by_spelling[spelled], _number(number)
        else:
            series, value = _read_line(line, spelled, number, known)
        if series is None or value is None or math.isnan(value):
            continue
        if series in told:
            duplicates += 1
            continue
        told.add(series)
        samples.setdefault(series.name, []).append(Sample(series.labels, value, series.key))
    types = {name: kind for name, kind in types.items() if not name.endswith("_created")}
    return Scrape(samples, types, duplicates)


def is_plain(number: str) -> bool:
    """Whether what follows the last blank of a line is a number of digits, and so nothing but the value."""
    return number.replace(".", "", 1).isdecimal()


def _read_line(line: str, spelled: str, number: str, memo: SeriesMemo) -> tuple[Series | None, float | None]:
    if spelled[-1:] == "}" and is_plain(number):
        # Most lines are a known name, its labels, a number: what the expression finds in them is known before.
        name, _, labels = spelled[:-1].partition("{")
        if name in memo.names and " # {" not in spelled:
            known = memo.by_spelling[spelled] = memo.series(name, labels)
            return known, _number(number)
    # An OpenMetrics exemplar follows the value after " # ".
    exemplar = " # {" in line
    found = _SAMPLE.match(line.partition(" # ")[0] if exemplar else line)
    if found is None:
        return None, None
    name = found[1]
    series = None if name.endswith("_created") else memo.series(name, found[2])
    if series is not None:
        memo.names.add(name)
    if not exemplar and found.end(3) == len(line) and found[3] == number:
        # Nothing but series, blank, value: the next scrape's line differs in its last word only.
        memo.by_spelling[spelled] = series
    return series, _number(found[3])
