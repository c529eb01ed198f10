"""Repeated runs of one arm, folded into one: the medians of what they measured, and how far they lie apart."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.readers.roles import with_roles

__all__ = ["RUN", "Repeated", "repeated"]

RUN: Final = re.compile(
    r"(?<![a-z])(?:run|trial|attempt|repeat|repetition|round|iteration|rep|seed)s?(?![a-z])(?:\s*[#:]?\s*\d+)?|#\d+",
    re.IGNORECASE,
)
"""What counts runs of one thing, as a heading or in a label."""
_NOTE: Final = re.compile(r"note|comment|remark|when|date|time", re.IGNORECASE)


class Repeated(NamedTuple):
    """An arm, and the runs that it is the median of; one run where it was measured once."""

    arm: Arm
    runs: tuple[Arm, ...]

    def values(self, key: str) -> list[float]:
        """What each run has for a key (`ttft.p99`)."""
        return [item.value for arm in self.runs if (item := arm.values.get(key)) is not None]

    def apart(self, other: Repeated, key: str) -> bool | None:
        """Whether every run of one lies on one side of every run of the other; `None` where neither was repeated."""
        here, there = self.values(key), other.values(key)
        if min(len(here), len(there)) < 2:
            return None
        return max(here) < min(there) or max(there) < min(here)


@asked_once
def repeated(observed: Observed) -> list[Repeated]:
    """All arms, those that were measured several times folded; with roles, where their labels tell them once they are
    folded. Fewer than two arms that were repeated are no comparison: then every arm stands for itself.
    """
    groups: dict[tuple[object, ...], list[Arm]] = {}
    for place, arm in enumerate(observed.arms):
        groups.setdefault(_what(arm) or (place,), []).append(arm)
    if sum(len(runs) > 1 for runs in groups.values()) < 2:
        return [Repeated(arm, (arm,)) for arm in observed.arms]
    out = [_folded(runs) for runs in groups.values()]
    arms = with_roles([one.arm for one in out])
    return [one._replace(arm=arm) for one, arm in zip(out, arms, strict=True)]


def _what(arm: Arm) -> tuple[object, ...] | None:
    """What a run is a run of: its source, label and conditions without the number of the run."""
    label = " ".join(RUN.sub(" ", re.sub(r"\s\(\d+\)$", "", arm.label or arm.name)).split()).strip(" ,;:-_()")
    if not re.search(r"[A-Za-z]", label):
        return None
    keys = tuple(
        (name, value)
        for name, value in sorted(arm.keys.items())
        if not RUN.search(name) and not _NOTE.fullmatch(name) and value != arm.label
    )
    return arm.place.source, label.lower(), arm.role, keys


def _folded(runs: list[Arm]) -> Repeated:
    first = runs[0]
    if len(runs) == 1:
        return Repeated(first, (first,))
    values: dict[str, Quoted] = {}
    for key, item in first.values.items():
        same = [arm.values[key] for arm in runs if key in arm.values]
        if len(same) == len(runs) and not item.relative and not RUN.fullmatch(item.quantity):
            values[key] = msgspec.structs.replace(item, value=float(np.median([one.value for one in same])))
    label = " ".join(RUN.sub(" ", first.label).split()).strip(" ,;:-_()") or first.label
    name = f"{label} (median of {len(runs)} runs)"
    return Repeated(msgspec.structs.replace(first, name=name, label=label, values=values), tuple(runs))
