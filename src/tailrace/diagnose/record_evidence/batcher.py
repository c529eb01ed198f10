"""SCHED_BATCHER_WAIT: a batcher waits for company that does not come."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.analyze.labels import known_by
from tailrace.diagnose.age_cluster import densest
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import account
from tailrace.model.finding import Evidence, Finding

__all__ = ["ADVICE", "PRICE", "batcher_in_records"]

LEAST: Final = 20
NARROW: Final = 0.15
NARROW_MS: Final = 3.0
SHARE: Final = 0.35
MOST_ABOVE: Final = 0.15
"""Of those at low load, that wait longer than the window: a queue has no end, a window has one."""
LEAST_MS: Final = 20.0
CARRIES: Final = 0.2
"""Of the time to the first token (or the whole request, where nothing is streamed)."""
OF_LOAD: Final = 1.5
"""Under load the wait is no longer than so much of the window: a batch is full sooner."""
ADVICE: Final = (
    "Shorten the batcher's window (Triton: dynamic_batching.max_queue_delay_microseconds) to what a batch is worth, or "
    "lower its preferred batch size so that it is full sooner; for an engine with continuous batching switch the outer "
    "batcher off."
)
PRICE: Final = "Smaller batches: less throughput at high load."


def batcher_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The queue of requests at low load clusters at one value above 20 ms."""
    window = evidence.now
    if cause.cannot_run(evidence):
        return None
    # An inferred queue holds whatever else lies between the send and the engine's own clock.
    told = known_by(window.done.column("stage_sources"), "queue", "reported")
    queue = np.where(told, window.done.ms("queue_engine"), np.nan)
    at = account(window)
    load = at.upstream().at(at.sent)[window.rows]
    waiting = window.done.column("waiting_at_admission")
    calm = ~np.isnan(queue) & (load <= max(2.0, float(np.quantile(load, 0.4)))) & ~(waiting > 1)
    if calm.sum() < LEAST:
        return None
    values = queue[calm]
    long = values[values >= LEAST_MS]
    alike = long[densest(long, apart=NARROW_MS, share=NARROW)]
    share = alike.size / values.size
    if share < SHARE or float((values > alike[-1]).mean()) > MOST_ABOVE:
        return None
    size, above = float(np.median(alike)), float((values > alike[-1]).mean())
    busy = ~np.isnan(queue) & (load >= np.quantile(load, 0.9))
    crowded = float(np.median(queue[busy])) if busy.sum() >= LEAST else float("nan")
    if crowded > OF_LOAD * size:
        return None
    whole = np.fmax(window.done.ms("ttft"), 0.0)
    whole = np.where(np.isnan(whole), window.done.ms("e2e"), whole)
    explains = window.explain(cause.code, np.minimum(np.nan_to_num(queue, nan=0.0), size))
    middle = float(np.median(whole[~np.isnan(whole)]))
    if size < CARRIES * middle and not cause.carries(evidence, explains):
        return None
    return cause.finding(
        statement=f"A batcher waits: {share:.0%} of the requests that find the engine nearly empty queue for "
        f"{size:.0f} ms, of {middle:.0f} ms to their first output (median).",
        evidence=[
            Evidence(
                f"the queue of {int(calm.sum())} requests at low load clusters at {size:.0f} ms ({share:.0%} of "
                f"them "
                f"within {max(NARROW_MS, NARROW * size):.0f} ms), {above:.0%} wait longer",
                "record:queue_engine_ns",
                "window_ms",
                round(size, 2),
                "ms",
            ),
            Evidence(
                f"{middle:.0f} ms to the first output (median)", "record:ttft_ns", "ttft_ms", round(middle, 1), "ms"
            ),
            *(
                [
                    Evidence(
                        f"in the busiest tenth the queue is {crowded:.0f} ms (median)",
                        "record:queue_engine_ns",
                        "crowded_ms",
                        round(crowded, 1),
                        "ms",
                    )
                ]
                if not np.isnan(crowded)
                else []
            ),
        ],
        explains_ms=max(explains, size),
        relation=f"queue at low load = {size:.0f} ms, whatever the load = the batcher's window",
        n=int(calm.sum()),
        advice=ADVICE,
        price=PRICE,
        verify=evidence.verify_command,
        disproof_checked=[
            f"at high load the queue is {crowded:.0f} ms" if not np.isnan(crowded) else "no high load seen"
        ],
    )
