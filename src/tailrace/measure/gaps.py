"""Gaps between token events: their distribution in bounded memory, and their share per token."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from tailrace.model.timeline import EventKind, Timeline

EXACT_LIMIT: Final = 4096
"""Up to this many gaps every one is kept and quantiles are exact; beyond it they go into a histogram."""

_MANTISSA: Final = 7
"""Leading bits of a value that a bucket keeps: buckets are at most 1/64 wide, their middle at most 0.8 % off."""


class GapDigest:
    """Count, maximum and quantiles of non-negative integers (ns). Count and maximum are always exact."""

    __slots__ = ("_buckets", "_exact", "count", "max")

    def __init__(self) -> None:
        self._exact: array[int] = array("q")
        self._buckets: dict[int, int] | None = None
        self.count = 0
        self.max: int | None = None

    @property
    def method(self) -> str:
        """How quantiles are known: `exact`, or `histogram` (within 0.8 %). Empty while there is no gap."""
        if not self.count:
            return ""
        return "exact" if self._buckets is None else "histogram"

    def extend(self, values: list[int]) -> None:
        """Take in more values (ns, none negative)."""
        if not values:
            return
        self.count += len(values)
        largest = max(values)
        if self.max is None or largest > self.max:
            self.max = largest
        if self._buckets is None:
            self._exact.extend(values)
            if self.count <= EXACT_LIMIT:
                return
            self._buckets = {}
            values = self._exact.tolist()
            self._exact = array("q")
        # Sorted values fall into their few buckets by bisection: far cheaper than a bucket a value.
        values = sorted(values)
        buckets = self._buckets
        at = 0
        while at < len(values):
            shift = max(values[at].bit_length() - _MANTISSA, 0)
            low = values[at] >> shift
            end = bisect_left(values, (low + 1) << shift, at)
            key = (shift << _MANTISSA) | low
            buckets[key] = buckets.get(key, 0) + end - at
            at = end

    def quantile(self, q: float) -> int | None:
        """The q-quantile (0..1): linear interpolation between order statistics, or the middle of its bucket."""
        if not self.count:
            return None
        if self._buckets is None:
            return exact_quantile(sorted(self._exact), q)
        rank = q * (self.count - 1)
        seen = 0
        for key in sorted(self._buckets):
            seen += self._buckets[key]
            if seen > rank:
                shift = key >> _MANTISSA
                low = (key & ((1 << _MANTISSA) - 1)) << shift
                return min(low + (1 << shift) // 2, self.max or 0)
        return self.max


def exact_quantile(ordered: list[int], q: float) -> int:
    """The q-quantile of a sorted, non-empty list by linear interpolation (numpy's default), rounded to integer."""
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (position - low))


def token_gaps(timeline: Timeline) -> list[int]:
    """Gaps between token-carrying events that are next to each other in truth (ns).

    An event into which thinning merged others has no true gap before it; it is left out.
    """
    return [gap for gap, _ in _gaps_with_tokens(timeline)]


def per_token_gaps(timeline: Timeline, output_tokens: int | None = None) -> list[float]:
    """ITL: each gap spread over the tokens it brought, `gap / k` repeated k times (ns).

    Only gaps whose token count is known are used. Where the engine gave no count per event but its total
    (`output_tokens`) equals the number of token events, each event brought one. Empty where nothing is known.
    """
    stamps = timeline.token_stamps()
    total = len(stamps) + timeline.thinned
    one_each = output_tokens is not None and output_tokens == total
    out: list[float] = []
    for gap, tokens in _gaps_with_tokens(timeline):
        count = tokens if tokens >= 0 else 1 if one_each else 0
        out.extend([gap / count] * count if count else [])
    return out


def _gaps_with_tokens(timeline: Timeline) -> Iterable[tuple[int, int]]:
    """(gap, tokens it brought or -1) for every true gap. Tokens of text-free events count to the next text."""
    merged = timeline.merged
    last: int | None = None
    carried = 0
    for index, (at, kind, tokens) in enumerate(zip(timeline.at_ns, timeline.kind, timeline.tokens, strict=True)):
        if kind > EventKind.REFUSAL:
            carried += max(tokens, 0)
            continue
        if last is not None and not (merged and merged[index]):
            yield at - last, (tokens + carried if tokens >= 0 else -1)
        last = at
        carried = 0
