"""When more arrived than was served, from the records' own starts and ends: over the window, or a stretch of it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window
from tailrace.stats.quantiles import median, quantile

__all__ = ["Overload", "overloaded_stretch", "whole_window"]

Floats = NDArray[np.float64]

GROWTH: Final = 2.0
OVERLOAD: Final = 1.05
LEAST: Final = 40
LEAST_SHARE: Final = 0.1
"""Of the window's arrivals: less than a tenth of them is a burst."""
LEAST_LIVES: Final = 2.0
"""In median lifetimes of a request: within one, nothing that came can have been served."""
LEAST_WAIT_MS: Final = 100.0
PEAK: Final = 1.2
RISE: Final = 4.0
"""In standard deviations of a Poisson count: of a backlog that wanders by chance, the largest rise is chosen too."""
START: Final = 0.1
"""Of the rise."""
FLOOR_MS: Final = 10.0


class Overload(NamedTuple):
    """Arrivals and completions of a stretch of the window."""

    begin_s: float
    end_s: float
    offered: float
    """Requests/s that arrived."""
    served: float
    """Requests/s that completed meanwhile."""
    first_ms: float
    """Median wait of the first quarter of its arrivals."""
    last_ms: float
    """The same of the last quarter."""

    @property
    def growth(self) -> float:
        """How many times as long the last wait as the first."""
        return self.last_ms / max(self.first_ms, FLOOR_MS)

    @property
    def holds(self) -> bool:
        """Whether more arrives than is served, and the wait grows by it."""
        return self.offered > OVERLOAD * self.served and self.growth > GROWTH


def _between(window: Window, wait: Floats, rows: NDArray[np.int64]) -> Overload:
    """Of the arrivals `rows`, in order of their start."""
    begin, end = float(window.start[rows[0]]), float(window.start[rows[-1]])
    ends = window.start + window.done.column("e2e_ns")
    span = max(end - begin, 1.0) / 1e9
    quarter = max(1, rows.size // 4)
    return Overload(
        begin / 1e9,
        end / 1e9,
        rows.size / span,
        float(((ends > begin) & (ends <= end)).sum()) / span,
        median(wait[rows[:quarter]]),
        median(wait[rows[-quarter:]]),
    )


def whole_window(window: Window, wait: Floats) -> Overload:
    """The window as a whole: from its first arrival to its last. `wait` by row of `done` (ms)."""
    return _between(window, wait, np.argsort(window.start, kind="stable"))


def overloaded_stretch(window: Window, wait: Floats) -> Overload | None:
    """The stretch in which the backlog grew the most, if the wait grew with it: a peak of traffic that the rest of the
    window hides. How an empty server fills at the beginning of a run is none.
    """
    order = np.argsort(window.start, kind="stable")
    start = window.start[order]
    lives = window.done.column("e2e_ns").astype(np.float64)
    filled = int(np.searchsorted(start, start[0] + quantile(lives, 0.9)))
    if start.size - filled < 2 * LEAST:
        return None
    ends = np.sort(window.start + lives)
    backlog = np.arange(1, start.size + 1) - np.searchsorted(ends, start, side="right")
    later = backlog[filled:]
    # The largest rise of the backlog: from its least so far to here.
    lowest = np.minimum.accumulate(later)
    last = int(np.argmax(later - lowest))
    rise = float(later[last] - lowest[last])
    # It begins where the backlog leaves its usual wandering for the last time.
    first = int(np.flatnonzero(later[: last + 1] <= lowest[last] + START * rise)[-1])
    rows = order[filled + first : filled + last + 1]
    if rows.size < max(LEAST, LEAST_SHARE * start.size):
        return None
    found = _between(window, wait, rows)
    long_enough = found.end_s - found.begin_s >= LEAST_LIVES * median(lives) / 1e9
    peak = rise >= RISE * float(np.sqrt(rows.size)) and found.offered > PEAK * found.served
    return found if found.holds and peak and long_enough and found.last_ms >= LEAST_WAIT_MS else None
