"""When latencies must not be believed: the arms carried another load, or a closed loop hid a stall."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from tailrace.analyze.arms import ArmData
from tailrace.analyze.classes import prompt_tokens
from tailrace.model.measurement import Verdict

__all__ = ["Stall", "Withheld", "hidden_stalls", "withheld"]

LOAD_CHANGE: Final = 0.10
"""A load that differs by less than this share is taken for the same."""
_Z: Final = 2.58
HIDDEN_SHARE: Final = 0.01
"""Stalls that fill this share of a run would be in the p99 of whoever comes at a random time."""
_STALL_GAPS: Final = 10.0
_STALL_ANSWERS: Final = 3.0


class Withheld(NamedTuple):
    """Why the observed verdict is not given."""

    why: str
    remedy: str


class Stall(NamedTuple):
    """Silences of a closed loop: times in which no request of any worker began to answer or ended."""

    seconds: float
    """All of them together."""
    longest_s: float
    share: float
    """Of the run."""
    requests: int
    """How many the arm sends in so much time when nothing stalls; so many were not sent into the silence."""


def withheld(verdict: Verdict, a: ArmData, b: ArmData, work: dict[str, Any]) -> Withheld | None:
    """Whether `verdict` (what the latencies say) must not be given, and why.

    A heavier load makes a system slower and a lighter one faster, and no weighting takes that out: `regressed` under
    a heavier load and `improved` under a lighter one are not told. A closed loop waits together with its server: where
    B stalled and A did not, the requests that would have waited were never sent, and B is not told to be as good.
    """
    wrong_way = {Verdict.REGRESSED: 1.0, Verdict.IMPROVED: -1.0}.get(verdict)
    if wrong_way is not None:
        for what, change in _load_changes(a, b, work):
            if change * wrong_way > math.log1p(LOAD_CHANGE):
                more = "more" if change > 0 else "fewer"
                return Withheld(
                    f"B carried {abs(math.expm1(change)):.0%} {more} {what} a second than A, which by itself makes a "
                    f"system {'slower' if change > 0 else 'faster'}",
                    "Measure both at the same rate, mix and --seed.",
                )
    if verdict in (Verdict.IMPROVED, Verdict.NO_DIFFERENCE) and b.closed_loop:
        before, after = hidden_stalls(a), hidden_stalls(b)
        if after.share >= HIDDEN_SHARE and after.share >= before.share + HIDDEN_SHARE:
            return Withheld(f"in B {stall_words(after)}", "Measure both with --rate, at the rate that A reached.")
    return None


def stall_words(stall: Stall) -> str:
    """A sentence's part about a closed loop's silences."""
    return (
        f"nothing answered for {stall.seconds:.1f} s ({stall.share:.0%} of the run, {stall.longest_s:.1f} s at a time) "
        f"and the closed loop waited with it: about {stall.requests} requests that users would have sent meanwhile are "
        "in no percentile"
    )


def _load_changes(a: ArmData, b: ArmData, work: dict[str, Any]) -> list[tuple[str, float]]:
    """(what, log of its ratio B to A) of each measure of the offered load that differs beyond chance."""
    out = []
    counts = (len(a.every), len(b.every))
    rates = (float(work["rate_a"]), float(work["rate_b"]))
    if min(counts) > 1 and min(rates) > 0:
        change = math.log(rates[1] / rates[0])
        if abs(change) > _Z * math.sqrt(1.0 / counts[0] + 1.0 / counts[1]):
            out.append(("requests", change))
        if not (work["prompt_tokens"] and work["classes"]):
            means = [float(np.nanmean(prompt_tokens(arm.every))) if _known(arm) else 0.0 for arm in (a, b)]
            if min(means) > 0:
                out.append(("prompt tokens", math.log(means[1] * rates[1] / (means[0] * rates[0]))))
    return out


def _known(arm: ArmData) -> bool:
    return bool((~np.isnan(prompt_tokens(arm.every))).any())


def hidden_stalls(arm: ArmData) -> Stall:
    """The silences of an arm: longer than 10 x the median time between two such events and 3 x the median answer."""
    nothing = Stall(0.0, 0.0, 0.0, 0)
    if len(arm.done) < 2 or arm.duration_s <= 0:
        return nothing
    found = [_silences(one) for one in (arm.parts or (arm,))]
    silences = np.concatenate([silence for silence, _ in found])
    if not silences.size:
        return nothing
    seconds = float(silences.sum())
    share = min(seconds / arm.duration_s, 1.0)
    busy = max(arm.duration_s - seconds, 1e-9)
    return Stall(seconds, float(silences.max()), share, round(len(arm.every) / busy * seconds))


def _silences(arm: ArmData) -> tuple[np.ndarray, float]:
    first = arm.at_s + arm.done.ms("ttft") / 1e3
    ends = arm.at_s + arm.done.ms("e2e") / 1e3
    events = np.sort(np.concatenate([first[~np.isnan(first)], ends]))
    apart = np.diff(events)
    if not apart.size:
        return np.empty(0), 0.0
    least = max(
        _STALL_GAPS * float(np.median(apart)), _STALL_ANSWERS * float(np.median(arm.done.ms("e2e"))) / 1e3, 1e-3
    )
    return apart[apart > least], least
