"""ASR_REDECODE_GROWTH in a series: the work on a partial rises with its utterance, and falls with the next one."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.series_evidence.shared_gaps import at_times
from tailrace.stats.correlation import correlation

__all__ = ["Teeth", "redecode_in_series"]

_AGE: Final = re.compile(r"utterance_?(?:age|time|seconds|length|position)|segment_?age")
_WORK: Final = re.compile(r"decode|partial|recogni|inference|asr", re.IGNORECASE)
_BUFFER: Final = re.compile(
    r"(?:\w+_)?(?:buffer|window|segment|open_audio|unfixed|pending_audio|context_audio|hypothesis)"
    r"(?:_(?:length|len|size|audio|duration))?$"
)
_CHUNK: Final = re.compile(
    r"(?:chunk|step|feed|partial|decode|inference|recogni\w*|asr)_?(?:service|time|latency|duration|decode|ms)?$"
)
CUT: Final = 0.5
"""A buffer that falls to less than this was cut."""
LEAST: Final = 4
SLOPE: Final = 0.01
FIT: Final = 0.9


class Teeth(NamedTuple):
    """Utterances in which the work grows."""

    slope: float
    """Seconds of work more for each second of the utterance (median)."""
    gained_ms: float
    back_ms: float
    n: int
    of: int
    place: str
    buffer: str = ""
    """The column of the audio that is decoded again, where one tells it."""
    first: tuple[float, float] = (0.0, 0.0)
    last: tuple[float, float] = (0.0, 0.0)
    """(seconds of it, ms of work) at its shortest and at its longest."""


def redecode_in_series(observed: Observed) -> Teeth | None:
    """Two or more utterances, each a straight line, with a fall between them."""
    by_buffer = _by_buffer(observed)
    if by_buffer is not None:
        return by_buffer
    age = next((one for one in observed.series if _AGE.fullmatch(one.name) and one.axis == "time"), None)
    if age is None:
        return None
    for work in observed.series:
        if work is age or not _WORK.search(work.name) or work.axis != "time":
            continue
        found = _teeth(age, work)
        if found is not None:
            return found
    return None


def _teeth(age: Series, work: Series) -> Teeth | None:
    took, at = at_times(work, age), age.values
    cuts = np.flatnonzero(np.diff(at) < 0) + 1
    slopes, gained, ends = [], [], []
    parts = np.split(np.arange(at.size), cuts)
    for part in parts:
        x, y = at[part] / 1e3, took[part]
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() < LEAST or np.ptp(x[known]) <= 0:
            continue
        slope = float(np.polyfit(x[known], y[known], 1)[0]) / 1e3
        straight = correlation(x[known], y[known]) >= FIT
        ends.append((float(y[known][0]), float(y[known][-1])))
        if slope > SLOPE and straight:
            slopes.append(slope)
            gained.append(float(y[known][-1] - y[known][0]))
    if len(slopes) < 2 or len(slopes) < 0.6 * len(ends):
        return None
    back = float(np.median([before[1] - after[0] for before, after in pairwise(ends)]))
    middle = float(np.median(gained))
    if back < 0.5 * middle:
        return None
    return Teeth(float(np.median(slopes)), middle, back, len(slopes), len(ends), str(work.line_of(0)))


def _by_buffer(observed: Observed) -> Teeth | None:
    """Work that is a straight line in the open audio and falls back when that is cut, whatever the session's age."""
    for buffer in observed.series:
        if not _BUFFER.fullmatch(buffer.name) or buffer.unit not in ("ms", "s") or buffer.axis not in _AXES:
            continue
        scale = 1e-3 if buffer.unit == "ms" else 1.0
        for work in observed.series:
            if work is buffer or work.unit != "ms" or len(work) != len(buffer) or not _CHUNK.fullmatch(work.name):
                continue
            if work.place.source == buffer.place.source:
                found = _along(buffer, work, scale)
                if found is not None:
                    return found
    return None


_AXES: Final = frozenset({"time", "session_age"})


def _along(buffer: Series, work: Series, scale: float) -> Teeth | None:
    x, y = buffer.values * scale, work.values
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if x.size < 2 * LEAST or float(np.ptp(x)) <= 0 or correlation(x, y) < FIT:
        return None
    slope = float(np.polyfit(x, y, 1)[0]) / 1e3
    cuts = np.flatnonzero(x[1:] < CUT * x[:-1])
    if slope <= SLOPE or not cuts.size:
        return None  # a buffer that is never cut grows with the session: then the age explains it as well
    back = float(np.median(y[cuts] - y[cuts + 1]))
    low, high = int(np.argmin(x)), int(np.argmax(x))
    gained = float(y[high] - y[low])
    if back < 0.5 * float(np.median(y[cuts])):
        return None
    return Teeth(
        slope, gained, back, int(cuts.size), int(cuts.size), str(work.line_of(high)), buffer.name,
        (float(x[low]), float(y[low])), (float(x[high]), float(y[high])),
    )  # fmt: skip
