"""FE_GC_PAUSE from two arms that differ in the garbage collector: its pauses are the tail of one of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, said
from tailrace.diagnose.arms.pairs import change_shown, changed, pairs, stated_same
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gc_on_arms"]

FREED: Final = 2.0
"""The tail with the collector over that without."""
SAME: Final = 0.15
"""The usual gap stays: a collector stops the streams now and then."""
LEAST_MS: Final = 50.0
_TAILS: Final = ("p999", "p99", "max", "p95")
_GAPS: Final = ("itl", "tpot", "chunk_gap")
_COLLECTOR: Final = re.compile(
    r"\bgc\b|gc[._](?:freeze|disable|collect)|garbage|\bgen(?:eration)?[ -]?2[ -](?:collect|gc|pause|threshold)",
    re.IGNORECASE,
)
"""`gen2` alone is as often a bus as a generation of objects."""
_TAMED: Final = re.compile(
    r"freez|froz|disabl|\boff\b|without|\bno[ _-]gc|raised|higher|threshold|tuned|manual|after warm", re.IGNORECASE
)


def gc_on_arms(cause: Cause, observed: Observed, *, advice: str, price: str) -> Finding | None:
    """The arm whose collector was tamed has its tail cut, at the same usual gap."""
    what = changed(observed)
    # Asked of each arm before it is asked of thousands of pairs; in those a `gen` may stand before a `2`.
    if not _COLLECTOR.search(what) and not any(_COLLECTOR.search(f"{said(arm)} 2") for arm in observed.arms):
        return None
    best: tuple[Arm, Quoted, Arm, Quoted] | None = None
    for pair in pairs(observed.arms):
        words = f"{said(pair.first)} {said(pair.second)}"
        if not _COLLECTOR.search(words) and not _COLLECTOR.search(what):
            continue
        found = _cut(pair.first, pair.second)
        if found is not None and (best is None or found[1].value > best[1].value):
            best = found
    if best is None:
        return None
    slow, late, fast, freed = best
    if not _TAMED.search(f"{said(fast)} {what}") or (_TAMED.search(said(slow)) and not _TAMED.search(said(fast))):
        return None
    usual = [figure(arm, late.quantity, stats=("p50", "mean")) for arm in (slow, fast)]
    known = [(arm, value) for arm, value in zip((slow, fast), usual, strict=True) if value is not None]
    missing = [] if len(known) > 1 else ["the usual gap (p50) of both arms: a collector stops streams now and then"]
    if not stated_same(observed) and not what:
        missing.append("that load and build were the same in both arms")
    return cause.finding(
        statement=f"{quantity(late)} is {number(late.value, 'ms')} with {slow.name} and {number(freed.value, 'ms')} "
        f"with {fast.name}: what differs is the garbage collector, and its pauses are the tail.",
        evidence=[
            evidence_of(slow, late),
            evidence_of(fast, freed),
            *(evidence_of(arm, value) for arm, value in known),
            *change_shown(observed),
        ],
        explains_ms=late.value - freed.value,
        relation=f"{number(late.value, 'ms')} / {number(freed.value, 'ms')} = {late.value / freed.value:.3g} x",
        n=2,
        advice=advice,
        price=price,
        verify=again(fast),
        missing=missing,
        disproof_checked=[f"usual gap {' and '.join(number(value.value, 'ms') for _, value in known)}"]
        if known
        else [],
        action=Action.FIX,
    )


def _cut(one: Arm, two: Arm) -> tuple[Arm, Quoted, Arm, Quoted] | None:
    """(the slow arm, its tail, the fast one, its tail) at the same usual gap; `None` where neither is much better."""
    for name in _GAPS:
        for stat in _TAILS:
            first, second = figure(one, name, stats=(stat,)), figure(two, name, stats=(stat,))
            if first is None or second is None or not min(first.value, second.value) > 0:
                continue
            slow, late, fast, freed = (one, first, two, second) if first.value > second.value else (
                two, second, one, first
            )  # fmt: skip
            usual = [figure(arm, name, stats=("p50", "mean")) for arm in (slow, fast)]
            here, there = (None if value is None else value.value for value in usual)
            moved = here is not None and there is not None and abs(here - there) > SAME * max(here, there)
            if late.value >= max(FREED * freed.value, LEAST_MS) and not moved:
                return slow, late, fast, freed
    return None
