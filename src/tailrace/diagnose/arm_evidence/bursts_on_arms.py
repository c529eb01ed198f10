"""MIX_BURSTY_ARRIVALS from two loads of one mean rate: the uneven one queues, the even one does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.arrivals import VARIATION, cv_stated
from tailrace.diagnose.arms.asked import figure, said, worded
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["bursts_on_arms"]

ALIKE: Final = 0.05
SLOWER: Final = 2.0
UNEVEN: Final = 1.5
SHARE: Final = 0.5
_BURSTY: Final = re.compile(r"burst|production|prod\b|replay|trace|real|poisson|cron|uneven|spik", re.IGNORECASE)
_EVEN: Final = re.compile(r"constant|even|paced|uniform|perf_analyzer|steady|smooth|fixed", re.IGNORECASE)
_STATS: Final = ("p99", "p95", "mean", "p50", "")


def bursts_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Equal rates; the arm with the larger variation (or the bursty name) waits at least twice as long."""
    for one in observed.arms:
        for two in observed.arms:
            found = _pair(cause, one, two)
            if found is not None:
                return found
    return None


def _rate(arm: Arm) -> Quoted | None:
    return figure(arm, "offered_rps", "req_s")


def _pair(cause: Cause, bursty: Arm, even: Arm) -> Finding | None:  # noqa: PLR0911  (one disproof each)
    rates = (_rate(bursty), _rate(even))
    if bursty is even or rates[0] is None or rates[1] is None or rates[1].value <= 0:
        return None
    if abs(rates[0].value / rates[1].value - 1.0) > ALIKE:
        return None
    cv = (worded(bursty, VARIATION), worded(even, VARIATION))
    varies = [None if item is None else cv_stated(f"{item.label} {item.quantity}", item.value) for item in cv]
    told = None not in varies
    if varies[0] is not None and varies[1] is not None and (varies[0] < UNEVEN or varies[1] > 0.67 * varies[0]):
        return None
    if not told and not (_BURSTY.search(said(bursty)) and _EVEN.search(said(even))):
        return None
    slow = _slower(bursty, even)
    if slow is None:
        return None
    queue, compute = figure(bursty, "queue"), figure(bursty, "compute", "prefill")
    share = queue.value / (queue.value + compute.value) if queue is not None and compute is not None else None
    if share is not None and share <= SHARE:
        return None
    missing = []
    if not told:
        missing.append("the variation of the times between arrivals (CV) of both loads")
    if share is None:
        missing.append("queue and compute time: what is longer must be queue")
    part = f"; queue is {share:.0%} of queue and compute" if share is not None else ""
    shown = [item for item in (queue, compute) if item is not None]
    return cause.finding(
        statement=f"At the same mean rate ({rates[0].value:g}/s) {quantity(slow[0])} is "
        f"{number(slow[0].value, slow[0].unit)} with {bursty.name} and {number(slow[1].value, slow[1].unit)} with "
        f"{even.name}: requests come in bursts and queue behind each other{part}.",
        evidence=[
            evidence_of(bursty, slow[0]),
            evidence_of(even, slow[1]),
            *(evidence_of(bursty, item) for item in (rates[0], *shown)),
            *(evidence_of(arm, item) for arm, item in zip((bursty, even), cv, strict=True) if item is not None),
            *(
                [Evidence(f"queue share {share:.0%}", str(bursty.place) or "form", "queue_share", share)]
                if share
                else []
            ),
        ],
        explains_ms=slow[0].value - slow[1].value if slow[0].unit == "ms" else None,
        relation=f"{slow[0].value:.4g} / {slow[1].value:.4g} = {slow[0].value / slow[1].value:.3g} x at equal rate"
        + (f"; queue {share:.0%}" if share is not None else ""),
        n=2,
        advice="Test with Poisson arrivals or a trace of the real ones, not with an even pace; smooth the bursts where "
        "they are made (timers that fire together, batch jobs), and keep room for the peak.",
        price="Smoothing makes single requests wait a little; room for the peak idles between bursts.",
        verify=again(bursty, more="--arrival poisson"),
        missing=missing,
        disproof_checked=[f"the arrivals are not regular: CV {varies[0]:.3g}"] if varies[0] is not None else [],
        level=None if missing else Level.CONSISTENT,
    )


def _slower(bursty: Arm, even: Arm) -> tuple[Quoted, Quoted] | None:
    for name in ("queue", "ttft", "e2e"):
        for stat in _STATS:
            one, two = figure(bursty, name, stats=(stat,)), figure(even, name, stats=(stat,))
            if one is not None and two is not None and two.value >= 0 and one.value >= SLOWER * max(two.value, 1e-9):
                return one, two
    return None
