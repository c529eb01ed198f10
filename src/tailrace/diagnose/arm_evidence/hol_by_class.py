"""Short and long requests in columns of their own: as late as each other, or apart once they have lanes; and TTFT of
short ones along the tokens that were ahead of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.replicas_doubled import doubled
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import figure, number_stated
from tailrace.diagnose.arms.pairs import changed, sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level
from tailrace.stats.correlation import straight_line

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ShortAndLong", "hol_by_class", "short_and_long"]

ALIKE: Final = 0.8
"""Short / long from which short requests are as late as long ones."""
WAIT_MS: Final = 500.0
FREED: Final = 0.33
"""With lanes the short ones need at most this part of what they needed."""
FIT: Final = 0.9
GROWS: Final = 3.0
EVEN: Final = 2.0
"""The skew from which LB_SKEW holds."""
LEAST_POINTS: Final = 4
_SHORT: Final = re.compile(r"\b(?:short|small|chat|interactive|light|tiny)\b", re.IGNORECASE)
_LONG: Final = re.compile(r"\b(?:long|large|big|documents?|docs?|rag|heavy|batch|huge|batch job)\b", re.IGNORECASE)
_TAILS: Final = ("p99", "p95", "max", "p90", "mean", "p50", "")
_AHEAD: Final = r"tokens? (?:queued |waiting )?(?:ahead|before|in front)|queued tokens|\bahead\b"
ADVICE: Final = (
    "Give long prompts a lane of their own with a small running limit, or serve the shortest first with a bounded "
    "wait; vLLM: --max-long-partial-prefills, --long-prefill-token-threshold. Limit inputs."
)
PRICE: Final = "Long prompts wait in their own lane: their TTFT rises."


class ShortAndLong(NamedTuple):
    """The two classes of one arm."""

    arm: Arm
    short: Quoted
    long: Quoted

    @property
    def ratio(self) -> float:
        """Short / long."""
        return self.short.value / self.long.value


def short_and_long(arm: Arm) -> ShortAndLong | None:
    """`short TTFT p99` beside `long TTFT p99` in one row; `None` where one of them is missing."""
    for name in ("ttft", "e2e", "queue"):
        for stat in _TAILS:
            short = long = None
            for item in arm.values.values():
                if item.quantity != name or item.stat != stat or item.relative or item.value <= 0:
                    continue
                words = f"{item.qualifier} {item.label}"
                if _SHORT.search(words) and not _LONG.search(words):
                    short = short or item
                elif _LONG.search(words) and not _SHORT.search(words):
                    long = long or item
            if short is not None and long is not None:
                return ShortAndLong(arm, short, long)
    return None


def hol_by_class(cause: Cause, observed: Observed) -> Finding | None:
    """Classes as columns, in one row or over a change of the order of service; or a sweep over the tokens ahead."""
    return surest([_columns(cause, observed), _ahead(cause, observed)])


def _columns(cause: Cause, observed: Observed) -> Finding | None:
    found = [item for arm in observed.arms if (item := short_and_long(arm)) is not None]
    late = [item for item in found if item.ratio >= ALIKE and item.short.value >= WAIT_MS]
    if not late:
        return None
    worst = max(late, key=lambda item: item.short.value)
    freed = next(
        (item for item in found if item.short.key == worst.short.key and item.short.value <= FREED * worst.short.value),
        None,
    )
    what = changed(observed)
    sizes = [number_stated(observed, words) for words in (
        r"(?:prompt|input) tokens (?:of )?(?:the )?short|short (?:prompt|input)",
        r"(?:prompt|input) tokens (?:of )?(?:the )?long|long (?:prompt|input)",
    )]  # fmt: skip
    rate = number_stated(observed, r"(?:prefill|prompt|input)(?: throughput)? tok s|prefill (?:rate|speed)")
    n = number_stated(observed, r"^(?:n|requests|samples)$")
    evidence = [evidence_of(worst.arm, worst.short), evidence_of(worst.arm, worst.long)]
    rest = [item for item in late if item is not worst]
    for item in rest[:3]:
        evidence += [evidence_of(item.arm, item.short), evidence_of(item.arm, item.long)]
    words = ""
    if freed is not None:
        evidence += [evidence_of(freed.arm, freed.short), evidence_of(freed.arm, freed.long)]
        words = (
            f" With {freed.arm.name} the short ones need {number(freed.short.value, 'ms')}, and long ones "
            f"{number(freed.long.value, 'ms')}."
        )
    evidence += [evidence_of_setting(item) for item in (*sizes, rate) if item is not None]
    relation = f"short {number(worst.short.value, 'ms')} / long {number(worst.long.value, 'ms')} = {worst.ratio:.2f}"
    if freed is not None:
        low, high = freed.short.value, worst.short.value
        relation += (
            f"; short {number(high, 'ms')} / {number(low, 'ms')} = {high / low:.1f} x, {1 - low / high:.1%} less once "
            "they are apart"
        )
    own = sizes[1]
    if own is not None and own.number and rate is not None and rate.number:
        took = own.number / rate.number
        relation += f"; {own.number:g} tokens / {rate.number:g} tok/s = {took:.3g} s: one long prefill"
        evidence.append(
            Evidence(
                f"{own.number:g} / {rate.number:g} = {took:.3g} s for one long prompt",
                "computed",
                "prefill_s",
                took,
                "s",
            )
        )
    unmoved, flights = _replicas(observed)
    missing = []
    if (sizes[0] is None or sizes[1] is None) and freed is None:
        missing.append("the prompt tokens of the short and of the long class")
    if n is None and freed is None:
        missing.append("how many requests each class has")
    return cause.finding(
        statement=f"Short requests are as late as long ones: {quantity(worst.short)} "
        f"{number(worst.short.value, 'ms')}, {quantity(worst.long)} {number(worst.long.value, 'ms')} "
        f"({worst.arm.name}). They wait behind the prefill of the long ones.{words}{unmoved[0] if unmoved else ''}",
        evidence=[*evidence, *(unmoved[1] if unmoved else [])],
        explains_ms=worst.short.value - (freed.short.value if freed is not None else 0.0),
        relation=relation,
        n=int(n.number) if n is not None and n.number else 2 * len(found),
        advice=("Do not add replicas: they do not isolate long requests. " if unmoved else "")
        + ADVICE
        + " "
        + shorter_prompts(
            tokens=own.number if own is not None else None, rate=rate.number if rate is not None else None
        ),
        price=PRICE,
        verify=again(worst.arm),
        missing=missing,
        disproof_checked=[
            "short and long have the same tail, so the wait does not depend on one's own length",
            *flights,
            *([f"changed: {what}"] if what and freed is not None else []),
        ],
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _replicas(observed: Observed) -> tuple[tuple[str, list[Evidence]] | None, list[str]]:
    """(what more replicas did not do, with its evidence; whether the work is spread)."""
    pair = doubled(observed)
    checked = []
    flights = next(
        (
            item
            for item in observed.settings
            if re.search(r"in[ _]flight|running|queue", item.name) and isinstance(item.value, list)
        ),
        None,
    )
    if flights is not None:
        told = [float(value) for value in flights.value if isinstance(value, (int, float))]
        if len(told) > 1 and sum(told) > 0:
            skew = max(told) * len(told) / sum(told)
            if skew < EVEN:
                checked.append(
                    f"in flight per replica {', '.join(f'{value:g}' for value in told)}: skew {skew:.2f}, even"
                )
    if pair is None:
        return None, checked
    _, few, many, before, after = pair
    moved = after.value / before.value - 1.0
    words = (
        f" {many / few:.3g} x the replicas left {quantity(before)} where it was "
        f"({number(before.value, 'ms')} with {few:.0f}, {number(after.value, 'ms')} with {many:.0f}, "
        f"{100 * moved:+.1f} %)."
    )
    return (
        words,
        [
            Evidence(
                f"replicas {few:.0f} -> {many:.0f} ({many / few:.3g} x): {quantity(before)} "
                f"{number(before.value, 'ms')} -> {number(after.value, 'ms')} "
                f"({before.value:.0f} -> {after.value:.0f} ms, "
                f"{100 * moved:+.1f} %)",
                str(after.place) or "form", "replicas", many,
            )
        ],
    ), checked  # fmt: skip


def _ahead(cause: Cause, observed: Observed) -> Finding | None:
    """A straight line from the tokens ahead to the time to the first token."""
    points = sweep(observed, _AHEAD, lambda arm: figure(arm, "ttft", "queue", stats=_TAILS) is not None)
    times = [found for point in points if (found := figure(point.arm, "ttft", "queue", stats=_TAILS)) is not None]
    if len(points) < LEAST_POINTS or len({item.key for item in times}) > 1 or times[-1].value < WAIT_MS:
        return None
    slope, fit = straight_line(np.array([point.x for point in points]), np.array([item.value for item in times]))
    if slope <= 0 or fit < FIT or times[-1].value < GROWS * max(times[0].value, 1e-9):
        return None
    rate = 1e3 / slope
    return cause.finding(
        statement=f"The first token of short requests follows the tokens that were ahead of them: "
        f"{number(times[0].value, 'ms')} with {points[0].x:g}, {number(times[-1].value, 'ms')} with {points[-1].x:g}: "
        f"they are served in order, at {rate:.0f} tok/s.",
        evidence=[
            *(evidence_of(point.arm, item) for point, item in zip(points, times, strict=True)),
            Evidence(
                f"{points[0].x:g} to {points[-1].x:g} tokens ahead; slope 1/{rate:.0f} tok/s, fit {fit:.2f}",
                "computed", "drain_tok_s", rate, "tok/s",
            ),
        ],
        explains_ms=times[-1].value - times[0].value,
        relation=f"TTFT ~ tokens ahead / {rate:.0f} tok/s (fit {fit:.2f}); {points[-1].x:g} / {rate:.0f} = "
        f"{points[-1].x / rate:.3g} s",
        n=len(points),
        advice=f"{ADVICE} {shorter_prompts(rate=rate)}",
        price=PRICE,
        verify=again(points[-1].arm),
        disproof_checked=[f"TTFT is not independent of the queue ahead: fit {fit:.2f}"],
    )  # fmt: skip
