"""TUNE_NOT_SCALE: the engine is told to run too few requests at once; its cap, not its capacity, is the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import TAIL_FIRST, figure
from tailrace.diagnose.arms.caps import CapSweep, cap_sweep
from tailrace.diagnose.arms.checks import Answer
from tailrace.diagnose.arms.limits import limits_fit
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["cap_on_arms"]


def cap_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The sweep; where throughput is missing, what little the times per token allow."""
    swept = cap_sweep(observed)
    if swept is None:
        return None
    if swept.rates:
        return _measured(cause, observed, swept) if swept.underbatched else None
    return _half(cause, swept) if swept.slowing is not None and 0 < swept.slowing <= FLAT_ENOUGH else None


def _measured(cause: Cause, observed: Observed, swept: CapSweep) -> Finding:
    first, last = swept.points[0], swept.points[-1]
    gain = swept.rates[-1].value / swept.rates[0].value
    missing = [] if swept.paces else ["TPOT (or ITL) at each cap: it must stay flat"]
    checked = [f"throughput ~ cap^{swept.gain:.2f} over the sweep, cap^{swept.last_gain:.2f} in the last step"]
    evidence = [evidence_of(point.arm, rate) for point, rate in zip(swept.points, swept.rates, strict=True)]
    evidence += [evidence_of(point.arm, pace) for point, pace in zip(swept.points, swept.paces, strict=False)]
    evidence.append(
        Evidence(
            f"throughput x {gain:.3g} at {swept.growth:.3g} x the cap",
            str(last.arm.place) or "form",
            "gain",
            round(gain, 4),
        )
    )
    tail = [figure(point.arm, "ttft", stats=TAIL_FIRST) for point in (first, last)]
    price = "TPOT rises a little with the batch, and more requests share the KV cache (watch preemptions)."
    if tail[0] is not None and tail[1] is not None and tail[0].key == tail[1].key:
        evidence += [evidence_of(first.arm, tail[0]), evidence_of(last.arm, tail[1])]
        price = (
            f"{quantity(tail[1])} goes {number(tail[0].value, 'ms')} -> {number(tail[1].value, 'ms')} over the sweep: "
            "its objective sets how far the cap may go. " + price
        )
    if swept.paces:
        one, two = swept.paces[0], swept.paces[-1]
        pace = f", while {quantity(two)} goes {number(one.value, 'ms')} -> {number(two.value, 'ms')} only"
        checked.append(f"{quantity(two)} ~ cap^{swept.slowing:.2f}: flat")
        evidence.append(
            Evidence(
                f"{quantity(two)} x {two.value / one.value:.3g}",
                str(last.arm.place) or "form",
                "slowing",
                round(two.value / one.value, 4),
            )
        )
    else:
        pace = ""
    fits = limits_fit(observed)
    if fits.answer is not Answer.UNKNOWN:
        checked.append(f"{fits.name}: {fits.words}")
    return cause.finding(
        action=Action.TUNE,
        statement=f"Throughput rises x {gain:.3g} ({number(swept.rates[0].value)} -> "
        f"{number(swept.rates[-1].value, swept.rates[-1].unit)}) as the cap goes from {first.x:g} to {last.x:g}{pace}: "
        "the engine is under-batched. Raise the cap before adding GPUs.",
        evidence=evidence,
        explains_ms=None,
        relation=swept.relation,
        n=len(swept.points),
        advice=f"Raise the cap (vLLM: --max-num-seqs; SGLang: --max-running-requests; llama.cpp: --parallel) beyond "
        f"{last.x:g}, one step at a time, until p99 TTFT or TPOT meets its target or throughput stops rising. Add "
        "replicas only when it is flat.",
        price=price,
        verify=again(last.arm),
        missing=missing,
        disproof_checked=checked,
    )


def _half(cause: Cause, swept: CapSweep) -> Finding | None:
    """Times per token without throughput and without queue: a larger batch is a little slower, as it must be."""
    queue = [figure(point.arm, "queue", stats=TAIL_FIRST) for point in swept.points]
    first, last = swept.points[0], swept.points[-1]
    one, two = swept.paces[0], swept.paces[-1]
    missing = []
    saved = None
    if queue[0] is not None and queue[-1] is not None and queue[0].key == queue[-1].key:
        saved = queue[0].value - queue[-1].value
        if saved <= 0:
            return None
    else:
        missing.append("queue time (or TTFT) at each cap: it must have fallen by more than the tokens got slower")
    missing.append("throughput at each cap")
    return cause.finding(
        action=Action.TUNE,
        statement=f"{quantity(two)} goes {number(one.value, 'ms')} -> {number(two.value, 'ms')} (x "
        f"{two.value / one.value:.3g}) as the cap goes from {first.x:g} to {last.x:g}: a larger batch takes a little "
        "longer a step, as expected; whether it pays is decided by the queue, "
        + (f"which fell by {number(saved, 'ms')}." if saved is not None else "which is not given."),
        evidence=[
            *(evidence_of(point.arm, pace) for point, pace in zip(swept.points, swept.paces, strict=True)),
            *(
                evidence_of(point.arm, item)
                for point, item in zip(swept.points, queue, strict=True)
                if item is not None
            ),
        ],
        explains_ms=None,
        relation=swept.relation,
        n=len(swept.points),
        advice="Measure the queue time and the throughput at both caps; keep the higher one if the queue fell by more "
        "than the whole answer got longer (ITL change x tokens).",
        price="Each token takes a little longer in a larger batch.",
        verify=again(last.arm),
        missing=missing,
        disproof_checked=[f"{quantity(two)} ~ cap^{swept.slowing:.2f}"],
        level=Level.SUSPECTED,
    )


FLAT_ENOUGH = 0.6
"""Exponent of ITL ~ cap^e up to which a larger batch may still pay."""
