"""How long requests are: exactly, from records, or to the next bucket, from an engine's own histograms."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from tailrace.engines.prometheus_text import Histogram, Scrape

_FOR_P99: Final = 500
_FOR_P95: Final = 100
"""Five requests beyond the percentile: fewer make it one request's length."""


class Of(StrEnum):
    """What is counted, in tokens."""

    PROMPT = "prompt"
    OUTPUT = "output"
    TOTAL = "total"
    """Prompt and output of one request: what it holds in the KV cache at its end."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of requests (tokens)."""

    source: str
    prompt: tuple[float, ...] = ()
    """Sorted, one a request."""
    output: tuple[float, ...] = ()
    total: tuple[float, ...] = ()
    histograms: dict[str, Histogram] = {}
    """`Of` -> an engine's histogram, where no records are at hand."""

    @property
    def exact(self) -> bool:
        """Single requests are known, not only buckets."""
        return bool(self.prompt)

    def count(self, of: Of = Of.PROMPT) -> int:
        """How many requests it rests on."""
        values = self._values(of)
        if values:
            return len(values)
        histogram = self.histograms.get(of)
        return int(histogram.count) if histogram is not None else 0

    def quantile(self, q: float, of: Of = Of.PROMPT) -> float | None:
        """The q-quantile (nearest rank); from a histogram the upper end of its bucket. `None`: nobody knows."""
        values = self._values(of)
        if values:
            return values[min(max(math.ceil(q * len(values)) - 1, 0), len(values) - 1)]
        if of is Of.TOTAL and not values:
            parts = (self.quantile(q, Of.PROMPT), self.quantile(q, Of.OUTPUT))
            return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
        histogram = self.histograms.get(of)
        span = histogram.quantile_range(q) if histogram is not None else None
        return None if span is None or math.isinf(span[1]) else span[1]

    def tail(self, of: Of = Of.PROMPT) -> tuple[float, str] | None:
        """(length, what it is) of the long end: p99 from 500 requests on, p95 from 100, below that the longest."""
        value = self.quantile(0.99, of) if self._rests_on(of) >= _FOR_P99 else None
        return self.upper(of) if value is None else (value, "p99")

    def upper(self, of: Of = Of.PROMPT) -> tuple[float, str] | None:
        """(length, what it is): p95 from 100 requests on, below that the longest."""
        count = self._rests_on(of)
        value = self.quantile(0.95, of) if count >= _FOR_P95 else None
        if value is not None:
            return value, "p95"
        value = self.quantile(1.0, of)
        return None if value is None else (value, f"the longest of {count:,}")

    def _rests_on(self, of: Of) -> int:
        return self.count(of) or min(self.count(Of.PROMPT), self.count(Of.OUTPUT))

    def share_above(self, limit: float, of: Of = Of.PROMPT) -> float | None:
        """The share of requests longer than `limit`; from a histogram a lower bound. `None`: nobody knows."""
        values = self._values(of)
        if values:
            return 1.0 - bisect_right(values, limit) / len(values)
        histogram = self.histograms.get(of)
        if histogram is None or not histogram.count:
            return None
        at_most = next(
            (count for bound, count in zip(histogram.bounds, histogram.counts, strict=True) if bound >= limit),
            histogram.count,
        )
        return 1.0 - at_most / histogram.count

    def _values(self, of: Of) -> tuple[float, ...]:
        return {Of.PROMPT: self.prompt, Of.OUTPUT: self.output, Of.TOTAL: self.total}[of]


def lengths_of(pairs: Iterable[tuple[float, float]], *, source: str) -> Lengths:
    """From (prompt tokens, output tokens) of single requests; NaN where a count is not known."""
    listed = list(pairs)
    prompt = sorted(one for one, _ in listed if one == one)  # noqa: PLR0124  (NaN differs from itself)
    output = sorted(two for _, two in listed if two == two)  # noqa: PLR0124
    total = sorted(one + two for one, two in listed if one + two == one + two)
    return Lengths(source=source, prompt=tuple(prompt), output=tuple(output), total=tuple(total))


def lengths_of_scrape(scrape: Scrape, *, source: str) -> Lengths | None:
    """From an engine's own histograms, vLLM's; `None` where there are none, or nothing was served yet."""
    found = {
        of: histogram
        for of, name in ((Of.PROMPT, "vllm:request_prompt_tokens"), (Of.OUTPUT, "vllm:request_generation_tokens"))
        if (histogram := scrape.histogram(name)) is not None and histogram.count
    }
    if Of.PROMPT not in found:
        return None
    return Lengths(source=source, histograms={str(of): histogram for of, histogram in found.items()})
