"""Arms that nested facts hold: groups beside each other that tell one quantity, or one quantity under several names.

`{"fp16": {"itl_ms": 31}, "fp8": {"itl_ms": 30.6}}` are two arms, whatever they stand in, and so are
`{"tpot_ms": {"alone": 21, "shared": 38}}` and `{"itl_ms_by_batch": {"1": 15.2, "8": 18.9}}`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tailrace.diagnose.observed import Arm, Place, Quoted
from tailrace.diagnose.observed.vocabulary import QUANTITIES, TO_MS
from tailrace.diagnose.readers.fact_arms import fact_into, flat_facts
from tailrace.diagnose.readers.heading import heading, snake, statistic
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.units import unit_of

__all__ = ["arms_in_groups"]

MOST_GROUPS: Final = 24
_MOST_DEPTH: Final = 4
_BY: Final = re.compile(r"(?:_|^)(?:by|per|at|vs|for|over)_([a-z_]+)$")
_MOMENT: Final = re.compile(
    r"(?:.*_)?(?:at|after|t|minute|min|hour|second|age)_?(\d+(?:\.\d+)?)_?(s|sec|seconds?|m|min|minutes?|h|hours?)?"
    r"|(\d+(?:\.\d+)?)_?(s|sec|seconds?|min|minutes?|h|hours?)(?:_in|_later)?"
)
_OF_ANYTHING: Final = re.compile(r"(?:.*_)?(?:at|after)_?\d+(?:\.\d+)?")
"""`at_8`, `users_at_16`: a moment only where a unit of time stands behind it."""
_AT: Final = re.compile(r"(.+?)_(?:at|after)_(\d+(?:\.\d+)?)_?(s|sec|min|minutes?|h|hours?)")
_MANY: Final = 3
"""Of two moments one is before the other; three and more are a course."""


def arms_in_groups(data: dict[str, Any], place: Place) -> list[Arm]:
    """The arms of the outermost level that holds any; empty where no two groups can be compared."""
    level = [data]
    for _ in range(_MOST_DEPTH):
        for node in level:
            arms = _siblings(node, place) or _columns(node, place) or _moments(node, place)
            if arms:
                return with_roles(arms)
        level = [child for node in level for child in node.values() if isinstance(child, dict)]
    return []


def _siblings(node: dict[str, Any], place: Place) -> list[Arm]:
    groups = {str(name): child for name, child in node.items() if isinstance(child, dict) and not _is_measure(name)}
    if not 2 <= len(groups) <= MOST_GROUPS:
        return []
    arms = [_arm(name, child, place) for name, child in groups.items()]
    told = Counter(key for arm in arms for key, item in arm.values.items() if item.quantity in QUANTITIES)
    shared = {key for key, n in told.items() if n > 1}
    # What none of the others tells is a condition of all, not another arm.
    return _on_axis([arm for arm in arms if shared & arm.values.keys()]) if shared else []


def _columns(node: dict[str, Any], place: Place) -> list[Arm]:
    """One quantity a key, and in it a number under each condition."""
    made: dict[str, tuple[dict[str, float | str], dict[str, Quoted]]] = {}
    for key, child in node.items():
        if not isinstance(child, dict) or not 2 <= len(child) <= MOST_GROUPS:
            continue
        by = _BY.search(snake(str(key)))
        name = snake(str(key))[: by.start()] if by else str(key)
        if not _is_measure(name) or any(not _is_cell(one) for one in child.values()):
            continue
        if any(statistic(str(inner)) or heading(str(inner)).quantity for inner in child):
            continue
        for inner, value in child.items():
            label = f"{by[1].replace('_', ' ')} {inner}" if by else str(inner)
            keys, values = made.setdefault(label, ({}, {}))
            fact_into(keys, values, name, value, place)
            if by and (condition := _number(str(inner))) is not None:
                keys.setdefault(heading(by[1]).quantity or by[1], condition)
    arms = [Arm(name=name, label=name, keys=keys, values=values, place=place) for name, (keys, values) in made.items()]
    return _on_axis([arm for arm in arms if arm.values]) if len(arms) > 1 else []


def _moments(node: dict[str, Any], place: Place) -> list[Arm]:
    """`lag_s_at_5min`, `lag_s_at_30min` …: one quantity at several times."""
    made: dict[str, tuple[dict[str, float | str], dict[str, Quoted]]] = {}
    for key, value in node.items():
        found = _AT.fullmatch(snake(str(key)))
        if found is None or not _is_cell(value):
            continue
        keys, values = made.setdefault(f"at {found[2]} {found[3]}", ({}, {}))
        fact_into(keys, values, found[1], value, place)
    arms = [Arm(name=name, label=name, keys=keys, values=values, place=place) for name, (keys, values) in made.items()]
    told = Counter(key for arm in arms for key, item in arm.values.items() if item.quantity in QUANTITIES)
    return _on_axis(arms) if max(told.values(), default=0) >= _MANY else []


def _is_measure(name: Any) -> bool:
    head = heading(str(name))
    return head.quantity in QUANTITIES and QUANTITIES[head.quantity].unit != "count"


def _is_cell(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    found = re.fullmatch(r"[<>=~ ]*(\d+(?:\.\d+)?)[kK]?", text.strip())
    return None if found is None else float(found[1]) * (1e3 if text.strip().lower().endswith("k") else 1.0)


def _arm(name: str, metrics: dict[str, Any], place: Place) -> Arm:
    keys: dict[str, float | str] = {}
    values: dict[str, Quoted] = {}
    for flat, one in _leaves(metrics):
        fact_into(keys, values, flat, one, place)
    return Arm(name=name, label=name, keys=keys, values=values, place=place)


def _leaves(metrics: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        yield from flat_facts(str(key), value)


def _on_axis(arms: list[Arm]) -> list[Arm]:
    """Arms that are named after moments (`at_10min`, `minute_15`) have the time as a condition."""
    found = [_MOMENT.fullmatch(snake(arm.label)) for arm in arms]
    if len(arms) < _MANY or not all(found) or any(_OF_ANYTHING.fullmatch(snake(arm.label)) for arm in arms):
        return arms
    for arm, one in zip(arms, found, strict=True):
        if one is None:
            continue
        word = one[2] or one[4] or ("min" if "min" in one[0] else "h" if "hour" in one[0] else "s")
        unit = "min" if word.startswith("m") else "h" if word.startswith("h") else unit_of(word) or "s"
        arm.keys["time_s"] = float(one[1] or one[3]) * TO_MS.get(unit, 1e3) / 1e3
    return arms
