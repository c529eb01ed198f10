"""What an engine counted between two scrapes, its restarts recognised.

A counter that fell began anew: what it shows now was counted since, and what it counted before it fell, after the first
of the two scrapes, nobody knows. Such a delta is a lower bound and says so. Each label set is a counter of its own:
behind one address several engines count, and one of them may restart alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.engines.prometheus_text import Labels, Scrape

STARTED: Final = "process_start_time_seconds"
"""When the process began, by its own clock: Python and Go clients export it. Only whether it changed is read."""
_SAME_START_S: Final = 0.5


class CounterDelta(msgspec.Struct, frozen=True):
    """One counter's increase over all its label sets."""

    value: float
    by: dict[Labels, float] = {}
    """Label set -> its increase; those that are gone are not in it."""
    resets: int = 0
    """Label sets that began anew in between: the increase is then at least `value`."""

    @property
    def at_least(self) -> bool:
        """Whether more may have been counted."""
        return self.resets > 0

    def by_label(self, label: str) -> dict[str, float]:
        """Value of `label` -> increase; label sets without it under the empty text."""
        out: dict[str, float] = {}
        for labels, value in self.by.items():
            key = dict(labels).get(label, "")
            out[key] = out.get(key, 0.0) + value
        return out


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


def counter_delta(before: Scrape, after: Scrape, name: str, *, anew: bool = False) -> CounterDelta | None:
    """How much the counter `name` grew between two scrapes; `None` where the later one does not have it.

    `anew`: the process was restarted in between. A label set that was not there before counts from 0, because client
    libraries create one with its first event.
    """
    new = after.series(name)
    if not new:
        return None
    old = before.series(name)
    by: dict[Labels, float] = {}
    resets = 0
    for labels, value in new.items():
        by[labels], reset = increase(old.get(labels), value, anew=anew)
        resets += reset
    return CounterDelta(sum(by.values()), by, resets)
