"""A client that does not take its answer, in a table of stages or of gaps on both sides of a gateway."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.arms.whole_tables import with_whole_tables
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["reader_on_arms"]

LEAST_MS: Final = 200.0
USUAL_MS: Final = 100.0
SHARE: Final = 0.3
SLOWER: Final = 5.0
_BLOCKED: Final = re.compile(
    r"client[ _]?(?:is[ _])?block|blocked (?:by|on) (?:the )?client|write[ _]?block|back.?pressure|"
    r"^response(?:[ _(]|$)|client[ _]?(?:drain|flush)|slow[ _]reader",
    re.IGNORECASE,
)
_TO_CLIENT: Final = re.compile(r"client.{0,4}(?:write|side)|(?:write|to) (?:the )?client|downstream", re.IGNORECASE)
_FROM_ENGINE: Final = re.compile(r"upstream|engine|from (?:the )?(?:engine|server)", re.IGNORECASE)
_STATS: Final = ("p99", "p95", "max", "p90", "mean", "p50", "")


def reader_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The time in which the client blocked is a third of the whole, or gaps towards it are long where the engine's
    are not.
    """
    for arm in with_whole_tables(observed):
        for stat in _STATS:
            found = _found(cause, arm, stat)
            if found is not None:
                return found
    return None


def _found(cause: Cause, arm: Arm, stat: str) -> Finding | None:
    of_stat = [v for v in arm.values.values() if v.stat == stat and v.unit == "ms" and not v.relative]
    blocked = next((v for v in of_stat if _BLOCKED.search(_words(v)) and v.quantity != "e2e"), None)
    whole = next((v for v in of_stat if v.quantity == "e2e"), None)
    gaps = [v for v in of_stat if v.quantity in {"chunk_gap", "itl", "tpot"}]
    theirs = next((v for v in gaps if _TO_CLIENT.search(_words(v))), None)
    engine = next((v for v in gaps if v is not theirs and (_FROM_ENGINE.search(_words(v)) or v.quantity != "chunk_gap"
                                                           or not v.qualifier)), None)  # fmt: skip
    # A tail may be one pause; what is usual need not be so long to add up over a stream.
    least = USUAL_MS if stat in {"p50", "mean"} else LEAST_MS
    uneven = theirs is not None and engine is not None and theirs.value >= max(SLOWER * engine.value, least)
    carries = blocked is not None and blocked.value >= LEAST_MS
    if whole is not None and blocked is not None:
        carries = carries and SHARE * whole.value <= blocked.value <= 1.05 * whole.value
    if engine is not None and theirs is not None and theirs.value < 2 * engine.value:
        return None  # what comes from the engine goes out at once
    if not (carries and (whole is not None or uneven)) and not uneven:
        return None
    return _made(cause, arm, blocked if carries else None, whole, theirs, engine)


def _words(value: Quoted) -> str:
    return f"{value.label} {value.qualifier} {value.quantity}".replace("_", " ")


def _made(
    cause: Cause, arm: Arm, blocked: Quoted | None, whole: Quoted | None, theirs: Quoted | None, engine: Quoted | None
) -> Finding:
    said, relation, missing = [], [], []
    if blocked is not None and whole is not None:
        share = blocked.value / whole.value
        said.append(
            f"the client blocks for {number(blocked.value, 'ms')} of {number(whole.value, 'ms')} ({quantity(whole)})"
        )
        relation.append(f"{blocked.value:.4g}/{whole.value:.4g} ms = {share:.0%}")
    elif blocked is not None:
        said.append(f"the client blocks for {number(blocked.value, 'ms')}")
    if theirs is not None and engine is not None:
        said.append(
            f"chunks go out to it after {number(theirs.value, 'ms')} where the engine sends them after "
            f"{number(engine.value, 'ms')}"
        )
        relation.append(f"{theirs.value:.4g}/{engine.value:.4g} ms = {theirs.value / engine.value:.3g} x")
    else:
        missing.append("the engine's own gaps beside what goes out to the client: only the second may be slow")
    if blocked is None:
        missing.append("how long writing to the client blocked (the `response` stage)")
    shown = [item for item in (blocked, whole, theirs, engine) if item is not None]
    return cause.finding(
        statement=f"The client reads slowly: {', and '.join(said)}. The engine is not to blame.",
        evidence=[evidence_of(arm, item) for item in shown],
        explains_ms=(blocked or theirs or shown[0]).value,
        relation="; ".join(relation) or f"blocked {number(shown[0].value, 'ms')}",
        n=1,
        advice="Look at those clients (buffer, network, rendering while reading), send smaller answers, and bound how "
        "much is kept for one that does not read; the engine is not to blame.",
        price="None at the server.",
        verify=again(arm),
        missing=missing,
        disproof_checked=[] if engine is None else [f"the engine's own gap is {number(engine.value, 'ms')}"],
    )
