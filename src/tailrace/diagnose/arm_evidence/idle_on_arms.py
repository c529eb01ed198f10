"""COMPUTE_IDLE_RAMP from a sweep over the pause before a request: the longer it idled, the later its first token."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure, number_stated, said
from tailrace.diagnose.arms.pairs import Point, sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["idle_on_arms"]

SLOWER: Final = 1.5
LEAST_MS: Final = 20.0
MANY: Final = 6
_RESTED: Final = re.compile(
    r"\bidle\b|pause|(?:after|since) (?:a )?(?:rest|quiet|sleep|break|gap)|first after|cold gpu|\bwait(?:ed)? \d",
    re.IGNORECASE,
)
_BUSY: Final = re.compile(
    r"back[ _-]?to[ _-]?back|\bback\b|busy|warm|consecutive|immediately|no (?:pause|idle)|continuous|steady",
    re.IGNORECASE,
)
AXIS: Final = (
    r"\bidle\b|pause before|gap before|(?:time )?since (?:the )?last request|sleep (?:before|between)|wait between"
)


def idle_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """TTFT never falls with the pause, and ends half as high again as it began."""
    stats = ("p50", "mean", "", "p99")
    paired = _two_arms(cause, observed)
    if paired is not None:
        return paired
    points = _by_pause(observed, stats) or sweep(
        observed, AXIS, lambda arm: figure(arm, "ttft", stats=stats) is not None
    )
    times = [found for point in points if (found := figure(point.arm, "ttft", stats=stats)) is not None]
    if len(points) < 2 or len(times) < len(points) or len({item.key for item in times}) > 1:
        return None
    first, last = times[0], max(times, key=lambda item: item.value)
    late = points[times.index(last)]
    falls = any(two.value < 0.85 * one.value for one, two in pairwise(times))
    if falls or last.value < SLOWER * first.value or last.value - first.value < LEAST_MS:
        return None
    held = [figure(point.arm, "concurrency") for point in points]
    alone = all(item is not None and item.value <= 1 for item in held)
    missing = [] if alone else ["that nothing else was in flight (concurrency 1) in all of them"]
    missing += [] if len(points) >= 3 else ["a third pause between the two"]
    return cause.finding(
        statement=f"After {late.x:g} s idle {quantity(last)} is {number(last.value, 'ms')}, after {points[0].x:g} s "
        f"{number(first.value, 'ms')}: it follows the pause before the request, not the load.",
        evidence=[
            *(evidence_of(point.arm, item) for point, item in zip(points, times, strict=True)),
            Evidence(f"idle from {points[0].x:g} to {points[-1].x:g} s", str(points[0].arm.place) or "form", "idle_s"),
        ],
        explains_ms=last.value - first.value,
        relation="; ".join(
            f"idle {point.x:g} s: {item.value:.4g} ms" for point, item in zip(points, times, strict=True)
        ),
        n=len(points),
        advice="Keep the device awake: a small request every few seconds, locked clocks (`nvidia-smi -lgc`), "
        "persistence mode; look whether a process sleeps (scale to zero, a paused container).",
        price="A keep-warm request costs little; locked clocks cost idle power.",
        verify=again(points[0].arm),
        missing=missing,
        disproof_checked=["concurrency 1 in all of them" if alone else "the load is not stated"],
    )


def _by_pause(observed: Observed, stats: tuple[str, ...]) -> list[Point]:
    """Rows of single requests that tell the pause before each: one point for each pause, its median row."""
    rows = [
        (pause, found.value, arm)
        for arm in observed.arms
        if (pause := condition(arm, AXIS)) is not None and (found := figure(arm, "ttft", stats=stats)) is not None
    ]
    pauses = sorted({pause for pause, *_ in rows})
    if len(rows) < MANY or not 2 <= len(pauses) < len(rows):
        return []
    groups = [sorted((time, n) for n, (one, time, _) in enumerate(rows) if one == pause) for pause in pauses]
    middle = [rows[group[len(group) // 2][1]][2] for group in groups]
    return [Point(pause, arm) for pause, arm in zip(pauses, middle, strict=True)]


def _two_arms(cause: Cause, observed: Observed) -> Finding | None:
    """`after idle` beside `back to back`: two arms by their names."""
    stats = ("p50", "mean", "", "p99")
    arms = [(arm, found) for arm in observed.arms if (found := figure(arm, "ttft", "e2e", stats=stats)) is not None]
    rested = [item for item in arms if _RESTED.search(said(item[0])) and not _BUSY.search(said(item[0]))]
    busy = [item for item in arms if _BUSY.search(said(item[0])) and not _RESTED.search(said(item[0]))]
    if not rested or len(busy) != 1 or len({item.key for _, item in (*rested, *busy)}) > 1:
        return None
    if len(arms) > len(rested) + 1:
        return None
    # The shortest pause decides: what comes after a longer one is as late.
    (slow, late), (fast, soon) = min(rested, key=lambda item: item[1].value), busy[0]
    if late.value < SLOWER * soon.value or late.value - soon.value < LEAST_MS:
        return None
    held = number_stated(observed, r"^(?:max )?concurrency$|in flight")
    alone = held is not None and held.number is not None and held.number <= 1
    pause = number_stated(observed, r"idle|pause")
    pauses = condition(slow, r"idle|pause")
    clocks = [item for item in observed.settings if re.search(r"clock", item.name) and item.number is not None][:2]
    missing = [] if alone else ["that nothing else was in flight (concurrency 1) in both"]
    missing.append("a third pause between the two: it grows with the pause")
    words = f" ({pause.number:g} s)" if pause is not None and pause.number else f" ({pauses:g} s)" if pauses else ""
    return cause.finding(
        statement=f"{quantity(late)} is {number(late.value, 'ms')} {slow.name}{words} and {number(soon.value, 'ms')} "
        f"{fast.name}: it follows the pause before the request, not the load.",
        evidence=[
            evidence_of(slow, late),
            evidence_of(fast, soon),
            *(evidence_of_setting(item) for item in (held, pause, *clocks) if item is not None),
        ],
        explains_ms=late.value - soon.value,
        relation=f"{late.value:.4g} / {soon.value:.4g} ms = {late.value / soon.value:.3g}",
        n=2,
        advice="Keep the device awake: a small request every few seconds, locked clocks (`nvidia-smi -lgc`), "
        "persistence mode; look whether a process sleeps (scale to zero, a paused container).",
        price="A keep-warm request costs little; locked clocks cost idle power.",
        verify=again(fast),
        missing=missing,
        disproof_checked=["concurrency 1" if alone else "the load is not stated"],
    )
