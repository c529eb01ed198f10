"""Replicas were added and the tail did not move (triage rule R8): the work is not spread, or long requests are not
isolated. More replicas do not help then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure
from tailrace.diagnose.arms.pairs import Pair, pairs
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.limits import UNMOVED
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["REPLICAS", "doubled", "replicas_doubled"]

REPLICAS: Final = r"\b(?:replicas?|gpus?|nodes?|instances|pods|workers|data parallel|dp)\b"
GROWTH: Final = 1.5
"""So many times the replicas should have moved the tail; twice as many is triage's R8."""


def doubled(observed: Observed) -> tuple[Pair, float, float, Quoted, Quoted] | None:
    """(the pair, replicas before, after, p99 before, after) where replicas grew at equal work and the tail did not
    move.
    """
    for pair in pairs([arm for arm in observed.arms if _tail(arm) is not None]):
        one, two = condition(pair.first, REPLICAS), condition(pair.second, REPLICAS)
        if one is None or two is None or min(one, two) <= 0:
            continue
        first, second = (pair.first, pair.second) if one <= two else (pair.second, pair.first)
        few, many = sorted((one, two))
        before = _tail(first)
        after = figure(second, before.quantity, stats=(before.stat,)) if before else None
        if before is None or after is None or many < GROWTH * few or not before.value:
            continue
        if abs(after.value / before.value - 1.0) < UNMOVED:
            return Pair(first, second, pair.same, pair.differs), few, many, before, after
    return None


def _tail(arm: Arm) -> Quoted | None:
    return figure(arm, "ttft", "e2e", "itl", "tpot", stats=("p99", "p95", "p90", "max"))


def replicas_doubled(cause: Cause, observed: Observed) -> Finding | None:
    """More replicas, the same tail: suspected, because what each replica holds is not known."""
    found = doubled(observed)
    if found is None:
        return None
    pair, few, many, before, after = found
    missing = [
        "requests and tokens in flight per replica during the slow window",
        "the p99 of short and of long prompts apart",
    ]
    if not pair.same:
        missing.append("the offered load of both arms")
    return cause.finding(
        statement=f"{many / few:.3g} x the replicas left {quantity(before)} where it was: "
        f"{number(before.value, before.unit)} with {few:.0f}, {number(after.value, after.unit)} with {many:.0f}. Do "
        "not "
        "add more: routing does not spread the work, or long requests are not kept apart from short ones.",
        evidence=[
            evidence_of(pair.first, before),
            evidence_of(pair.second, after),
            Evidence(
                text=f"replicas {few:.0f} -> {many:.0f} ({many / few:.3g} x)",
                source=str(pair.second.place) or "form",
                name="replicas",
                value=many,
            ),
        ],
        explains_ms=None,
        relation=f"{number(after.value, after.unit)} / {number(before.value, before.unit)} = "
        f"{after.value / before.value:.3g} at {many / few:.3g} x the replicas",
        n=2,
        advice="Compare what is in flight on each replica (skew = busiest / mean) and the limits of each: its batch "
        "limits, connection pool and CPU quota. Route by queued tokens, and give long prompts a lane of their own.",
        price="None for looking; a lane makes long prompts wait.",
        verify=again(pair.second),
        missing=missing,
        rivals=["SCHED_HOL_LONG_PREFILL", "LB_HOTSPOT"],
        disproof_checked=[f"equal load: {', '.join(pair.same)}" if pair.same else "the load of the arms is not stated"],
        level=Level.SUSPECTED,
    )
