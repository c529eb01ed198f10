"""The Prometheus text format: a scrape as samples, with what is needed to read engines honestly.

`_created` series are dropped (every counter and histogram of vLLM has one). A name's type comes from its `# TYPE`
line, because names lie: vLLM's `iteration_tokens_total` is a histogram.
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
_PARTS: Final = ("_bucket", "_sum", "_count")


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line of a scrape."""

    labels: dict[str, str]
    value: float


class Histogram(msgspec.Struct, frozen=True):
    """A cumulative histogram, its series summed."""

    bounds: list[float]
    """Upper bounds, ascending, the infinite one left out."""
    counts: list[float]
    """Cumulative counts, one per bound."""
    sum: float
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

    __slots__ = ("samples", "types")

    def __init__(self, samples: dict[str, list[Sample]], types: dict[str, str]) -> None:
        self.samples = samples
        self.types = types

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

    def histogram(self, name: str) -> Histogram | None:
        """The histogram `name`, its series (engines, models) summed bucket by bucket; `None` where there is none."""
        buckets = self.samples.get(f"{name}_bucket")
        if not buckets:
            return None
        sums: dict[float, float] = {}
        for sample in buckets:
            bound = _number(sample.labels.get("le", ""))
            if bound is not None and not math.isinf(bound):
                sums[bound] = sums.get(bound, 0.0) + sample.value
        bounds = sorted(sums)
        count = self.total(f"{name}_count") or 0.0
        return Histogram(bounds, [sums[bound] for bound in bounds], self.total(f"{name}_sum") or 0.0, count)


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
    return {found[1]: _unescape(found[2]) for found in _LABEL.finditer(text)}


def parse_scrape(text: str, *, prefixes: Iterable[str] = ()) -> Scrape:
    """Read a scrape. Lines that are no samples are skipped; values that are NaN are absent.

    `prefixes` limits the work to names that begin with one of them; types are read all the same.
    """
    wanted = tuple(prefixes)
    samples: dict[str, list[Sample]] = {}
    types: dict[str, str] = {}
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
        # An OpenMetrics exemplar follows the value after " # ".
        found = _SAMPLE.match(line.partition(" # ")[0] if " # {" in line else line)
        if found is None:
            continue
        name = found[1]
        if name.endswith("_created"):
            continue
        value = _number(found[3])
        if value is None or math.isnan(value):
            continue
        samples.setdefault(name, []).append(Sample(_labels(found[2]), value))
    return Scrape(samples, {name: kind for name, kind in types.items() if not name.endswith("_created")})
