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


def redecode_in_series(observed: Observed) -> Teeth | None:
    """Two or more utterances, each a straight line, with a fall between them."""
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
