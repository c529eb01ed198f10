"""A run over time: what was due, sent, done and failed in each stretch, what was in flight, how late sends were."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.counted import completed, failed
from tailrace.analyze.steady import in_flight_mean
from tailrace.analyze.timebase import aligned_on_one_clock, starts_ns
from tailrace.store.table import RecordTable

__all__ = ["RunSeries", "due_s", "run_series", "sent_s", "thinned"]

Floats = NDArray[np.float64]

_WIDTHS_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)
MOST_CELLS: Final = 120


class RunSeries(NamedTuple):
    """One entry a stretch of time. Rates are per second."""

    edges: Floats
    """Seconds since the run's start, one more than there are stretches."""
    due: Floats | None
    """Requests that were to be sent, where there was a schedule."""
    sent: Floats
    done: Floats
    failed: dict[str, Floats]
    """Reason -> how many (not a rate) ended so."""
    tokens: Floats
    """Output tokens of the requests that were done, at the time when each was."""
    in_flight: Floats
    """Mean number between send and end."""
    waiting: Floats | None
    """Mean number that were due and not sent yet, where there was a schedule: what the client's own limit held back."""
    late_ms: Floats | None
    """The latest send (ms); NaN where nothing was sent."""

    @property
    def middle(self) -> Floats:
        """The middle of each stretch (s)."""
        middle: Floats = (self.edges[:-1] + self.edges[1:]) / 2
        return middle

    @property
    def width_s(self) -> float:
        """How long a stretch is."""
        return float(self.edges[1] - self.edges[0])


def sent_s(table: RecordTable) -> Floats:
    """When each request was sent, in seconds since the start of the run (or since the first one)."""
    if aligned_on_one_clock(table):
        late = np.nan_to_num(table.column("intended_to_sent_ns"), nan=0.0)
        sent: Floats = (table.column("run_offset_ns") + late) / 1e9
        return sent
    return starts_ns(table) / 1e9


def due_s(table: RecordTable) -> Floats:
    """When each request was to be sent, where that is known, else when it was."""
    due: Floats = table.column("run_offset_ns") / 1e9 if aligned_on_one_clock(table) else sent_s(table)
    return due


def run_series(table: RecordTable) -> RunSeries | None:
    """The series of a table of at least one record."""
    if not len(table):
        return None
    sent, due = sent_s(table), due_s(table)
    ends = sent + table.column("e2e_ns") / 1e9
    span = max(float(ends.max()), 1e-3)
    width = next((one for one in _WIDTHS_S if span / one <= MOST_CELLS), span / MOST_CELLS)
    edges = np.arange(0.0, span + width, width)
    if edges.size < 2:
        edges = np.array([0.0, width])

    def counted(moments: Floats, weights: Floats | None = None) -> Floats:
        place = np.clip((moments / width).astype(np.int64), 0, edges.size - 2)
        return np.bincount(place, weights=weights, minlength=edges.size - 1).astype(np.float64)

    done, bad = completed(table), failed(table)
    scheduled = not bool(np.isnan(table.column("intended_to_sent_ns")).all())
    reasons = table.column("reason").astype(str)
    tokens = np.nan_to_num(table.column("output_tokens"))
    late = None
    if scheduled:
        late = np.full(edges.size - 1, np.nan)
        place = np.clip((sent / width).astype(np.int64), 0, edges.size - 2)
        np.fmax.at(late, place, table.column("intended_to_sent_ns") / 1e6)
    return RunSeries(
        edges=edges,
        due=counted(due) / width if scheduled else None,
        sent=counted(sent) / width,
        done=counted(ends[done]) / width,
        failed={str(reason): counted(ends[bad & (reasons == reason)]) for reason in np.unique(reasons[bad])},
        tokens=counted(ends[done], tokens[done]) / width,
        in_flight=in_flight_mean(sent, ends, edges),
        waiting=in_flight_mean(due, np.maximum(sent, due), edges) if scheduled else None,
        late_ms=late,
    )


def thinned(values: Floats, most: int) -> NDArray[np.int64]:
    """Rows to draw: all where there are at most `most`, else the largest tenth of that and an even sample of the rest.

    Rows are in their own order. What is largest is what a reader looks for; the even sample keeps the shape of the
    rest. NaN rows are never drawn.
    """
    known = np.flatnonzero(~np.isnan(values))
    if known.size <= most:
        return known
    largest = known[np.argsort(values[known], kind="stable")[-most // 10 :]]
    rest = np.setdiff1d(known, largest, assume_unique=True)
    step = rest[np.linspace(0, rest.size - 1, most - largest.size).astype(np.int64)]
    return np.union1d(largest, step)
