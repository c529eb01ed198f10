"""How much of foreign evidence rules look at, so that an answer is bounded work whatever was given; the rest is said.

The bounds lie beyond what a person compares and a fleet reports. What rules know by name stays before what they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import msgspec

from tailrace.diagnose.observed import (
    Arm,
    Counter,
    Event,
    Histogram,
    Observed,
    Place,
    Role,
    Series,
    Setting,
    Understood,
)
from tailrace.diagnose.observed.vocabulary import QUANTITIES

__all__ = ["MOST_ARMS", "MOST_OF_A_NAME", "MOST_SETTINGS", "bounded"]

MOST_ARMS: Final = 100
"""Rules compare arms with each other, so their cost grows with the square: more is no comparison that a person made."""
MOST_OF_A_NAME: Final = 1_000
"""Series, counters or histograms of one name: replicas, devices, streams."""
MOST_NAMES: Final = 20_000
"""Series, counters or histograms in all."""
MOST_SETTINGS: Final = 5_000
MOST_EVENTS: Final = 20_000
"""Half of them the first, half the last."""

_Item = TypeVar("_Item", Series, Counter, Histogram)


def bounded(observed: Observed) -> Observed:
    """The same, with at most so many of each kind; what was left out stands in `understood`."""
    out = msgspec.structs.replace(observed, understood=list(observed.understood))
    out.arms = _arms(out)
    out.series = _named(out, out.series, "series", lambda item: (item.name, item.axis))
    out.counters = _named(out, out.counters, "counters", lambda item: (item.name, item.order))
    out.histograms = _named(out, out.histograms, "histograms", lambda item: (item.name, item.order))
    out.settings = _settings(out)
    out.events = _events(out)
    return out


def _say(out: Observed, what: str, kept: int, total: int, place: Place, example: str) -> None:
    out.understood.append(
        Understood(
            source=place.source or "facts",
            format="too many to compare with each other: give the table that matters"
            if what == "arms"
            else "too many to look at: give the part that matters",
            understood=kept,
            total=total,
            what=what,
            examples=[f"{place.line}: {example[:80]}"],
        )
    )


def _arms(out: Observed) -> list[Arm]:
    """Those whose side of a comparison is told, then the first ones."""
    arms = out.arms
    if len(arms) <= MOST_ARMS:
        return arms
    order = sorted(range(len(arms)), key=lambda place: (arms[place].role is Role.NONE, place))
    left = arms[order[MOST_ARMS]]
    _say(out, "arms", MOST_ARMS, len(arms), left.place, left.name)
    return [arms[place] for place in sorted(order[:MOST_ARMS])]


def _named(out: Observed, items: Sequence[_Item], what: str, key: Callable[[_Item], Hashable]) -> list[_Item]:
    """The first ones of each name; of all names those that the vocabulary has, then the first ones."""
    if len(items) <= MOST_OF_A_NAME:
        return list(items)
    seen: dict[Hashable, int] = {}
    places = []
    for place, item in enumerate(items):
        count = seen[key(item)] = seen.get(key(item), 0) + 1
        if count <= MOST_OF_A_NAME:
            places.append(place)
    if len(places) > MOST_NAMES:
        places.sort(key=lambda place: (items[place].name not in QUANTITIES, place))
        places = sorted(places[:MOST_NAMES])
    if len(places) < len(items):
        kept = set(places)
        left = items[next(place for place in range(len(items)) if place not in kept)]
        _say(out, what, len(places), len(items), left.place, f"{left.name} {_of(left)}".strip())
    return [items[place] for place in places]


def _of(item: Series | Counter | Histogram) -> str:
    return ", ".join(f"{key} {value}" for key, value in item.labels.items())


def _settings(out: Observed) -> list[Setting]:
    settings = out.settings
    if len(settings) > MOST_SETTINGS:
        left = settings[MOST_SETTINGS]
        _say(out, "settings", MOST_SETTINGS, len(settings), left.place, left.name)
    return settings[:MOST_SETTINGS]


def _events(out: Observed) -> list[Event]:
    events, half = out.events, MOST_EVENTS // 2
    if len(events) <= MOST_EVENTS:
        return events
    _say(out, "events", MOST_EVENTS, len(events), events[half].place, events[half].text)
    return [*events[:half], *events[-half:]]
