"""Whether events come in bursts: nothing for a while, then several at one instant. An engine writes them one by one."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window

__all__ = ["StreamBursts", "stream_bursts"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

INSTANT_MS: Final = 1.5
INSTANT_SHARE: Final = 0.1
"""A gap is none if it is at most this much of the stream's mean gap (or `INSTANT_MS`, if that is more)."""
LEAST_EVENTS: Final = 12
MOST_INSTANT: Final = 0.5
LEAST_BURSTS: Final = 3
AT_ONCE: Final = 0.08
"""An answer came at once if its first to last event took no more than this share of its whole time."""


class StreamBursts(NamedTuple):
    """By stream with enough events whose timeline is whole."""

    rows: Ints
    """Rows of `Window.done`."""
    bursty: Mask
    """Most gaps are none, and at least three long ones lie between."""
    at_once: Mask
    """The whole answer came in one burst."""
    events: Floats
    """Events a burst."""
    period_ms: Floats
    """Time from burst to burst (median of the stream)."""
    period_spread: Floats
    """Its quartile distance over its median."""
    first: Floats
    """Events that came with the first one."""

    def of(self, rows: Mask) -> StreamBursts:
        """Those among `rows`, a mask over `Window.done`."""
        keep = rows[self.rows]
        return StreamBursts(
            self.rows[keep],
            self.bursty[keep],
            self.at_once[keep],
            self.events[keep],
            self.period_ms[keep],
            self.period_spread[keep],
            self.first[keep],
        )


def stream_bursts(window: Window) -> StreamBursts:
    """The bursts of every stream; computed once a window."""
    if StreamBursts not in window.found:
        window.found[StreamBursts] = _bursts(window)
    found: StreamBursts = window.found[StreamBursts]
    return found


def _bursts(window: Window) -> StreamBursts:
    gaps = window.gaps
    if not gaps.row.size:
        nothing, none = np.empty(0), np.empty(0, dtype=bool)
        return StreamBursts(np.empty(0, dtype=np.int64), none, none, nothing, nothing, nothing, nothing)
    count = np.bincount(gaps.row, minlength=window.n)
    total = np.bincount(gaps.row, weights=gaps.ms, minlength=window.n)
    mean = total / np.maximum(count, 1)
    instant = gaps.ms <= np.maximum(INSTANT_MS, INSTANT_SHARE * mean[gaps.row])
    still = np.bincount(gaps.row, weights=instant, minlength=window.n)
    longs = count - still
    rows = np.flatnonzero(count + 1 >= LEAST_EVENTS)
    e2e = window.done.ms("e2e")
    bursty = (still >= MOST_INSTANT * count) & (longs >= LEAST_BURSTS)
    at_once = (longs < LEAST_BURSTS) & (total <= AT_ONCE * np.nan_to_num(e2e, nan=np.inf))
    period, spread = _periods(window, instant)
    return StreamBursts(
        rows,
        bursty[rows],
        at_once[rows],
        ((count + 1) / (longs + 1))[rows],
        period[rows],
        spread[rows],
        _first_burst(window, instant)[rows],
    )


def _periods(window: Window, instant: Mask) -> tuple[Floats, Floats]:
    gaps = window.gaps
    ends, owner = gaps.end_ns[~instant] / 1e6, gaps.row[~instant]
    same = owner[1:] == owner[:-1]
    between, of = np.diff(ends)[same], owner[1:][same]
    period, spread = np.full(window.n, np.nan), np.full(window.n, np.nan)
    if of.size:
        edges = np.concatenate([np.flatnonzero(np.diff(of, prepend=-1)), [of.size]])
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            quarter, middle, upper = np.quantile(between[low:high], (0.25, 0.5, 0.75))
            period[of[low]] = middle
            spread[of[low]] = (upper - quarter) / max(middle, 1e-9)
    return period, spread


def _first_burst(window: Window, instant: Mask) -> Floats:
    """1 + the leading gaps of each stream that are none."""
    row = window.gaps.row
    begins = np.concatenate([[0], np.flatnonzero(np.diff(row)) + 1])
    upto = np.concatenate([[0], np.cumsum(~instant)])
    leading = instant & (upto[1:] - upto[begins][np.searchsorted(begins, np.arange(row.size), side="right") - 1] == 0)
    return 1.0 + np.bincount(row, weights=leading, minlength=window.n).astype(np.float64)
