"""BENCH_UNSTABLE from rounds with both sides in each row: the side that nobody changed moves more than the effect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.repeats import RUN
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import TO_MS
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["paired_rounds"]

LEAST: Final = 3
ENOUGH: Final = 5
_OLD: Final = re.compile(r"\b(?:before|old|base(?:line)?|control|reference|stock|main|master|a)\b", re.IGNORECASE)
_NEW: Final = re.compile(r"\b(?:after|new|candidate|treatment|variant|patched|patch|pr|b)\b", re.IGNORECASE)


class _Rounds(NamedTuple):
    arms: list[Arm]
    old: list[Quoted]
    new: list[Quoted]


def paired_rounds(cause: Cause, observed: Observed) -> Finding | None:
    """The mean of the paired differences against their spread, and against what the old side did by itself."""
    found = _rounds(observed)
    if found is None:
        return None
    old = np.array([item.value for item in found.old])
    deltas = np.array([item.value for item in found.new]) - old
    n = len(deltas)
    mean, error = float(deltas.mean()), float(deltas.std(ddof=1) / np.sqrt(n))
    drift = float(np.ptp(old))
    if abs(mean) > 2 * error or drift <= abs(mean) or old.mean() <= 0:
        return None
    low, high = int(old.argmin()), int(old.argmax())
    first, last = min(low, high), max(low, high)
    unit = found.old[0].unit
    words = ", ".join(f"{delta:+.4g}" for delta in deltas)
    missing = [f"more rounds (at least {max(ENOUGH, n + 2)}), after a warm-up, in alternating order"]
    return cause.finding(
        statement=f"{n} rounds tell nothing: the difference is {words} {unit} (mean {mean:+.4g}, standard error "
        f"{error:.3g}; the interval contains 0), while the unchanged side alone moved by {number(drift, unit)} "
        f"({drift / float(old[first]):.0%}) between {found.arms[first].name} and {found.arms[last].name}.",
        evidence=[
            *(
                evidence_of(arm, item)
                for arm, *items in zip(found.arms, found.old, found.new, strict=True)
                for item in items
            ),
            Evidence(
                f"the unchanged side: {old[first]:.6g} -> {old[last]:.6g} {unit}, {old[last] - old[first]:+.6g} "
                f"({drift / float(old[first]):.1%})",
                str(found.old[first].place), "drift", round(drift, 3), unit,
            ),
            Evidence(
                f"paired differences {words} {unit}: mean {mean:+.4g}, standard error {error:.4g}",
                str(found.new[0].place), "mean_difference", round(mean, 3), unit,
            ),
        ],
        explains_ms=None,
        relation=f"spread of the unchanged side {drift:.4g} > mean difference {abs(mean):.4g} {unit}, which is "
        f"{abs(mean) / max(error, 1e-9):.2g} standard errors from 0",
        n=n,
        advice="Ship nothing on this. Warm up, then repeat both sides in alternating order until the interval of the "
        "paired difference leaves 0 out.",
        price="More rounds take as long as they take.",
        verify="tailrace ab --a http://localhost:8000 --b http://localhost:8001 --rounds 6 --rate 5 --duration 120",
        missing=missing,
        action=Action.COLLECT,
        level=Level.SUSPECTED,
    )  # fmt: skip


def _rounds(observed: Observed) -> _Rounds | None:
    """Rows that are rounds, each with one duration of both sides."""
    by_source: dict[str, list[tuple[Arm, Quoted, Quoted]]] = {}
    for arm in observed.arms:
        if not RUN.search(f"{arm.label} {arm.name} {' '.join(arm.keys)}"):
            continue
        spans = [item for item in arm.values.values() if item.unit in TO_MS and not item.relative]
        old = [item for item in spans if _OLD.search(_words(item)) and not _NEW.search(_words(item))]
        new = [item for item in spans if _NEW.search(_words(item)) and not _OLD.search(_words(item))]
        if len(old) == 1 and len(new) == 1 and old[0].unit == new[0].unit and old[0].stat == new[0].stat:
            by_source.setdefault(arm.place.source, []).append((arm, old[0], new[0]))
    rows = max(by_source.values(), key=len, default=[])
    if len(rows) < LEAST:
        return None
    arms, old_side, new_side = zip(*rows, strict=True)
    return _Rounds(list(arms), list(old_side), list(new_side))


def _words(item: Quoted) -> str:
    return f"{item.label} {item.qualifier}".replace("_", " ")
