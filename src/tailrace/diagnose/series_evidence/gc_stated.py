"""FE_GC_PAUSE from what somebody timed inside the process: how long a full collection takes, and what it frees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import number_stated, told
from tailrace.diagnose.arms.shown import evidence_of_setting, number
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gc_stated"]

LEAST_MS: Final = 50.0
NEAR: Final = 0.3


def gc_stated(cause: Cause, observed: Observed, *, advice: str, price: str, verify: str) -> Finding | None:
    """A collection of so many ms, against the stall that was seen where one is stated."""
    took = number_stated(observed, r"\bgc\b.*(?:collect|pause|time|duration)|garbage collect")
    took_ms = _ms(took)
    if took is None or took_ms is None or took_ms < LEAST_MS:
        return None
    objects = number_stated(observed, r"\bgc\b.*objects|objects (?:tracked|in the heap)")
    freed = number_stated(observed, r"\bgc\b.*(?:freed|collected)|objects freed")
    stall = number_stated(observed, r"^(?:stall|gap|pause|longest gap|freeze)(?: s| ms)?$")
    stall_ms = _ms(stall)
    fits = stall_ms is not None and abs(took_ms / stall_ms - 1.0) <= NEAR
    if stall_ms is not None and not fits and took_ms < stall_ms:
        return None
    frozen = next((item for item in told(observed) if item.name == "all_streams_frozen"), None)
    if frozen is not None and frozen.value is False:
        return None
    missing = []
    if stall_ms is None:
        missing.append("how long the streams stood still, to lay the collection beside it")
    if frozen is None:
        missing.append("whether all streams stop together in it")
    useless = freed is not None and freed.number == 0
    many = f" over {objects.number:g} objects" if objects is not None and objects.number else ""
    return cause.finding(
        action=Action.FIX,
        statement=f"A full garbage collection takes {number(took_ms, 'ms')}{many}"
        + (" and frees nothing" if useless else "")
        + (f"; the stall is {number(stall_ms, 'ms')}." if stall_ms is not None else "."),
        evidence=[
            evidence_of_setting(took),
            Evidence(f"gc: {number(took_ms, 'ms')}", str(took.place) or "form", "gc_ms", took_ms, "ms"),
            *(evidence_of_setting(item) for item in (objects, freed, stall, frozen) if item is not None),
        ],
        explains_ms=took_ms,
        relation=f"collection {number(took_ms, 'ms')}"
        + (f" / stall {number(stall_ms, 'ms')} = {took_ms / stall_ms:.2f}" if stall_ms else ""),
        n=1,
        advice=advice,
        price=price,
        verify=verify,
        missing=missing,
        disproof_checked=["all streams are said to stop together"] if frozen is not None else [],
    )


def _ms(item: Setting | None) -> float | None:
    if item is None or item.number is None:
        return None
    return in_unit(item.number, item.unit, "ms") if item.unit else None
