"""Triage on arms: the first questions of anybody who looks at a slow system, where tables and forms can answer them.

Conditions and limits are those of `triage`; where two arms are compared, the first (or the one called before) is the
old one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.diagnose.arm_evidence.replicas_doubled import doubled
from tailrace.diagnose.arms.asked import ANY, condition, figure, number_stated, per_request
from tailrace.diagnose.arms.pairs import Pair, pairs
from tailrace.diagnose.limits import BUSY, IDLE, LATE_MS, SAME, TPOT_MS, TTFT_MS, WORSE
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role

__all__ = ["triage_arms"]

_TAIL: Final = ("p99", "p95", "p999", "p90", "max")
_MIDDLE: Final = ("p50", "mean", "")


class _Arm(NamedTuple):
    """What the rules ask of one arm; times in ms."""

    arm: Arm
    target: float
    pace: float

    def number(self, quantity: str, stats: tuple[str, ...]) -> float | None:
        found = figure(self.arm, quantity, stats=stats)
        return None if found is None else found.value

    @property
    def ttft(self) -> float | None:
        """The highest that is known."""
        return self.number("ttft", (*_TAIL, *_MIDDLE))

    @property
    def queue_share(self) -> float | None:
        """Queue / TTFT of one statistic."""
        for stat in (*_TAIL, *_MIDDLE):
            queue, ttft = self.number("queue", (stat,)), self.number("ttft", (stat,))
            if queue is not None and ttft:
                return queue / ttft
        return None


def triage_arms(observed: Observed) -> list[str]:
    """The rules that fire on tables, forms and printed benchmarks, in their order."""
    target = _stated(observed, r"ttft (?:target|slo|objective)|target ttft", TTFT_MS)
    pace = _stated(observed, r"(?:tpot|itl) (?:target|slo|objective)|target tpot", TPOT_MS)
    out = set()
    for arm in observed.arms:
        out |= _of_one(_Arm(arm, target, pace))
    for pair in pairs(observed.arms):
        if _ordered(pair):
            out |= _of_two(pair)
    if (found := doubled(observed)) is not None and found[2] >= 2 * found[1]:
        out.add("R8")
    return sorted(out, key=lambda rule: int(rule[1:]))


def _stated(observed: Observed, words: str, default: float) -> float:
    found = number_stated(observed, words)
    if found is None or not found.number:
        return default
    return found.number * (1000.0 if found.unit == "s" else 1.0)


def _ordered(pair: Pair) -> bool:
    """Only a pair of which the source says which is the old one: rows of a sweep are no before and after."""
    return pair.first.role is Role.BEFORE and pair.second.role is Role.AFTER


def _of_one(one: _Arm) -> set[str]:
    out = set()
    share, ttft = one.queue_share, one.ttft
    queue = one.number("queue", _TAIL)
    if (share is not None and share > 0.5) or (queue is not None and queue > 0.5 * one.target):
        out.add("R1")
    tpot = one.number("tpot", _MIDDLE) or one.number("itl", _MIDDLE)
    slow = ttft is not None and ttft > one.target
    if slow and tpot is not None and tpot <= one.pace and (share is None or share < 0.5):
        out.add("R2")
    if ttft is not None and not slow and _long_total(one):
        out.add("R3")
    middle, tail = one.number("ttft", _MIDDLE[:1]), one.number("ttft", _TAIL[:2])
    if middle is not None and tail is not None and middle <= one.target and tail > 5.0 * middle and tail > one.target:
        out.add("R5")
    if ttft is not None and ttft > LATE_MS:
        out.add("R11")
    used = one.number("gpu_util", ANY)
    if used is not None and ((used > BUSY and share is not None and share > 0.5) or (used < IDLE and slow)):
        out.add("R12")
    return out


def _long_total(one: _Arm) -> bool:
    """E2E - TTFT above (output tokens - 1) x the target time per token."""
    out = per_request(one.arm, "output_tokens")
    for stat in (*_TAIL, *_MIDDLE):
        whole, ttft = one.number("e2e", (stat,)), one.number("ttft", (stat,))
        if whole is not None and ttft is not None and out is not None:
            return whole - ttft > (out[0] - 1) * one.pace
    return False


def _of_two(pair: Pair) -> set[str]:
    out = set()
    for name in ("ttft", "e2e", "itl", "tpot"):
        middle, tail = _change(pair, name, ("p50",)), _change(pair, name, ("p99", "p95"))
        if middle is None or tail is None:
            continue
        if abs(middle) < SAME and tail > WORSE:
            out.add("R4")
        if middle > WORSE and tail > WORSE and _near_limit(pair.second):
            out.add("R6")
    middle = next(
        (value for name in ("ttft", "e2e") if (value := _change(pair, name, ("p50", "mean"))) is not None), None
    )
    if middle is not None and abs(middle) < SAME and _more_errors(pair):
        out.add("R7")
    return out


def _change(pair: Pair, quantity: str, stats: tuple[str, ...]) -> float | None:
    """Relative change of the first statistic that both have; as a column of changes says it where there is one."""
    for stat in stats:
        one, two = figure(pair.first, quantity, stats=(stat,)), figure(pair.second, quantity, stats=(stat,))
        if one is not None and two is not None and one.value:
            return two.value / one.value - 1.0
        told: Quoted | None = pair.second.quoted(quantity, stat)
        if told is not None and told.relative:
            return told.value / 100.0
    return None


def _near_limit(arm: Arm) -> bool:
    used = [figure(arm, name, stats=ANY) for name in ("gpu_util", "kv_usage")]
    if any(value is not None and value.value > BUSY for value in used):
        return True
    running, cap = figure(arm, "running", stats=ANY), condition(arm, r"max num seqs|max running requests")
    return running is not None and cap is not None and running.value >= BUSY * cap


def _more_errors(pair: Pair) -> bool:
    for name in ("failed_share", "failed"):
        one, two = figure(pair.first, name), figure(pair.second, name)
        if one is not None and two is not None:
            return two.value > max(1.2 * one.value, one.value + (0.005 if name == "failed_share" else 2.0))
    one, two = figure(pair.first, "success_share"), figure(pair.second, "success_share")
    return one is not None and two is not None and one.value - two.value > 0.005
