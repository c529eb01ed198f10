"""Requests that clients gave up, in a table of windows: their share, and the work that was done for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import figure
from tailrace.diagnose.arms.moments import in_order
from tailrace.diagnose.arms.shown import evidence_of, number
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["cancelled_on_arms"]

SHARE: Final = 0.05
MORE: Final = 2.0
WORK: Final = 0.10
_CANCELLED: Final = re.compile(r"cancel|abort|client (?:disconnect|clos|gone|left)|hung? ?up|\b499\b", re.IGNORECASE)
_WASTE: Final = re.compile(r"token|work|gpu|wast", re.IGNORECASE)


def cancelled_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The window with the largest share of cancelled requests, against the one with the smallest."""
    windows = [(share, arm) for arm in in_order(observed) if (share := _share(arm)) is not None]
    if not windows:
        return None
    (worst, shown), at = max(windows, key=lambda item: item[0][0])
    (least, shown_least), calm = min(windows, key=lambda item: item[0][0])
    several = len(windows) > 1
    if worst < SHARE or (several and worst < MORE * least):
        return None
    work = _work(at)
    if work is not None and work[0] < WORK:
        return None
    missing = []
    if not several:
        missing.append("the share of cancelled requests in a usual window")
    if work is None:
        missing.append("the tokens that were computed for cancelled requests: above a tenth it is load of its own")
    said = f" ({number(least, 'share')} in {calm.name})" if several else ""
    lost = f", and {number(work[0], 'share')} of the tokens were computed for nobody" if work is not None else ""
    relation = [f"cancelled {number(worst, 'share')}" + (f" against {number(least, 'share')}" if several else "")]
    evidence = [evidence_of(at, item) for item in shown]
    evidence += [evidence_of(calm, item) for item in shown_least] if several else []
    if work is not None:
        relation.append(f"{work[1].value:.0f}/{work[2].value:.0f} tokens = {work[0]:.0%}")
        evidence += [evidence_of(at, work[1]), evidence_of(at, work[2])]
    return cause.finding(
        statement=f"Clients leave before their answers are done: {number(worst, 'share')} of the requests in {at.name} "
        f"are cancelled{said}{lost}.",
        evidence=evidence,
        explains_ms=None,
        relation="; ".join(relation),
        n=len(windows),
        advice="See that a cancel reaches the engine at once (it must fall within 1 s), tell clients earlier (429 or a "
        "first event) instead of letting them wait out their timeout, and set their timeout from the length of the "
        "answer.",
        price="Refused clients see an error where some would have got a late answer.",
        verify="tailrace bench http://localhost:8000 --cancel after-tokens:5 --output-tokens 900 --duration 60 --out "
        "cancelled.run && tailrace diagnose cancelled.run",
        missing=missing,
        disproof_checked=[f"{number(work[0], 'share')} of the tokens went to them"] if work is not None else [],
    )


def _share(arm: Arm) -> tuple[float, list[Quoted]] | None:
    """(share of cancelled requests, the numbers it is made of)."""
    for value in arm.values.values():
        words = f"{value.label} {value.quantity} {value.qualifier}".replace("_", " ")
        if value.relative or not _CANCELLED.search(words) or re.search(r"token|after|second|\bs\b", words):
            continue
        if value.unit in {"%", "share"}:
            return value.value / (100.0 if value.unit == "%" else 1.0), [value]
        whole = figure(arm, "n")
        if whole is not None and whole is not value and whole.value >= max(value.value, 20.0):
            return value.value / whole.value, [value, whole]
    return None


def _work(arm: Arm) -> tuple[float, Quoted, Quoted] | None:
    """(share of the tokens that were computed for them, those tokens, all tokens)."""
    of_tokens = [
        value
        for value in arm.values.values()
        if not value.relative
        and _WASTE.search(f"{value.label} {value.quantity}")
        and value.unit in {"", "tokens", "count"}
    ]
    lost = next((value for value in of_tokens if _CANCELLED.search(f"{value.label} {value.qualifier}")), None)
    whole = max((value for value in of_tokens if value is not lost), key=lambda value: value.value, default=None)
    if lost is None or whole is None or whole.value <= 0 or lost.value > whole.value:
        return None
    return lost.value / whole.value, lost, whole
