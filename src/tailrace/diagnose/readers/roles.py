"""Which arm is the one from before, told by words of its label; none where no word tells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Role

__all__ = ["with_roles"]

_PAIRS: Final[tuple[tuple[str, str], ...]] = (
    ("before", "after"),
    ("old", "new"),
    (
        "baseline|base|reference|control|stock|vanilla|plain(?= [a-z])|unmodified|original|default",
        "candidate|treatment|variant|experiment|patched",
    ),
    ("off|disabled|false|unset", "on|enabled|true|set"),
    ("without|no", "with"),
    ("main|master|stable|prod|production", "pr|branch|canary|patch|fix|fixed|tuned|optimi[sz]ed"),
    ("previous|prev|yesterday|last week|last month", "current|today|now|this week|this month"),
    ("a", "b"),
)
_MOMENTS: Final = {
    "clock": re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?(?:\s*(?:-|to|\.\.)\s*\d{1,2}:\d\d(?::\d\d)?)?"),
    "date": re.compile(r"(\d{4})-(\d\d)-(\d\d)"),
    "count": re.compile(r"(?:week|day|hour|minute|month|window|h|t)\s?#?(\d+)(?:\s?(?:-|to|\.\.)\s?t?\d+)?"),
}
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LAST: Final = frozenset({"on", "off", "set", "true", "false"})
_STRONG: Final = 3
"""The first pairs tell one side by themselves: the others are then on the other one."""
_VERSION: Final = re.compile(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.\-]?(?:rc|post|dev|a|b)?(\d+))?(?![\d.])")


def with_roles(arms: Sequence[Arm]) -> list[Arm]:
    """The arms with their roles. A table of one arm has none; so has one in which both words or none are found."""
    if len(arms) < 2 or any(arm.role for arm in arms):
        return list(arms)
    labels = [_words(arm) for arm in arms]
    roles = _by_words(labels) or _by_absence(labels) or _by_version(arms) or _by_time(arms)
    if roles is None:
        return list(arms)
    return [msgspec.structs.replace(arm, role=role) for arm, role in zip(arms, roles, strict=True)]


def _words(arm: Arm) -> str:
    """Its label as words between blanks. `on` and `off` are words of it only at its end: `on the loop` is neither."""
    text = (arm.label or arm.name).lower().replace("_", " ")
    # A point belongs to a version (`0.9.2`); between words it parts them: `run.before.json`.
    words = re.sub(r"[^0-9a-z.\-]+|(?<!\d)\.|\.(?!\d)", " ", text).split()
    return f" {' '.join(w for n, w in enumerate(words) if w not in _LAST or n + 1 == len(words))} "


@cache
def _sides() -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    return [(re.compile(rf" (?:{one})(?: |\d)"), re.compile(rf" (?:{other})(?: |\d)")) for one, other in _PAIRS]


def _by_words(labels: list[str]) -> list[Role] | None:
    for place, (one, other) in enumerate(_sides()):
        before = [one.search(label) is not None for label in labels]
        after = [other.search(label) is not None for label in labels]
        both = [a and b for a, b in zip(before, after, strict=True)]
        before = [a and not c for a, c in zip(before, both, strict=True)]
        after = [b and not c for b, c in zip(after, both, strict=True)]
        if any(before) and any(after):
            return [Role.BEFORE if a else Role.AFTER if b else Role.NONE for a, b in zip(before, after, strict=True)]
        if any(before) and not all(before) and (place < _STRONG or (len(labels) == 2 and place == _STRONG)):
            return [Role.BEFORE if a else Role.AFTER for a in before]
        if any(after) and not all(after) and place < _STRONG and len(labels) == 2:
            return [Role.AFTER if b else Role.BEFORE for b in after]
    return None


def _by_absence(labels: list[str]) -> list[Role] | None:
    """`no speculation` beside `speculation`, or beside whatever it is that the other has."""
    if len(labels) != 2:
        return None
    lacks = [re.match(r" (?:no|without) ", label) is not None for label in labels]
    if lacks[0] != lacks[1]:
        return [Role.BEFORE if lack else Role.AFTER for lack in lacks]
    without = [re.sub(r" (?:no|without) ", " ", label) for label in labels]
    if without[0] != without[1] or labels[0] == labels[1]:
        return None
    return [Role.BEFORE if label != plain else Role.AFTER for label, plain in zip(labels, without, strict=True)]


def _by_time(arms: Sequence[Arm]) -> list[Role] | None:
    """Two moments, the later one below: `08:00` and `09:00`, `monday` and `tuesday`, `week 43` and `week 44`."""
    if len(arms) != 2:
        return None
    first, second = (_moment((arm.label or arm.name).strip().lower()) for arm in arms)
    if first is None or second is None or first[0] != second[0] or first[1] >= second[1]:
        return None
    return [Role.BEFORE, Role.AFTER]


def _moment(label: str) -> tuple[str, tuple[float, ...]] | None:
    """(kind, place in it) of a label that is a time and nothing else."""
    for kind, pattern in _MOMENTS.items():
        found = pattern.fullmatch(label)
        if found is not None:
            return kind, tuple(float(group) for group in found.groups() if group is not None)
    return ("day", (float(_DAYS.index(label[:3])),)) if label[:3] in _DAYS and label.endswith("day") else None


def _by_version(arms: Sequence[Arm]) -> list[Role] | None:
    """Two versions of one thing: the lower one is from before."""
    texts = [next((str(v) for k, v in arm.keys.items() if "version" in k or "release" in k), arm.label) for arm in arms]
    found = [_VERSION.search(text) for text in texts]
    if not all(found):
        return None
    rests = {_VERSION.sub("", text).strip().lower() for text in texts}
    versions = [tuple(int(group or 0) for group in one.groups()) for one in found if one is not None]
    if len(set(versions)) != 2 or len(rests) != 1:
        return None
    low = min(versions)
    return [Role.BEFORE if version == low else Role.AFTER for version in versions]
