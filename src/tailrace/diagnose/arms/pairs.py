"""Arms that may be compared: two that differ in one thing, or several along one condition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import is_
from typing import Final, NamedTuple

from tailrace.diagnose.arms.asked import condition, given, label_number, told
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.moments import moments
from tailrace.diagnose.observed import Arm, Observed, Role
from tailrace.model.finding import Evidence

__all__ = [
    "BeforeAfter",
    "Pair",
    "before_and_after",
    "change_shown",
    "changed",
    "loads",
    "pairs",
    "same_load",
    "stated_same",
    "sweep",
    "unlike",
]

LOADS: Final = ("concurrency", "offered_rps", "n", "prompt_tokens", "output_tokens", "sessions", "max_concurrency",
         "batch", "batch_size", "bs")  # fmt: skip
"""Quantities that say how much work an arm was given."""
_KEPT: Final = 200
"""Of so many arms the pairs are kept."""
_ALIKE: Final = 0.05
"""Two loads that differ by less, relatively, are one: nobody drives a server more evenly."""


class Pair(NamedTuple):
    """Two arms, the second after the change where that is known."""

    first: Arm
    second: Arm
    same: tuple[str, ...]
    """Loads that are written down for both and are equal: `concurrency 32`."""
    differs: tuple[str, ...]
    """Loads that are written down for both and are not."""


@asked_once
def loads(arm: Arm) -> dict[str, float]:
    """How much work the arm was given, as far as it is written down."""
    return {name: value for name in LOADS if (value := given(arm, name)) is not None}


def same_load(first: Arm, second: Arm) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what is equal, what is not) of the loads that both arms name."""
    return _compared(loads(first), loads(second))


def _compared(here: dict[str, float], there: dict[str, float]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not here or not there:
        return (), ()
    same: list[str] = []
    other: list[str] = []
    for name in here.keys() & there.keys():
        one, two_ = here[name], there[name]
        alike = abs(one - two_) <= _ALIKE * max(abs(one), abs(two_), 1e-12)
        (same if alike else other).append(f"{name.replace('_', ' ')} {one:g}" + ("" if alike else f" and {two_:g}"))
    return tuple(sorted(same)), tuple(sorted(other))


def unlike(first: Arm, second: Arm) -> list[str]:
    """The loads that both arms name and that differ, but for how many requests came: `output tokens 128 and 512`."""
    return _more_than_n(same_load(first, second)[1])


def _more_than_n(differs: tuple[str, ...]) -> list[str]:
    return [item for item in differs if not item.startswith("n ")]


def pairs(arms: Sequence[Arm]) -> Iterator[Pair]:
    """Every two arms of one table, form or run of benchmarks that were given the same work, in the order of roles, or
    of the rows.
    """
    if 0 < len(arms) <= _KEPT:
        # A hundred arms are five thousand pairs, and a dozen rules go through all.
        own = vars(arms[0])
        of, found = own.get("pairs", ((), ()))
        if len(of) != len(arms) or not all(map(is_, of, arms)):
            of, found = own["pairs"] = (tuple(arms), tuple(_pairs(arms)))
        yield from found
    else:
        yield from _pairs(arms)


def _pairs(arms: Sequence[Arm]) -> Iterator[Pair]:
    # Each arm is asked once.
    for (first, here), (second, there) in combinations([(arm, loads(arm)) for arm in arms], 2):
        same, differs = _compared(here, there)
        if _more_than_n(differs):
            continue
        before = second.role is Role.BEFORE or first.role is Role.AFTER
        yield Pair(second, first, same, differs) if before else Pair(first, second, same, differs)


class BeforeAfter(NamedTuple):
    """The arm from before and the one from after, as their labels or places say."""

    before: Arm
    after: Arm


def before_and_after(arms: Sequence[Arm]) -> Iterator[BeforeAfter]:
    """Each arm from before with those from after that were given the same work; where none was, with the first one.
    Without roles there is no pair.
    """
    for before in arms:
        if before.role is Role.BEFORE:
            for after in _closest(before, arms):
                yield BeforeAfter(before, after)


def _closest(before: Arm, arms: Sequence[Arm]) -> list[Arm]:
    after = [arm for arm in arms if arm.role is Role.AFTER]
    others = [arm for arm in after if arm.place.source == before.place.source] or after
    return [arm for arm in others if not unlike(before, arm)] or others[:1]


def changed(observed: Observed) -> str:
    """What the source states to be the one difference between its arms; empty when it states none."""
    for name in ("changed", "change", "difference", "what_changed"):
        found = observed.text(name)
        if found:
            return found
    return ""


def change_shown(observed: Observed) -> list[Evidence]:
    """The same as evidence, with its place; empty where none is stated."""
    what = changed(observed)
    place = observed.source_of("changed", "change", "difference", "what_changed")
    return [Evidence(f"changed: {what}", "form" if place == "settings" else place)] if what else []


def stated_same(observed: Observed) -> list[str]:
    """What the source states to be equal in all arms."""
    out: list[str] = []
    for item in told(observed):
        if item.name in ("same", "equal", "unchanged", "same_as_before"):
            values = item.value if isinstance(item.value, list) else [item.value]
            out += [str(value) for value in values]
    return out


class Point(NamedTuple):
    """An arm at its place on an axis."""

    x: float
    arm: Arm


def sweep(observed: Observed, words: str, has: Callable[[Arm], bool]) -> list[Point]:
    """The arms along the condition that `words` matches, ascending: those that `has` accepts, in the largest set that
    differs in nothing else that is written down. Less than two different places make no sweep.

    Where no table of arms has it, the rows of a short time series are asked, in which somebody raised the load. Where
    no heading names the condition, the statement of what was changed may: then a label's number is its place.
    """
    arms = [arm for arm in observed.arms if has(arm)] or [arm for arm in moments(observed) if has(arm)]
    places = [(condition(arm, words), arm) for arm in arms]
    if not any(x is not None for x, _ in places) and re.search(words, changed(observed), re.IGNORECASE):
        places = [(label_number(arm), arm) for arm in arms]
    groups: dict[tuple[str, ...], dict[float, Arm]] = {}
    counters = _row_counters(arms)
    for x, arm in places:
        if x is not None:
            groups.setdefault(_rest(arm, words, counters), {}).setdefault(x, arm)
    best = max(groups.values(), key=len, default={})
    return [Point(x, best[x]) for x in sorted(best)] if len(best) > 1 else []


def _row_counters(arms: Sequence[Arm]) -> frozenset[str]:
    """Conditions that only count the rows (`request 1`, `request 2` …): they set no two rows apart."""
    if len(arms) < 3:
        return frozenset()
    names = [name for name in arms[0].keys if re.search(r"request|row|turn|run|index|\bid\b|no\b", name)]
    return frozenset(
        name
        for name in names
        if all(
            isinstance(value := arm.keys.get(name), float) and value == place + float(arms[0].keys[name])
            for place, arm in enumerate(arms)
        )
    )


def _rest(arm: Arm, words: str, counters: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """What else an arm's conditions say: all but the one along which the sweep goes, and counters of rows."""
    return tuple(
        f"{name}={value}"
        for name, value in sorted(arm.keys.items())
        if name not in counters and not re.search(words, name.replace("_", " "), re.IGNORECASE)
    )
