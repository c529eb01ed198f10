"""A batcher's window that few requests feel: those that come in a lull wait for it to end, and they are the tail."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.scheduler.hol_long_prefill import waits_behind_prefill
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import of_the_tail
from tailrace.diagnose.record_evidence.batcher import PRICE
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.periods import spike_of

__all__ = ["held_by_a_window"]

LONG_MS: Final = 50.0
MOST: Final = 0.6
OF_TAIL: Final = 0.5
FEWEST: Final = 30
_SAMPLE: Final = 2_000


def held_by_a_window(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Of the waits in the engine's queue above 50 ms most end at one round value and hardly any is longer; the others
    do not wait; and it is not a long prefill that they wait behind.
    """
    window = evidence.now
    queue = window.done.ms("queue_engine")
    long = np.flatnonzero(queue > LONG_MS)
    if long.size < FEWEST or not _reported(evidence, long):
        return None
    spike = spike_of(queue[long])
    if spike is None or spike.nominal is None or spike.share < MOST:
        return None
    longer = float((queue[long] > 1.1 * spike.value).mean())
    at_it = np.abs(queue - spike.value) <= 0.04 * spike.value
    held = np.where(at_it, queue, 0.0)
    explains = window.in_tail(held)
    if longer > 0.1 or explains < OF_TAIL * window.tail_lost_ms or not cause.carries(evidence, explains):
        return None
    if window.outsized.sum() >= 3 and waits_behind_prefill(window).covered_share >= MOST:
        return None
    window.explain(cause.code, held)
    known = queue[~np.isnan(queue)]
    usual = float(np.median(known))
    return cause.finding(
        statement=f"{int(at_it.sum())} requests wait {spike.value:.0f} ms in the engine's queue, the others "
        f"{usual:.0f} ms: they end at a timer of {spike.nominal:g} ms, as those do that come in a lull and wait for a "
        "batcher's window to end.",
        evidence=[
            Evidence(
                text=f"{spike.share:.0%} [{spike.low:.0%}, {spike.high:.0%}] of the {long.size} waits above "
                f"{LONG_MS:.0f} ms lie at {spike.value:.0f} ms, where a smooth distribution would have "
                f"{spike.expected:.1%}; {longer:.0%} are longer",
                source="record:queue_engine_ns",
                name="window_ms",
                value=round(spike.value, 2),
                unit="ms",
            ),
            Evidence(
                text=f"the median wait is {usual:.0f} ms (n = {known.size})",
                source="record:queue_engine_ns",
                name="queue_p50_ms",
                value=round(usual, 2),
                unit="ms",
            ),
            of_the_tail(window, explains, "record:queue_engine_ns"),
        ],
        explains_ms=explains,
        relation=f"wait = {spike.value:.0f} ms, a timer of {spike.nominal:g} ms; "
        f"{explains:.0f} / {window.tail_lost_ms:.0f} ms = {explains / max(window.tail_lost_ms, 1e-9):.0%} of the tail",
        n=int(at_it.sum()),
        advice=f"Shorten the batcher's window, now {spike.nominal:g} ms (Triton: "
        "dynamic_batching.max_queue_delay_microseconds), to what a batch is worth, or lower its preferred batch size.",
        price=PRICE,
        verify=evidence.verify_command,
        missing=["the batcher's setting (its window), to see that it is this timer"],
        disproof_checked=[f"{longer:.0%} of the long waits are longer than the cluster"],
    )


def _reported(evidence: EvidenceSet, rows: np.ndarray) -> bool:
    """An inferred queue holds whatever else lies between the send and the engine's own clock."""
    some = evidence.now.done.column("stage_sources")[rows[:_SAMPLE]]
    return all(row.get("queue", "").startswith(("reported", "measured")) for row in some)
