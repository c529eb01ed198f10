"""Chunk gaps of many requests as flat arrays, from their timelines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable
from tailrace.store.timelines import BLOCK, Events

__all__ = ["Gaps", "Part", "longest_gap_ms", "longest_wait_ms", "pooled_gaps", "token_stamps"]


_NARROW: Final = 2**32 - 1


class Gaps(NamedTuple):
    """One entry a chunk gap: the time between two token-carrying events of one request.

    Those of a request stand together, in order. A million long answers have sixteen million gaps: each takes thirteen
    bytes, and what is computed by request is computed in `parts`.
    """

    of: NDArray[np.int64]
    """Rows (in the table) of the requests that have a gap."""
    each: NDArray[np.int64]
    """How many gaps each of them has."""
    begin_ns: NDArray[np.int64]
    """Offset of the earlier event from its request's start."""
    length_ns: NDArray[Any]
    """From the earlier event to the later one; unsigned of 32 bits where none is longer than 4.29 s."""
    tokens: NDArray[Any]
    """Tokens that the later event brought, -1 where nobody said; of 8 bits where all of a block fit."""
    rows: int
    """Requests whose timeline was there."""
    thinned: int
    """Token events that were merged away in those timelines; their gaps are counted by their mean."""

    @property
    def size(self) -> int:
        """How many gaps."""
        return self.length_ns.size

    @property
    def row(self) -> NDArray[Any]:
        """The request's row in the table of each gap."""
        return np.repeat(self.of.astype(np.int32), self.each)

    def rows_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The request's row in the table of the gaps at `places`."""
        rows: NDArray[np.int64] = self.of[np.searchsorted(np.cumsum(self.each), places, side="right")]
        return rows

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Offset of the later event."""
        end: NDArray[np.int64] = self.begin_ns + self.length_ns
        return end

    @property
    def ms(self) -> NDArray[np.float64]:
        """The gaps' lengths (ms)."""
        return self.length_ns / 1e6

    def parts(self, most: int = BLOCK) -> Iterator[Part]:
        """The same in parts of whole requests, about `most` gaps each."""
        ends = np.cumsum(self.each)
        cuts = np.searchsorted(ends, np.arange(most, self.size, most), side="right")
        for low, high in itertools.pairwise(np.unique(np.concatenate([[0], cuts, [ends.size]])).tolist()):
            count = self.each[low:high]
            begin, end = int(ends[low] - count[0]), int(ends[high - 1])
            yield Part(
                begin,
                self.of[low:high],
                ends[low:high] - count - begin,
                count,
                np.repeat(np.arange(count.size), count),
                self.begin_ns[begin:end],
                self.length_ns[begin:end],
                self.length_ns[begin:end] / 1e6,
                self.tokens[begin:end],
            )


class Part(NamedTuple):
    """Gaps of some requests, all of each, one request after the other."""

    at: int
    """Place of the first gap among all."""
    row: NDArray[np.int64]
    """Row of each request."""
    first: NDArray[np.int64]
    """Place of its first gap in this part."""
    size: NDArray[np.int64]
    """How many gaps it has."""
    owner: NDArray[np.int64]
    """Place in `row` of each gap's request."""
    begin_ns: NDArray[np.int64]
    length_ns: NDArray[Any]
    ms: NDArray[np.float64]
    tokens: NDArray[Any]


def token_stamps(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(offsets, tokens) of the token-carrying events, in order (ns)."""
    at = np.asarray(timeline.at_ns, dtype=np.int64)
    carries = np.asarray(timeline.kind, dtype=np.int64) <= EventKind.REFUSAL
    return at[carries], np.asarray(timeline.tokens, dtype=np.int64)[carries]


_Flat = tuple[NDArray[Any], NDArray[np.int64], NDArray[Any], NDArray[Any]]
_Counted = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[Any], NDArray[Any]]


def pooled_gaps(table: RecordTable, rows: NDArray[np.int64]) -> Gaps:
    """The chunk gaps of the given rows. Rows without a timeline contribute none.

    A count that no event carried is filled in with 1 where the request's total (`usage`) equals its number of token
    events: then nothing else is possible. An entry that swallowed m events when the timeline was thinned stands for
    m + 1 gaps of their mean length; the longest gaps survive thinning as they were.
    """
    of: list[NDArray[Any]] = []
    each: list[NDArray[Any]] = []
    begin: list[NDArray[Any]] = []
    length: list[NDArray[Any]] = []
    tokens: list[NDArray[Any]] = []
    seen = thinned = 0
    for block in table.timelines.blocks(rows):
        for found, column in zip(_of_events(block, table), (of, each, begin, length, tokens), strict=True):
            column.append(found)
        seen, thinned = seen + block.rows.size, thinned + int(block.thinned.sum())
    return Gaps(
        _stacked(of, np.int64),
        _stacked(each, np.int64),
        _stacked(begin, np.int64),
        _stacked(length, np.uint32),
        _stacked(tokens, np.int8),
        seen,
        thinned,
    )


def _stacked(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """One array of all, of the type that holds them; the parts go."""
    out = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
    parts.clear()
    return out


def _of_events(events: Events, table: RecordTable) -> _Counted:
    """(requests that have gaps, how many, begin, length and tokens of each gap) in one block."""
    kept, sizes, at, kind, tokens, _, says_merged = events
    which = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
    carries = kind <= EventKind.REFUSAL
    if not carries.all():
        which, at, tokens = which[carries], at[carries], tokens[carries]
    counted = np.bincount(which, minlength=sizes.size)
    # Nothing else is possible where the total equals the number of events.
    certain = (table.column("output_tokens")[kept] == counted) & _any_unsaid(tokens, which, sizes.size)
    if certain.any():
        tokens = np.where(certain[which], tokens.dtype.type(1), tokens)
    same = which[1:] == which[:-1]
    which, begin, end, brought = which[1:][same], at[:-1][same], at[1:][same], tokens[1:][same]
    if says_merged.any():
        merged = {place: table.timelines[int(kept[place])] for place in np.flatnonzero(says_merged).tolist()}
        which, begin, end, brought = _with_unthinned(merged, which, begin, end, brought)
    length = end - begin
    if length.size == 0 or (int(length.min()) >= 0 and int(length.max()) <= _NARROW):
        length = length.astype(np.uint32)
    each = np.bincount(which, minlength=sizes.size)
    return kept[each > 0], each[each > 0], begin, length, _small(brought)


def _small(tokens: NDArray[Any]) -> NDArray[Any]:
    """Nearly all events bring a token or a few."""
    if tokens.size and int(tokens.min()) >= -128 and int(tokens.max()) <= 127:
        return tokens.astype(np.int8)
    return tokens


def _any_unsaid(tokens: NDArray[Any], which: NDArray[Any], lines: int) -> NDArray[np.bool_]:
    unsaid: NDArray[np.bool_] = np.bincount(which[tokens < 0], minlength=lines) > 0
    return unsaid


def _with_unthinned(
    merged: dict[int, Timeline | None],
    which: NDArray[Any],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    brought: NDArray[Any],
) -> _Flat:
    """The gaps with those of thinned timelines taken apart again, in the same order."""
    out: list[_Flat] = []
    edges = np.searchsorted(which, list(merged))
    last = 0
    for (place, line), first in zip(merged.items(), edges.tolist(), strict=True):
        until = int(np.searchsorted(which, place, side="right"))
        out.append((which[last:first], begin[last:first], end[last:first], brought[last:first]))
        if until > first and line is not None:
            parts = _unthinned(line, begin[first:until], end[first:until], brought[first:until])
            out.append((np.full(parts[0].size, place, dtype=np.int64), *parts))
        last = until
    out.append((which[last:], begin[last:], end[last:], brought[last:]))
    return tuple(np.concatenate(arrays) for arrays in zip(*out, strict=True))  # type: ignore[return-value]


def _unthinned(
    timeline: Timeline, begin: NDArray[np.int64], end: NDArray[np.int64], tokens: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    carries = np.asarray(timeline.kind, dtype=np.int64) <= EventKind.REFUSAL
    parts = np.asarray(timeline.merged, dtype=np.int64)[carries][1:] + 1
    entry = np.repeat(np.arange(begin.size), parts)
    place = np.arange(entry.size) - np.repeat(np.cumsum(parts) - parts, parts)
    length = (end - begin)[entry]
    first = begin[entry] + length * place // parts[entry]
    last = begin[entry] + length * (place + 1) // parts[entry]
    share = np.where(tokens < 0, -1, np.maximum(np.round(tokens / parts), np.minimum(tokens, 1))).astype(np.int64)
    return first, last, share[entry]


def longest_gap_ms(table: RecordTable) -> NDArray[np.float64]:
    """Each request's longest chunk gap (ms), from its summary; NaN where it has fewer than two token events."""
    return table.ms("chunk_gap_max")


def longest_wait_ms(table: RecordTable) -> NDArray[np.float64]:
    """The longest time in which a request's reader saw nothing new: the larger of TTFT and the longest gap (ms).

    For an answer that is not streamed it is the whole request. NaN where no first token was seen.
    """
    ttft, gap = table.ms("ttft"), longest_gap_ms(table)
    wait = np.fmax(ttft, gap)
    wait = np.where(np.isnan(ttft), np.nan, wait)
    streamed = table.column("stream").astype(bool)
    whole: NDArray[np.float64] = np.where(streamed, wait, table.ms("e2e"))
    return whole
