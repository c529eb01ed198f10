"""One axis of time for the requests of a table, so that events of different requests can be laid beside each other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tailrace.store.table import RecordTable

__all__ = ["aligned_on_one_clock", "in_order", "request_rate", "starts_ns", "timed"]


def aligned_on_one_clock(table: RecordTable) -> bool:
    """Whether every record carries the run's own monotonic offsets (the probe's and the simulator's do)."""
    return len(table) > 0 and not bool(np.isnan(table.column("run_offset_ns")).any())


def timed(table: RecordTable) -> bool:
    """Whether it is known when the requests began. Some load generators tell how long they took, and not when."""
    return aligned_on_one_clock(table) or (len(table) > 0 and bool((table.column("start_unix_ns") > 0).any()))


def in_order(table: RecordTable) -> RecordTable:
    """The rows by their start, equal starts by their id: whoever stacked or shuffled them, the same table.

    Where nobody says when requests began, their order is all that is known of it, and stays.
    """
    if len(table) < 2 or not timed(table):
        return table
    starts = table.column("run_offset_ns") if aligned_on_one_clock(table) else table.column("start_unix_ns")
    steps = np.diff(starts)
    if (steps > 0).all():
        return table
    order = np.argsort(starts, kind="stable")
    if (np.diff(starts[order]) == 0).any():
        by_id = np.argsort(table.column("request_id"), kind="stable")
        order = by_id[np.argsort(starts[by_id], kind="stable")]
    return table.where(order)


def starts_ns(table: RecordTable) -> NDArray[np.int64]:
    """Each request's start on one axis (ns; 0 is the earliest).

    From the run's monotonic offsets where all records have them. Otherwise from the wall clock, which is good for
    laying requests side by side (tens of microseconds on one host) but never for a duration: durations come from the
    record alone.
    """
    if not len(table):
        return np.empty(0, dtype=np.int64)
    if aligned_on_one_clock(table):
        late = np.nan_to_num(table.column("intended_to_sent_ns"), nan=0.0)
        starts = (table.column("run_offset_ns") + late).astype(np.int64)
    else:
        starts = table.column("start_unix_ns").astype(np.int64)
    shifted: NDArray[np.int64] = starts - starts.min()
    return shifted


def request_rate(runs: Iterable[RecordTable]) -> float:
    """Requests a second of one run, or of several, each over its own time; 0.0 where there is no span of time."""
    spans = [(starts.size - 1, float(starts.max()) / 1e9) for starts in map(starts_ns, runs) if starts.size > 1]
    seconds = sum(span for _, span in spans)
    return sum(count for count, _ in spans) / seconds if seconds > 0.0 else 0.0
