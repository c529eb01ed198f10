"""What an engine counted between two scrapes, its restarts recognised.

A counter that fell began anew: what it shows now was counted since, and what it counted before it fell, after the first
of the two scrapes, nobody knows. Such a delta is a lower bound and says so. Each label set is a counter of its own:
behind one address several engines count, and one of them may restart alone.
"""

from __future__ import annotations

from typing import Final

from tailrace.engines.prometheus_text import Scrape

STARTED: Final = "process_start_time_seconds"
"""When the process began, by its own clock: Python and Go clients export it. Only whether it changed is read."""
_SAME_START_S: Final = 0.5


def restarted(before: Scrape, after: Scrape) -> bool:
    """Whether one process answered first and another one later, by its start time.

    A counter that has outgrown its old value since the restart shows nothing by itself.
    """
    old, new = before.series(STARTED), after.series(STARTED)
    if len(old) != 1 or len(new) != 1:
        return False  # several processes in one answer, or none that says
    return abs(next(iter(old.values())) - next(iter(new.values()))) > _SAME_START_S


def increase(old: float | None, new: float, *, anew: bool = False) -> tuple[float, bool]:
    """One series' increase, and whether it began anew. `old` is `None` where it was not there: it began at 0."""
    if old is None:
        return max(new, 0.0), False
    if anew or new < old:
        return max(new, 0.0), True
    return new - old, False
