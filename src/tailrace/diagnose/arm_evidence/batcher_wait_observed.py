"""SCHED_BATCHER_WAIT: at low load requests wait the batcher's whole window for company that does not come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arm_evidence.server_figures import server_figures
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["batcher_wait_observed"]

CLUSTERS: Final = 0.15
"""So near to the window the queue time lies."""
LOW: Final = 2.0
"""Requests in flight up to which nothing can queue behind others."""
LEAST_MS: Final = 0.5


def batcher_wait_observed(cause: Cause, observed: Observed) -> Finding | None:
    """The queue time beside the window."""
    seen = server_figures(observed, busiest=True)
    if seen.delay is None or seen.queue is None or seen.delay.value < LEAST_MS:
        return None
    if abs(seen.queue.value / seen.delay.value - 1.0) > CLUSTERS:
        return None
    if seen.load is not None and seen.load.value > LOW:
        return None
    # At a rate so low that two requests seldom meet within a window, the load is low too.
    seldom = seen.rate is not None and seen.rate.value * seen.delay.value / 1000.0 < 0.5
    missing = (
        []
        if seen.load is not None or seldom
        else ["the load (concurrency or arrival rate): at high load a queue may be as long by chance"]
    )
    known = [item.evidence for item in (seen.delay, seen.queue, seen.compute, seen.load, seen.rate) if item is not None]
    return cause.finding(
        action=Action.TUNE,
        statement=f"Requests wait {number(seen.queue.value, 'ms')} in the queue, the batcher's window of "
        f"{number(seen.delay.value, 'ms')}, though nothing is before them: it waits for a fuller batch.",
        evidence=known,
        explains_ms=seen.queue.value,
        relation=f"queue {number(seen.queue.value, 'ms')} / window {number(seen.delay.value, 'ms')} = "
        f"{seen.queue.value / seen.delay.value:.2f}",
        n=1,
        advice="Shorten the window (max_queue_delay_microseconds) to well below the compute time"
        + (f" ({number(seen.compute.value, 'ms')})" if seen.compute is not None else "")
        + ", or lower preferred_batch_size so that small batches go at once.",
        price="Smaller batches: less throughput at high load.",
        verify=(
            "tailrace bench http://localhost:8000 --concurrency 1 --duration 60 --out after.run && "
            "tailrace compare before.run after.run  # the queue time follows the window"
        ),
        missing=missing,
        rivals=["MIX_BURSTY_ARRIVALS"] if missing else [],
        disproof_checked=[
            f"concurrency {seen.load.value:g}"
            if seen.load is not None
            else "load by its rate"
            if seldom
            else "load unknown"
        ],
    )
