"""SCHED_INSTANCE_LIMIT from a sweep alone: more at once bring no more answers, and each takes as many times as long.

One after the other from the first request on: batching has no effect, or there is one instance. A device that one
request fills does the same, so without its use this stays a suspicion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import CENTRAL, figure, worded
from tailrace.diagnose.arms.pairs import Point, sweep
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["served_in_turn"]

NO_MORE: Final = 1.1
"""The rate of twice as many is at most so many times that of one."""
FITS: Final = 0.15
_AXIS: Final = r"\bconcurrency\b|in.?flight|\bclients?\b|\busers?\b|\bparallel\b|\bstreams?\b|\bthreads?\b"
_BUSY: Final = r"\bgpu\b.*(?:util|busy|usage|load)|^gpu(?: ?\(?%|$)|gpu util"


def served_in_turn(cause: Cause, observed: Observed) -> Finding | None:
    """One request at a time against several: the same rate, and the time of one multiplied by how many there are."""
    points = sweep(observed, _AXIS, lambda arm: figure(arm, "req_s") is not None and figure(arm, "e2e") is not None)
    if not points or points[0].x != 1:
        return None
    alone, most = points[0], points[-1]
    shown = [(point, _known(point, "req_s"), _known(point, "e2e")) for point in points]
    rate, took = shown[0][1], shown[0][2]
    if rate.value <= 0 or took.value <= 0 or any(item.key != took.key for _, _, item in shown):
        return None
    for point, more, longer in shown[1:]:
        if more.value > NO_MORE * rate.value or abs(longer.value / took.value / point.x - 1.0) > FITS:
            return None
    fast, long = shown[-1][1], shown[-1][2]
    busy = figure(most.arm, "gpu_util", stats=("", "mean", "p50", "max")) or worded(most.arm, _BUSY)
    n = figure(most.arm, "n")
    return cause.finding(
        statement=f"Requests are served one at a time: {most.x:g} at once get {number(fast.value, '1/s')} where one "
        f"gets {number(rate.value, '1/s')}, and {quantity(long)} goes from {number(took.value, 'ms')} to "
        f"{number(long.value, 'ms')}. Batching does not take effect: one instance, a batch of one, a serial section, "
        "or a device that one request fills.",
        evidence=[
            *(evidence_of(point.arm, item) for point, *items in shown for item in items),
            *([evidence_of(most.arm, busy)] if busy is not None else []),
            Evidence(
                f"{most.x:g} / {number(fast.value, '1/s')} = {number(1e3 * most.x / fast.value, 'ms')}",
                str(fast.place) or "form", "residence_ms", round(1e3 * most.x / fast.value, 3), "ms",
            ),
        ],
        explains_ms=long.value - took.value,
        relation=f"rate x {fast.value / rate.value:.3g}, {quantity(long)} x {long.value / took.value:.3g} at "
        f"x {most.x / alone.x:g} the concurrency; Little's law: {most.x:g} / {fast.value:.3g}/s = "
        f"{number(1e3 * most.x / fast.value, 'ms')}",
        n=int(n.value) if n is not None else len(points),
        advice="Read how many run at once while several are sent (running and waiting requests, instances, the largest "
        "batch), and how busy the device is: where it idles, raise the instances or the batch; where one request fills "
        "it, only another device helps.",
        price="Each instance takes device memory; larger batches make one execution longer.",
        verify=again(most.arm),
        missing=["queue and compute time apart at both loads, and GPU utilisation: one instance, or a full device"],
        rivals=["SCHED_QUEUE_SATURATION", "LOCK_CONTENTION"],
        action=Action.TUNE,
        level=Level.SUSPECTED,
    )  # fmt: skip


def _known(point: Point, name: str) -> Quoted:
    found = figure(point.arm, name, stats=CENTRAL)
    if found is None:  # the sweep has only arms that tell it
        raise AssertionError(name)
    return found
