"""MIX_SHIFT from a row a class: shares and latencies before and after.

Each class as slow as before, and the heavier ones a larger share: what grew is the mix. Reweighting the classes' own
numbers by both shares gives the part of the mean that the mix made, exactly (`statistics`: share x value).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace.diagnose.arms.asked import figure
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["mix_on_arms"]

_BEFORE: Final = re.compile(r"\b(?:before|old|previous|prev|baseline|then|last)\b|week \d+ \(a\)", re.IGNORECASE)
_AFTER: Final = re.compile(r"\b(?:after|new|now|current|today|candidate)\b", re.IGNORECASE)
_SHARE: Final = re.compile(r"share|traffic|mix|% of|percent of|proportion|fraction", re.IGNORECASE)
_WHOLE: Final = re.compile(r"^\W*(?:all|total|overall|sum|everything|any|whole|mean|average)\b", re.IGNORECASE)
"""The last row of such a table: what the others make together."""
NAMED: Final = 0.10
WITHIN: Final = 0.10


class _Class(NamedTuple):
    arm: Arm
    shares: tuple[float, float]
    times: tuple[float, float]
    shown: tuple[Quoted, ...]


def mix_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Two classes or more, of which the shares add up to all of the traffic, before and after."""
    parts = [arm for arm in observed.arms if not _WHOLE.match(arm.label or arm.name)]
    rows = [row for arm in parts if (row := _class(arm)) is not None] or _counted(parts) or _long_form(parts)
    sums = [sum(row.shares[side] for row in rows) for side in (0, 1)]
    if len(rows) < 2 or not all(0.9 <= total <= 1.1 for total in sums):
        return None
    mix = sum((row.shares[1] - row.shares[0]) * row.times[0] for row in rows)
    stage = sum(row.shares[1] * (row.times[1] - row.times[0]) for row in rows)
    whole = sum(row.shares[0] * row.times[0] for row in rows)
    if mix <= abs(stage) or mix < NAMED * whole:
        return None
    if any(abs(row.times[1] / row.times[0] - 1.0) > WITHIN for row in rows if row.times[0] > 0):
        return None
    grown = max(rows, key=lambda row: (row.shares[1] - row.shares[0]) * row.times[0])
    unit = grown.shown[2].unit
    place = str(grown.arm.place) or "form"
    return cause.finding(
        statement=f"The mix moved: the share of {grown.arm.name} went from {number(grown.shares[0], 'share')} to "
        f"{number(grown.shares[1], 'share')}, while every class is as fast as before ({grown.arm.name}: "
        f"{number(grown.times[0], unit)} -> {number(grown.times[1], unit)}).",
        evidence=[
            *(
                Evidence(
                    f"{row.arm.name}: {item.label} {item.value:g}", str(item.place) or "form", item.key, item.value
                )
                for row in rows
                for item in row.shown
            ),
            Evidence(
                f"share of {grown.arm.name} {number(grown.shares[0], 'share')} -> {number(grown.shares[1], 'share')}",
                place, "share", grown.shares[1], "share",
            ),
            Evidence(f"mix {mix:+.4g}, within the classes {stage:+.4g} {unit}", place, "mix", round(mix, 3), unit),
        ],
        explains_ms=mix if unit == "ms" else None,
        relation=f"sum of (share after - share before) x value before = {mix:+.4g}; sum of share after x change = "
        f"{stage:+.4g} {unit}; {whole:.4g} before",
        n=len(rows),
        advice="Nothing became slower: give the heavy class a lane and limits of its own, retrieve fewer chunks, trim "
        "history, or plan capacity for the new mix. Do not roll back.",
        price="A lane of its own makes the heavy class wait for itself.",
        verify="tailrace diagnose after.run --before before.run",
        missing=["the requests one by one of both windows: the mix's part of the p99 itself, with its interval"],
        disproof_checked=[f"within the classes {stage:+.4g} {unit}"],
    )  # fmt: skip


def _counted(arms: list[Arm]) -> list[_Class]:
    """A row a class with how many requests it had before and after: the shares follow from the counts."""
    told = []
    for arm in arms:
        counts = _sides([v for v in arm.values.values() if v.quantity == "n" or v.unit == "count"], bare=True)
        times = _sides([v for v in arm.values.values() if v.unit in {"ms", "s"}], bare=True)
        if counts is not None and times is not None:
            told.append((arm, counts, times))
    totals = [sum(counts[side].value for _, counts, _ in told) for side in (0, 1)]
    if min(totals, default=0.0) <= 0:
        return []
    return [
        _Class(
            arm, (counts[0].value / totals[0], counts[1].value / totals[1]), (times[0].value, times[1].value),
            (*counts, *times),
        )
        for arm, counts, times in told
    ]  # fmt: skip


def _class(arm: Arm) -> _Class | None:
    shares = _sides([v for v in arm.values.values() if v.unit in {"%", "share"} and _SHARE.search(v.label)])
    times = _sides([v for v in arm.values.values() if v.unit in {"ms", "s"}])
    if shares is None or times is None:
        return None
    one, two = (item.value / (100.0 if item.unit == "%" else 1.0) for item in shares)
    return _Class(arm, (one, two), (times[0].value, times[1].value), (*shares, *times))


def _sides(values: list[Quoted], *, bare: bool = False) -> tuple[Quoted, Quoted] | None:
    """The value from before and the one from after; `bare`: of two, the one without a word is the other one."""
    before = next((v for v in values if _BEFORE.search(v.label.replace("_", " "))), None)
    after = next((v for v in values if _AFTER.search(v.label.replace("_", " "))), None)
    if bare and len(values) == 2 and (before is None) != (after is None):
        before = before or next(v for v in values if v is not after)
        after = after or next(v for v in values if v is not before)
    return (before, after) if before is not None and after is not None else None


def _long_form(arms: list[Arm]) -> list[_Class]:
    """A row a window and class, each with how many requests it had: the shares follow from the counts."""
    sides = {role: [arm for arm in arms if arm.role is role] for role in (Role.BEFORE, Role.AFTER)}
    totals = {role: sum(n.value for arm in some if (n := figure(arm, "n"))) for role, some in sides.items()}
    if min(totals.values(), default=0.0) <= 0:
        return []
    out = []
    for before in sides[Role.BEFORE]:
        match = [after for after in sides[Role.AFTER] if _class_of(after) == _class_of(before)]
        if len(match) != 1 or len(_class_of(before)) != 1:
            return []
        counts = [figure(arm, "n") for arm in (before, match[0])]
        times = _shared_time(before, match[0])
        if times is None or counts[0] is None or counts[1] is None:
            return []
        shares = (counts[0].value / totals[Role.BEFORE], counts[1].value / totals[Role.AFTER])
        named = msgspec.structs.replace(before, name=_class_of(before)[0])
        out.append(_Class(named, shares, (times[0].value, times[1].value), (counts[0], counts[1], *times)))
    return out if len(out) == len(sides[Role.AFTER]) else []


def _class_of(arm: Arm) -> tuple[str, ...]:
    """Its conditions that are text, but for the one that says before or after."""
    return tuple(str(value) for value in arm.keys.values() if isinstance(value, str) and str(value) != arm.label)


def _shared_time(one: Arm, two: Arm) -> tuple[Quoted, Quoted] | None:
    for name in ("ttft", "e2e", "prefill", "queue"):
        for stat in ("mean", "p50", ""):
            first, second = figure(one, name, stats=(stat,)), figure(two, name, stats=(stat,))
            if first is not None and second is not None:
                return first, second
    return None
