"""The steady part of a run: without its ramp up and its ramp down. Off unless somebody asks, and named when used."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.timebase import aligned_on_one_clock, starts_ns
from tailrace.model.errors import InputError
from tailrace.store.table import RecordTable

__all__ = ["STEADY_SHARE", "Trim", "Window", "window_of"]

STEADY_SHARE: Final = 0.8
"""In flight at least this share of the peak is steady."""
_CELLS: Final = 200
_MIN_SHARE: Final = 0.1
"""A steady stretch shorter than this share of the run is none: the load never settled."""


class Trim(msgspec.Struct, frozen=True, kw_only=True):
    """What to leave out: a time at either end, or everything outside the longest steady stretch."""

    up_ns: int = 0
    down_ns: int = 0
    steady: bool = False


class Window(NamedTuple):
    """The part of a run that is looked at."""

    rows: NDArray[np.bool_]
    """Requests that were to start in it."""
    duration_s: float
    words: str


def window_of(table: RecordTable, trim: Trim) -> Window:
    """The rows of `table` that `trim` leaves, by the time at which each was to start. InputError if none is left.

    By the intended time where there is one: choosing by the real send would lose the requests that came too late.
    """
    if not len(table):
        return Window(np.ones(0, dtype=bool), 0.0, "")
    planned = starts = starts_ns(table) / 1e9
    if aligned_on_one_clock(table):
        # Both from the run's start. The first request may come seconds after it, and is not where the run begins.
        planned = table.column("run_offset_ns") / 1e9
        starts = planned + np.nan_to_num(table.column("intended_to_sent_ns"), nan=0.0) / 1e9
    ends = starts + table.column("e2e_ns") / 1e9
    if trim.steady:
        begin, end = _steady(starts, ends)
        how = f"in flight at least {STEADY_SHARE:.0%} of the peak"
    else:
        begin, end = trim.up_ns / 1e9, float(planned.max()) - trim.down_ns / 1e9
        how = f"without the first {trim.up_ns / 1e9:g} s and the last {trim.down_ns / 1e9:g} s of sending"
    rows = (planned >= begin) & (planned <= end)
    if not rows.any():
        raise InputError(
            f"nothing is left between {begin:.1f} s and {end:.1f} s",
            place="--trim",
            remedy=f"The run sent for {float(planned.max()):.1f} s; leave out less, or run for longer.",
        )
    words = f"requests due between {begin:.1f} s and {end:.1f} s of the run ({how}): {int(rows.sum())} of {rows.size}"
    return Window(rows, end - begin, words)


def _steady(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[float, float]:
    """The longest stretch of cells whose mean number in flight is near the highest one's."""
    last = float(starts.max())
    edges = np.linspace(0.0, max(last, 1e-9), _CELLS + 1)
    level = in_flight_mean(starts, ends, edges)
    full = level >= STEADY_SHARE * level.max()
    breaks = np.flatnonzero(np.diff(np.concatenate(([0], full.astype(np.int8), [0]))))
    spans = breaks.reshape(-1, 2)
    begin, end = spans[int(np.argmax(spans[:, 1] - spans[:, 0]))]
    if end - begin < _MIN_SHARE * _CELLS:
        raise InputError(
            f"the load never settled: its longest steady stretch is {edges[end] - edges[begin]:.1f} of {last:.1f} s",
            place="--trim steady",
            remedy="Name the times instead: --trim 10s,5s.",
        )
    return float(edges[begin]), float(edges[end])


def in_flight_mean(
    starts: NDArray[np.float64], ends: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean number of requests in flight between neighbouring `edges` (s, ascending)."""

    def spent_until(moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """Request-seconds spent before each edge by requests of which `moments` are the beginnings."""
        ordered = np.sort(moments)
        before = np.searchsorted(ordered, edges, side="right")
        summed = np.concatenate(([0.0], np.cumsum(ordered)))
        return before * edges - summed[before]

    spent: NDArray[np.float64] = np.diff(spent_until(starts) - spent_until(ends))
    return spent / np.diff(edges)
