"""SCHED_PREFILL_STEALS_DECODE from a sweep of the step's token budget: the longest gap is one time a token of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, worded
from tailrace.diagnose.arms.pairs import sweep
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ADVICE", "PRICE", "Weighed", "chunk_sweep"]

ADVICE: Final = (
    "Let decoding in between prefill batches: lower the step's token budget (vLLM: --max-num-batched-tokens with "
    "--enable-chunked-prefill; SGLang: --chunked-prefill-size, --enable-mixed-chunk; llama.cpp: -b/-ub), bound the "
    "prefill batches in a row, give long prompts a lane of their own, or disaggregate prefill."
)
PRICE: Final = "The first token of long prompts comes later, because their prefill shares each step."
_BUDGET: Final = (
    r"^(?!.*(?:\bm?s\b|\bsec|audio|gap|latency|time\b))(?:.*\b)?(?:-{0,2}b\b(?! *size)|n[ _-]?batch\b|"
    r"u?batch[ _-](?:size|tokens)\b|max[ _-]num[ _-]batched|token budget|step budget|"
    r"(?:prefill|chunk(?:ed)?)[ _-](?:prefill[ _-])?(?:size|tokens|chunk|piece|len(?:gth)?)\b)"
)
LEAST: Final = 2
SPAN: Final = 2.0
"""The largest budget over the smallest; less is no sweep."""
FITS: Final = 0.2
"""Spread of gap / budget over the sweep."""
LEAST_TOKENS: Final = 64.0
LONG_MS: Final = 250.0


class Weighed(NamedTuple):
    """What speaks for a full cache instead."""

    rivals: list[str]
    checked: list[str]
    missing: list[str]


def chunk_sweep(cause: Cause, observed: Observed, weighed: Weighed) -> Finding | None:
    """Gap / budget is one time in every row: a stream waits for a piece of prefill, however large it is made."""
    points = [point for point in sweep(observed, _BUDGET, lambda arm: _gap(arm) is not None) if point.x >= LEAST_TOKENS]
    gaps = [gap for point in points if (gap := _gap(point.arm)) is not None]
    if len(points) < LEAST or points[-1].x < SPAN * points[0].x or len({gap.key for gap in gaps}) > 1:
        return None
    budgets, lengths = np.array([point.x for point in points]), np.array([gap.value for gap in gaps])
    each = lengths / budgets
    if lengths[-1] < LONG_MS or float(np.ptp(each)) > FITS * float(np.median(each)):
        return None
    rates = 1e3 / each
    rate = float(np.median(rates))
    counts = _counts([point.arm for point in points], budgets)
    worked = "; ".join(
        f"{budget:g} / {length / 1e3:.3g} s = {own:.0f} tok/s"
        for budget, length, own in zip(budgets, lengths, rates, strict=True)
    )
    whole = f" Their number times the budget is one prompt of {counts[1]:.0f} tokens." if counts is not None else ""
    low, high = points[0], points[-1]
    first = [figure(point.arm, "ttft", stats=("", "p50", "mean", "p99", "max")) for point in (low, high)]
    price = PRICE
    if first[0] is not None and first[1] is not None and first[1].value > 0:
        price = (
            f"{quantity(first[0])} {number(first[0].value, 'ms')} at {low.x:g} against {number(first[1].value, 'ms')} "
            f"at {high.x:g}. {PRICE}"
        )
    return cause.finding(
        statement=f"A stream waits for one prefill chunk at a time: the {quantity(gaps[-1])} grows in step with the "
        f"step's token budget, from {number(float(lengths[0]), 'ms')} at {low.x:g} tokens to "
        f"{number(float(lengths[-1]), 'ms')} at {high.x:g}, which is one prefill rate of about "
        f"{rate:.0f} tok/s throughout.{whole}",
        evidence=[
            *(evidence_of(point.arm, gap) for point, gap in zip(points, gaps, strict=True)),
            *(evidence_of(arm, item) for arm, item in (counts[0] if counts is not None else [])),
            Evidence(
                f"budget / gap: {worked}", "computed", "prefill_tok_s", round(float(np.median(rates)), 1), "tok/s"
            ),
            *(evidence_of(point.arm, item) for point, item in zip((low, high), first, strict=True) if item is not None),
        ],
        explains_ms=float(lengths[-1] - lengths[0]),
        relation=worked + (f"; gaps x budget = {counts[1]:.0f} tokens in each row" if counts is not None else ""),
        n=len(points),
        advice=f"{ADVICE} {shorter_prompts(tokens=counts[1] if counts else None, rate=rate)}",
        price=price,
        verify=again(low.arm),
        rivals=weighed.rivals,
        disproof_checked=[*weighed.checked, "the gap follows the budget, which a full cache or a busy host would not"],
        level=Level.SUSPECTED if weighed.rivals else Level.CONSISTENT,
    )


def _gap(arm: Arm) -> Quoted | None:
    return figure(arm, "chunk_gap", stats=("max", "p99", "mean", "", "p50")) or figure(arm, "itl", stats=("max", "p99"))


def _counts(arms: list[Arm], budgets: np.ndarray) -> tuple[list[tuple[Arm, Quoted]], float] | None:
    """How many gaps there were in each row, where their number times the budget is one length."""
    found = [(arm, worded(arm, r"\b(?:gaps?|stalls?|pauses?|stops?)\b.*|^(?:number|count|n) of")) for arm in arms]
    counted = [(arm, item) for arm, item in found if item is not None and item.unit in ("", "count")]
    if len(counted) != len(arms):
        return None
    whole = np.array([item.value for _, item in counted]) * budgets
    return (counted, float(np.median(whole))) if np.ptp(whole) <= 0.1 * np.median(whole) > 0 else None
