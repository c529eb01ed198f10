"""Which arm is the one from before, told by the statement of what was changed: `refresh: 1 ms -> 100 ms`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.diagnose.arms.pairs import changed
from tailrace.diagnose.observed import Arm, Observed, Role

__all__ = ["with_changed"]

_ARROW: Final = re.compile(r"\s*(?:->|=>|\u2192|\bto\b)\s*")
_ASIDE: Final = re.compile(r"[(\[][^)\]]*[)\]]")
_FROM: Final = re.compile(r".*(?:[:=]|\bfrom\b)\s*", re.IGNORECASE)


def with_changed(observed: Observed) -> Sequence[Arm]:
    """The arms with roles, where none has one yet and the statement's two sides name them: each of some arms, none of
    both.
    """
    arms = observed.arms
    if len(arms) < 2 or any(arm.role for arm in arms):
        return arms
    sides = _ARROW.split(_ASIDE.sub(" ", changed(observed)))
    if len(sides) != 2:
        return arms
    old, new = (_plain(_FROM.sub("", side)) for side in sides)
    if not old or not new or old == new:
        return arms
    labels = [_plain(f"{arm.label} {' '.join(str(value) for value in arm.keys.values())}") for arm in arms]
    roles = [
        Role.BEFORE if _names(label, old) and not _names(label, new)
        else Role.AFTER if _names(label, new) and not _names(label, old)
        else Role.NONE
        for label in labels
    ]  # fmt: skip
    if {*roles} != {Role.BEFORE, Role.AFTER}:
        return arms
    return [msgspec.structs.replace(arm, role=role) for arm, role in zip(arms, roles, strict=True)]


def _plain(text: str) -> str:
    """Letters and digits, a number and its unit as one word: `1 ms` is `1ms`, `refresh_100ms` is `refresh 100ms`."""
    words = re.sub(r"[^0-9a-z.%+]+", " ", text.lower()).strip(" .")
    return re.sub(r"(?<![0-9a-z.])(\d+(?:\.\d+)?) (?=[a-z%]{1,3}(?![a-z]))", r"\1", words)


def _names(label: str, side: str) -> bool:
    return re.search(rf"(?<![0-9a-z.]){re.escape(side)}(?![0-9a-z]|\.\d)", label) is not None
