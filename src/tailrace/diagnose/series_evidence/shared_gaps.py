"""Gaps that all streams of a series share: when they came, how long they were, whether they keep a beat."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Rows, Series
from tailrace.diagnose.series_evidence.stops_in_chunks import stops_in_chunks

__all__ = ["Beat", "SharedGaps", "at_times", "beat_of", "common_series", "gaps_of_one", "shared_gaps"]

Floats = NDArray[np.float64]
LONGER: Final = 3.0
"""A gap counts as a stop from so many medians on, and from 50 ms."""
LEAST_MS: Final = 50.0
SHARE: Final = 0.8
"""Of the streams that must stop at the same reading."""
FEWEST_APART: Final = 8
CALM: Final = 0.15
"""Of all readings, at least so many without a stop tell what is usual."""
COMMON: Final = 0.05
"""Gaps of several streams that differ by less are one stop of all."""
STEADY: Final = 0.15
LEAST_BEATS: Final = 6


class SharedGaps(NamedTuple):
    """Stops that all streams have together."""

    streams: int
    at: Floats
    """When (s, or as the axis counts)."""
    length_ms: Floats
    """Median over the streams."""
    usual_ms: float
    alone: int
    """Stops that one stream alone has."""
    readings: int
    axis: str
    """As of a series; `chunks` where they are of a table of chunks, whose clock need not be that of any series."""
    line: str


class Beat(NamedTuple):
    """A rhythm in times."""

    period: float
    share: float
    """Of the distances that are within 15 % of the period."""
    n: int


def shared_gaps(observed: Observed) -> SharedGaps | None:
    """Of the series of gaps by stream, else of a table of chunks; `None` with fewer than two streams over one axis, or
    no common stop.
    """
    found = _by_stream(observed)
    if len(found) < 2:
        return next((gaps for rows in observed.table("chunks") if (gaps := _of_chunks(rows)) is not None), None)
    return _common(found)


def gaps_of_one(observed: Observed) -> SharedGaps | None:
    """The stops of the only stream that was watched: nothing tells whether others had them too."""
    found = _by_stream(observed)
    return _common(found) if len(found) == 1 else None


def common_series(observed: Observed) -> SharedGaps | None:
    """Every reading as a stop, where all streams have the same long gap at each of them: the longest of every hour."""
    found = _by_stream(observed)
    if len(found) < 2:
        return None
    axis = found[0]
    table = np.array([at_times(series, axis) for series in found])
    if not np.isfinite(table).all() or float(table.min()) < LEAST_MS:
        return None
    length = np.median(table, axis=0)
    if float((np.ptp(table, axis=0) / length).max()) > COMMON:
        return None
    return SharedGaps(
        len(found), axis.at, length, float(length.min()), 0, int(axis.at.size), axis.axis, str(axis.line_of(0))
    )


def _by_stream(observed: Observed) -> list[Series]:
    return [series for series in observed.of_series("chunk_gap") if series.labels.get("stream") and len(series) >= 4]


def _common(found: list[Series]) -> SharedGaps | None:
    axis = found[0]
    table = np.array([at_times(series, axis) for series in found])
    usual = _usual(table)
    bar = max(LONGER * usual, LEAST_MS)
    with np.errstate(invalid="ignore"):
        long = table >= bar
    counted = long.mean(axis=0)
    rows = np.flatnonzero(counted >= SHARE)
    if not rows.size:
        return None
    return SharedGaps(
        streams=len(found),
        at=axis.at[rows],
        length_ms=np.nanmedian(table[:, rows], axis=0),
        usual_ms=usual,
        alone=int(((counted > 0) & (counted < SHARE)).sum()),
        readings=int(axis.at.size),
        axis=axis.axis,
        line=str(axis.line_of(int(rows[0]))),
    )


def _usual(table: Floats) -> float:
    """The median gap; where most readings are stops, and a hole parts them from the others, that of the others."""
    median = float(np.nanmedian(table))
    known = np.sort(table[np.isfinite(table) & (table > 0)])
    if known.size < FEWEST_APART or median < LEAST_MS:
        return median
    steps = known[1:] / known[:-1]
    place = int(np.argmax(steps)) + 1
    apart = steps[place - 1] >= LONGER and CALM * known.size <= place and known[place] <= median
    return float(np.median(known[:place])) if apart else median


def _of_chunks(rows: Rows) -> SharedGaps | None:
    """The stops of a table in which streams began at other times."""
    stops = stops_in_chunks(rows)
    if stops is None or not stops.together:
        return None
    first = int(stops.rows[0])
    return SharedGaps(
        streams=stops.streams,
        at=stops.begin / 1e3,
        length_ms=stops.length_ms,
        usual_ms=stops.usual_ms,
        alone=stops.alone,
        readings=len(rows),
        axis="chunks",
        line=str(rows.line_of(first)),
    )


def at_times(series: Series, other: Series) -> Floats:
    """One series at the places of another: as it stands where they are the same, else the nearest reading."""
    if series.at.shape == other.at.shape and bool(np.array_equal(series.at, other.at)):
        return series.values
    near = np.searchsorted(series.at, other.at)
    near = np.clip(near, 0, len(series) - 1)
    before = np.clip(near - 1, 0, len(series) - 1)
    nearer = np.abs(series.at[before] - other.at) < np.abs(series.at[near] - other.at)
    values: Floats = series.values[np.where(nearer, before, near)]
    return values


def beat_of(times: Floats) -> Beat | None:
    """The period that most distances between neighbours have; `None` with fewer than six, or without one.

    A distance of two or three periods is a beat that was missed, and counts.
    """
    if times.size < LEAST_BEATS:
        return None
    distances = np.diff(times)
    distances = distances[distances > 0]
    if distances.size < LEAST_BEATS - 1:
        return None
    period = float(np.median(distances))
    multiples = np.maximum(np.round(distances / period), 1.0)
    off = np.abs(distances / multiples - period) / period
    good = (off <= STEADY) & (multiples <= 3)
    share = float(good.mean())
    return Beat(period, share, int(times.size)) if share >= SHARE else None
