"""Numbers and conditions of an arm, by quantity, by condition, or by the words of its headings."""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from typing import Final

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.observed.vocabulary import QUANTITIES

__all__ = [
    "ANY",
    "CENTRAL",
    "GAUGE_FIRST",
    "TAIL_FIRST",
    "USUAL_FIRST",
    "as_share",
    "concurrency_of",
    "condition",
    "figure",
    "given",
    "label_number",
    "named",
    "number_stated",
    "per_request",
    "said",
    "stated",
    "told",
    "worded",
]

CENTRAL: Final = ("p50", "mean", "")
"""The statistics of a usual value, the preferred first."""
USUAL_FIRST: Final = (*CENTRAL, "p95", "p99")
TAIL_FIRST: Final = ("p99", "p95", *CENTRAL)
"""Where either will do, and one is preferred."""
GAUGE_FIRST: Final = ("", "mean", "p50", "max")
"""Of what is read off a gauge: mostly a bare number."""
ANY: Final = (*CENTRAL, "p99", "p95", "p90", "max", "p999", "min")

_CONTEXT: Final = frozenset({"claim", "note", "suspected_before", "suspected", "title", "question", "windows"})
"""Settings that say what somebody believes: never evidence."""
_CONFIGURED: Final = ("k8s.", "compose.", "nginx.unset")
"""How often a probe asks, and how long it waits, was measured by nobody."""
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w]*\.\d)")


@asked_once
def figure(arm: Arm, *quantities: str, stats: tuple[str, ...] = CENTRAL) -> Quoted | None:
    """The level of the first of `quantities` in the first of `stats` that the arm has; never a change in percent.

    A number with a qualifier (`gpu_util@1 s after disconnect`) answers only where none without one does.
    """
    for quantity in quantities:
        for stat in stats:
            found = arm.values.get(f"{quantity}.{stat}" if stat else quantity)
            if found is not None and not found.relative and isfinite(found.value):
                return found
        for stat in stats:
            for found in arm.values.values():
                if found.quantity == quantity and found.stat == stat and not found.relative and isfinite(found.value):
                    return found
    return None


def per_request(arm: Arm, quantity: str, stats: tuple[str, ...] = CENTRAL) -> tuple[float, Quoted] | None:
    """(tokens of one request, the number it comes from): a total is divided by the arm's requests."""
    found, n = figure(arm, quantity, stats=stats), figure(arm, "n")
    if found is None:
        return None
    words = f"{found.label} {found.qualifier}".lower()
    if "total" in words and "/" not in found.label:
        return (found.value / n.value, found) if n is not None and n.value else None
    return found.value, found


@lru_cache(maxsize=512)
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


@asked_once
def worded(arm: Arm, words: str, *, relative: bool = False) -> Quoted | None:
    """The first number whose heading matches the regular expression `words`: for what no vocabulary names."""
    pattern = _pattern(words)
    return next((value for value, told in _headings(arm, relative) if pattern.search(told)), None)


@asked_once
def _headings(arm: Arm, relative: bool) -> list[tuple[Quoted, str]]:  # noqa: FBT001
    """The finite numbers of an arm, levels or changes, each with the words over it."""
    return [
        (value, " ".join((value.label, value.quantity.replace("_", " "), value.qualifier, value.stat)))
        for value in arm.values.values()
        if value.relative is relative and isfinite(value.value)
    ]


def named(arm: Arm, words: str) -> tuple[str, float | str] | None:
    """(condition, its value): the first of the arm's conditions whose name matches `words`."""
    pattern = _pattern(words)
    return next(((name, value) for name, value in arm.keys.items() if pattern.search(name.replace("_", " "))), None)


@asked_once
def condition(arm: Arm, words: str) -> float | None:
    """The number of the condition whose name or heading matches `words`: from its conditions, its values, or its label
    (`cap 16`, `2 cpus`).
    """
    found = named(arm, words)
    if found is not None:
        number = _as_number(found[1])
        if number is not None:
            return number
    quoted = worded(arm, words)
    if quoted is not None:
        # `decode tok/s at batch 1`: the heading says the condition itself, and the cell what was measured under it.
        own = _near(words, quoted.label) if quoted.quantity in QUANTITIES else None
        return quoted.value if own is None else own
    return next((own for text in (arm.label, arm.name) if (own := _near(words, text)) is not None), None)


def _near(words: str, text: str) -> float | None:
    near = re.search(rf"(?:{words})\W{{0,3}}(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\W{{0,2}}(?:{words})", text, re.IGNORECASE)
    numbers = [] if near is None else [group for group in near.groups() if group is not None]
    return float(numbers[0]) if numbers else None


def _as_number(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if isfinite(value) else None
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip())
        return float(found[0]) if found else None
    return None


def as_share(value: float, unit: str = "") -> float:
    """A share (0..1) from a number that may be a percentage: by its unit, or because no share is above 1."""
    return value / 100.0 if unit == "%" or (value > 1.0 and unit != "share") else value


def given(arm: Arm, name: str, *stats: str) -> float | None:
    """How much of `name` an arm was given: as the condition that its row is under, else as a number of it."""
    value = arm.keys.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    found = arm.get(name, *stats)
    return found if found is None or isfinite(found) else None


def concurrency_of(arm: Arm, observed: Observed) -> float | None:
    """At how many requests at once the arm was measured: its own, else the one that a command or a form states."""
    own = given(arm, "concurrency")
    if own is not None:
        return own
    stated = number_stated(
        observed,
        # A server has workers as well.
        r"(?:^|\.)(?:max )?(?:concurrency|users|clients|parallel(?:ism)?|in flight)$|"
        r"^(?:(?:load|bench|client|test|fixed)[\w ]*\.)?workers$",
    )
    return observed.number("max_concurrency", "concurrency") or (None if stated is None else stated.number)


def label_number(arm: Arm) -> float | None:
    """The number that an arm's label is (`16`, `tp4`, `8 GPUs`); `None` where it holds none or several."""
    found = re.findall(r"\d+(?:\.\d+)?", arm.label or arm.name)
    return float(found[0]) if len(found) == 1 else None


@asked_once
def told(observed: Observed) -> list[Setting]:
    """The settings that state something: no claims, notes, titles, no manifests, nothing that is not finite."""
    return [
        item
        for item in observed.settings
        if item.name not in _CONTEXT and not item.name.startswith(_CONFIGURED) and _is_finite(item.value)
    ]


def _is_finite(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_finite(item) for item in value)
    return not isinstance(value, float) or isfinite(value)


@asked_once
def stated(observed: Observed, words: str) -> Setting | None:
    """The first statement of which name or text matches `words`."""
    pattern = _pattern(words)
    for item in told(observed):
        if pattern.search(f"{item.name.replace('_', ' ')}: {_text(item.value)}"):
            return item
    return None


@asked_once
def number_stated(observed: Observed, words: str) -> Setting | None:
    """The first statement that is a number (a range counts by its lower end) and of which the name matches `words`."""
    pattern = _pattern(words)
    for item in told(observed):
        if item.number is not None and isfinite(item.number) and pattern.search(item.name.replace("_", " ")):
            return item
    return None


@asked_once
def said(arm: Arm) -> str:
    """Every word by which an arm is called: label, name, and the conditions that are text."""
    texts = [arm.label, arm.name, *(str(value) for value in arm.keys.values() if isinstance(value, str))]
    texts += [text.replace("_", " ") for text in texts if "_" in text]  # `after_10s_idle`
    return " ".join(dict.fromkeys(texts))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return str(value)
