"""SCHED_INSTANCE_LIMIT: every instance of the model executes, requests wait, and the device has time to spare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arm_evidence.server_figures import server_figures
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["instance_limit_observed"]

IDLE: Final = 0.7
"""A device that is busy more than this has no room for more instances."""
QUEUED: Final = 1.0
"""Queue time / compute time from which it matters."""
AT: Final = 0.9


def instance_limit_observed(cause: Cause, observed: Observed) -> Finding | None:
    """The counts, or the rate that so many instances can give."""
    seen = server_figures(observed, busiest=True)
    if seen.instances is None or seen.instances.value < 1:
        return None
    queued = (seen.waiting is not None and seen.waiting.value >= 1) or (
        seen.queue is not None and seen.compute is not None and seen.queue.value > QUEUED * seen.compute.value
    )
    if not queued:
        return None
    flat = seen.executing is not None and seen.executing.value >= AT * seen.instances.value
    rate = None
    if seen.compute is not None and seen.compute.value > 0:
        rate = seen.instances.value * 1000.0 / seen.compute.value
    at_rate = rate is not None and seen.rate is not None and AT * rate <= seen.rate.value <= rate / AT
    if seen.executing is not None and not flat:
        return None
    if not flat and not at_rate:
        return None
    if seen.gpu is not None and seen.gpu.value > IDLE:
        return None
    missing = [] if seen.gpu is not None else ["GPU utilisation: an idle device has room for more instances"]
    if not flat:
        missing.append("executing requests of the model against its instances")
    waits = (
        f"{number(seen.waiting.value)} wait"
        if seen.waiting is not None and seen.waiting.value >= 1
        else f"{number(seen.queue.value, 'ms')} are queue"
        if seen.queue is not None
        else "others wait"
    )
    idle = f", and the GPU is busy {number(seen.gpu.value, 'share')} only" if seen.gpu is not None else ""
    known = [item for item in seen if item is not None]
    relation = []
    if flat and seen.executing is not None:
        relation.append(f"executing {number(seen.executing.value)} = instances {number(seen.instances.value)}")
    if at_rate and rate is not None and seen.rate is not None and seen.compute is not None:
        relation.append(
            f"{number(seen.instances.value)} / {number(seen.compute.value, 'ms')} = {number(rate)}/s; seen "
            f"{number(seen.rate.value)}/s"
        )
    return cause.finding(
        action=Action.TUNE,
        statement=f"All {number(seen.instances.value)} instances execute and {waits}{idle}: the instance count is "
        "the limit.",
        evidence=[
            *(item.evidence for item in known),
            *(
                [
                    Evidence(
                        f"{number(seen.instances.value)} instances at {number(seen.compute.value, 'ms')} give "
                        f"{number(rate)}/s",
                        "computed",
                        "most_per_s",
                        round(rate, 2),
                        "1/s",
                    )
                ]
                if rate is not None and seen.compute is not None
                else []
            ),
        ],
        explains_ms=None if seen.queue is None else seen.queue.value,
        relation="; ".join(relation),
        n=1,
        advice="Raise instance_group.count of the model, or its max_batch_size with dynamic batching, until the "
        "device is "
        "busy or the queue is gone; one step at a time.",
        price="Each instance takes device memory; larger batches make one execution longer.",
        verify=(
            "tailrace bench http://localhost:8000 --sweep rate=1,2,4,8 --duration 30  # before and after: "
            "throughput rises, queue falls"
        ),
        missing=missing,
        rivals=[] if seen.gpu is not None else ["SCHED_QUEUE_SATURATION"],
        disproof_checked=[
            f"GPU utilisation {number(seen.gpu.value, 'share')}" if seen.gpu is not None else "GPU utilisation unknown"
        ],
    )
