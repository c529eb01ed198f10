"""Chunk gaps of many requests as flat arrays, from their timelines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable

__all__ = ["Gaps", "longest_gap_ms", "longest_wait_ms", "pooled_gaps", "token_stamps"]


class Gaps(NamedTuple):
    """One entry a chunk gap: the time between two token-carrying events of one request."""

    row: NDArray[np.int64]
    """The request's row in the table."""
    begin_ns: NDArray[np.int64]
    """Offset of the earlier event from its request's start."""
    end_ns: NDArray[np.int64]
    """Offset of the later event."""
    tokens: NDArray[np.int64]
    """Tokens that the later event brought, -1 where nobody said."""
    rows: int
    """Requests whose timeline was there."""
    thinned: int
    """Token events that were merged away in those timelines; their gaps are counted by their mean."""

    @property
    def ms(self) -> NDArray[np.float64]:
        """The gaps' lengths (ms)."""
        return (self.end_ns - self.begin_ns) / 1e6


def token_stamps(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(offsets, tokens) of the token-carrying events, in order (ns)."""
    at = np.asarray(timeline.at_ns, dtype=np.int64)
    carries = np.asarray(timeline.kind, dtype=np.int64) <= EventKind.REFUSAL
    return at[carries], np.asarray(timeline.tokens, dtype=np.int64)[carries]


def pooled_gaps(table: RecordTable, rows: NDArray[np.int64]) -> Gaps:
    """The chunk gaps of the given rows. Rows without a timeline contribute none.

    A count that no event carried is filled in with 1 where the request's total (`usage`) equals its number of token
    events: then nothing else is possible. An entry that swallowed m events when the timeline was thinned stands for
    m + 1 gaps of their mean length; the longest gaps survive thinning as they were.
    """
    kept, sizes, at, kind, tokens, thinned, says_merged = table.timelines.events(rows)
    carries = kind <= EventKind.REFUSAL
    which = np.repeat(np.arange(sizes.size), sizes)[carries]
    at, tokens = at[carries], tokens[carries]
    events = np.bincount(which, minlength=sizes.size)
    # Nothing else is possible where the total equals the number of events.
    output = table.column("output_tokens")[kept]
    tokens = np.where((output == events)[which] & _any_unsaid(tokens, which, sizes.size)[which], 1, tokens)
    same = which[1:] == which[:-1]
    which, begin, end, brought = which[1:][same], at[:-1][same], at[1:][same], tokens[1:][same]
    if says_merged.any():
        merged = {place: table.timelines[int(kept[place])] for place in np.flatnonzero(says_merged).tolist()}
        which, begin, end, brought = _with_unthinned(merged, which, begin, end, brought)
    return Gaps(kept[which], begin, end, brought, kept.size, int(thinned.sum()))


def _any_unsaid(tokens: NDArray[np.int64], which: NDArray[np.int64], lines: int) -> NDArray[np.bool_]:
    unsaid: NDArray[np.bool_] = np.bincount(which[tokens < 0], minlength=lines) > 0
    return unsaid


_Flat = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _with_unthinned(
    merged: dict[int, Timeline | None],
    which: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    brought: NDArray[np.int64],
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
