"""MIX_SHIFT from two arms with their mean lengths: prompts or answers grew, and latency grew as much as they did."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import CENTRAL, figure, worded
from tailrace.diagnose.arms.pairs import changed
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Role
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["longer_on_arms"]

GREW: Final = 1.3
ALIKE: Final = 0.25
"""Latency per token of length moved by less than this."""
EQUAL: Final = 0.15
_BUILD: Final = re.compile(r"version|build|release|upgrade|commit|image|driver|model|flag|--", re.IGNORECASE)
_PAIRS: Final = (("prompt_tokens", "ttft"), ("output_tokens", "e2e"), ("prompt_tokens", "prefill"))


def longer_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """One arm from before and one from after, at one rate, with nothing said to be changed in the system."""
    before = [arm for arm in observed.arms if arm.role is Role.BEFORE]
    after = [arm for arm in observed.arms if arm.role is Role.AFTER]
    if len(before) != 1 or len(after) != 1 or _BUILD.search(changed(observed)):
        return None
    return next((found for pair in _PAIRS if (found := _judged(cause, before[0], after[0], *pair)) is not None), None)


def _judged(cause: Cause, one: Arm, two: Arm, length: str, metric: str) -> Finding | None:
    lengths = [figure(arm, length) for arm in (one, two)]
    times = [figure(arm, metric, stats=CENTRAL) for arm in (one, two)]
    if any(item is None or item.value <= 0 for item in (*lengths, *times)):
        return None
    short, long, fast, slow = (item for item in (*lengths, *times) if item is not None)
    grew, slower = long.value / short.value, slow.value / fast.value
    if fast.stat != slow.stat or "limit" in short.label or "max" in short.label.lower() or grew < GREW or slower < GREW:
        return None
    stage = slower / grew - 1.0
    if abs(stage) > ALIKE:
        return None
    for name in ("offered_rps", "req_s", "concurrency", "tpot", "itl"):
        a, b = figure(one, name), figure(two, name)
        if a is not None and b is not None and a.value > 0 and b.value / a.value - 1.0 > EQUAL:
            return None  # more load, or slower tokens: not the lengths alone
    rate = [worded(arm, r"per (?:1k|1000|thousand|token)") for arm in (one, two)]
    shown = [item for item in (*lengths, *times, *rate) if item is not None]
    words = length.replace("_", " ")
    return cause.finding(
        statement=f"The requests grew, nothing became slower: {words} {number(short.value)} -> {number(long.value)} "
        f"({grew:.3g} x) and {quantity(slow)} {number(fast.value, fast.unit)} -> {number(slow.value, slow.unit)} "
        f"({slower:.3g} x): the mix explains it.",
        evidence=[
            *(evidence_of(arm, item) for item in shown for arm in (one, two) if item in arm.values.values()),
            Evidence(f"per token {stage:+.0%}", str(slow.place) or "form", "stage", round(stage, 4)),
        ],
        explains_ms=(slow.value - fast.value) if slow.unit == "ms" else None,
        relation=f"{slower:.3g} / {grew:.3g} = {slower / grew:.3g} per token of length",
        n=2,
        advice="Nothing became slower: give the long requests a lane and limits of their own, retrieve fewer chunks, "
        "trim history, or plan capacity for the new mix. Do not roll back.",
        price="A lane of its own makes the long requests wait for themselves.",
        verify="tailrace compare before.run after.run  # it weights B to the traffic of A",
        missing=["latency by class of length, before and after: each must be as fast as before"],
        rivals=["MIX_CACHE_MISS"] if length == "prompt_tokens" else [],
        level=Level.SUSPECTED,
    )
