"""Rows that hold both sides of a comparison in columns (`TPOT before`, `TPOT after`) as arms, one a side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Quoted, Role

__all__ = ["sides"]

_SIDES: Final = {
    Role.BEFORE: re.compile(r"\b(?:before|old|previous|prev|baseline|then|last (?:week|month)|healthy|good|alone)\b",
                            re.IGNORECASE),
    Role.AFTER: re.compile(r"\b(?:after|new|now|current|today|candidate|this (?:week|month)|slow|bad)\b",
                           re.IGNORECASE),
}  # fmt: skip


def sides(arms: Sequence[Arm]) -> list[Arm]:
    """For every row with numbers of both sides two arms, with what the row says without a side in both; rows of one
    side are left as they are.
    """
    out: list[Arm] = []
    for arm in arms:
        found: dict[Role, dict[str, Quoted]] = {Role.BEFORE: {}, Role.AFTER: {}}
        common: dict[str, Quoted] = {}
        for key, item in arm.values.items():
            role = _role(item)
            if role is None:
                common[key] = item
            else:
                found[role].setdefault(item.key, msgspec.structs.replace(item, qualifier=""))
        if arm.role is not Role.NONE or not found[Role.BEFORE].keys() & found[Role.AFTER].keys():
            out.append(arm)
            continue
        for role, values in found.items():
            keys = {**arm.keys, "class": arm.name}
            out.append(
                msgspec.structs.replace(
                    arm, name=f"{arm.name}, {role.value}", keys=keys, values={**common, **values}, role=role
                )
            )
    return out


def _role(item: Quoted) -> Role | None:
    words = f"{item.qualifier} {item.label}".replace("_", " ")
    told = [role for role, pattern in _SIDES.items() if pattern.search(words)]
    return told[0] if len(told) == 1 and not item.relative else None
