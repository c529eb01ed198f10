"""Whether events come in bursts: nothing for a while, then several at one instant. An engine writes them one by one."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.gaps import Part
from tailrace.diagnose.window import Window, once_a_window

__all__ = ["StreamBursts", "stream_bursts", "summary_bursts"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

INSTANT_MS: Final = 1.5
INSTANT_SHARE: Final = 0.1
"""A gap is none if it is at most this much of the stream's mean gap (or `INSTANT_MS`, if that is more)."""
LEAST_EVENTS: Final = 12
MOST_INSTANT: Final = 0.5
SUMMED: Final = "record:chunk_gap_p50_ns, record:chunk_gap_max_ns"


class StreamBursts(NamedTuple):
    """By stream with enough events whose timeline is there."""

    rows: Ints
    """Rows of `Window.done`."""
    bursty: Mask
    """At least half of the gaps are none."""
    at_once: Mask
    """All of them are: the whole answer came at one instant."""
    events: Floats
    """Events a burst."""
    first: Floats
    """Events that came with the first one."""
    gap_ms: Floats
    """Time between two bursts (median of the stream), NaN where it is not bursty or there is one burst only."""
    spread: Floats
    """Its quartile distance over its median, NaN where it is not bursty or for fewer than four bursts."""
    source: str = "timeline"
    """Where that was read."""

    def of(self, rows: Mask) -> StreamBursts:
        """Those among `rows`, a mask over `Window.done`."""
        keep = rows[self.rows]
        return StreamBursts(
            self.rows[keep],
            self.bursty[keep],
            self.at_once[keep],
            self.events[keep],
            self.first[keep],
            self.gap_ms[keep],
            self.spread[keep],
            self.source,
        )


@once_a_window
def stream_bursts(window: Window) -> StreamBursts:
    """The bursts of every stream."""
    parts = [_of_part(part) for part in window.gaps.parts()]
    if not parts:
        nothing, none = np.empty(0), np.empty(0, dtype=bool)
        return StreamBursts(np.empty(0, dtype=np.int64), none, none, nothing, nothing, nothing, nothing)
    columns = zip(*(part[:-1] for part in parts), strict=True)
    return StreamBursts._make([*(np.concatenate(column) for column in columns), "timeline"])


@once_a_window
def summary_bursts(window: Window) -> StreamBursts:
    """The same from what every record has, its gaps' median and maximum: where the median gap is none, at least half of
    the events came with the one before; the longest gap is the time between two bursts.
    """
    done = window.done
    count, middle, longest = done.column("chunk_gap_count"), done.ms("chunk_gap_p50"), done.ms("chunk_gap_max")
    whole = done.ms("e2e_last_token") - done.ms("ttft")
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = whole / count
        rows = np.flatnonzero((count + 1 >= LEAST_EVENTS) & ~np.isnan(middle) & ~np.isnan(mean))
        none = (middle <= np.maximum(INSTANT_MS, INSTANT_SHARE * mean))[rows]
        at_once = (longest <= INSTANT_MS)[rows]
        events = np.where(at_once, count[rows] + 1.0, np.clip(longest[rows] / mean[rows], 1.0, count[rows] + 1.0))
    gap = np.where(at_once, np.nan, longest[rows])
    return StreamBursts(rows, none, at_once, events, events, gap, np.full(rows.size, np.nan), SUMMED)


def _of_part(part: Part) -> StreamBursts:
    total = np.bincount(part.owner, weights=part.ms)
    instant = part.ms <= np.maximum(INSTANT_MS, INSTANT_SHARE * total / part.size)[part.owner]
    none_at_all = np.add.reduceat(instant, part.first, dtype=np.int64)
    longs = part.size - none_at_all
    bursty = none_at_all >= MOST_INSTANT * part.size
    between, spread = _between(part, ~instant & bursty[part.owner])
    enough = part.size + 1 >= LEAST_EVENTS
    return StreamBursts(
        part.row[enough],
        bursty[enough],
        (longs == 0)[enough],
        ((part.size + 1) / (longs + 1))[enough],
        _first_burst(part, instant)[enough],
        between[enough],
        spread[enough],
    )


def _between(part: Part, chosen: Mask) -> tuple[Floats, Floats]:
    """Median and spread of the chosen gaps of each stream."""
    length, owner = part.ms[chosen], part.owner[chosen]
    middle, spread = np.full(part.row.size, np.nan), np.full(part.row.size, np.nan)
    if owner.size:
        # All streams at once: sorted within each stream, the quantiles are places in one array.
        length = length[np.lexsort((length, owner))]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        size = np.diff(np.append(first, owner.size))
        quarter, half, upper = (_at(length, first, size, p) for p in (0.25, 0.5, 0.75))
        place = owner[first]
        middle[place] = half
        spread[place] = np.where(size >= 4, (upper - quarter) / np.maximum(half, 1e-9), np.nan)
    return middle, spread


def _at(ordered: Floats, first: Ints, size: Ints, p: float) -> Floats:
    """The p-quantile (linear) of each run of `size` ascending values that begins at `first`."""
    place = p * (size - 1)
    low = np.floor(place).astype(np.int64)
    one, two = ordered[first + low], ordered[first + np.minimum(low + 1, size - 1)]
    out: Floats = one + (two - one) * (place - low)
    return out


def _first_burst(part: Part, instant: Mask) -> Floats:
    """1 + the leading gaps of each stream that are none."""
    longs = np.append(np.flatnonzero(~instant), instant.size)
    end = np.minimum(longs[np.searchsorted(longs, part.first)], part.first + part.size)
    found: Floats = 1.0 + (end - part.first).astype(np.float64)
    return found
