"""A batcher's window from the groups that it lets go: all of a group leave the queue at one moment, and whoever came
first has waited for the whole window.

A group that leaves a long step together has waited too, but its first for no time in particular: it came somewhere in
the step.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import known_by
from tailrace.diagnose.age_cluster import densest
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import of_the_tail
from tailrace.diagnose.record_evidence.batcher import ADVICE, PRICE
from tailrace.diagnose.replicas import replicas
from tailrace.model.finding import Evidence, Finding

__all__ = ["batcher_in_groups"]

Floats = NDArray[np.float64]
LEAST: Final = 12
"""Groups."""
LEAST_MS: Final = 30.0
APART: Final = 0.2
"""Of the window: two that leave the queue closer than this left it together."""
NARROW: Final = 0.12
NARROW_MS: Final = 6.0
SHARE: Final = 0.6
LONGER: Final = 0.1
OF_WAY: Final = 0.5
"""A round trip to the engine of so much of the window explains the waits as well."""


def batcher_in_groups(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The first of each group waits for one and the same time, and hardly anybody for longer."""
    window = evidence.now
    sources = window.done.column("stage_sources")
    # As the engine says it, or that and the rest of the step which ran: never a queue that is only inferred.
    told = known_by(sources, "queue", "reported") | known_by(sources, "queue", "inferred(metrics.queue_time")
    queue = np.where(told, window.done.ms("queue_engine"), np.nan)
    known = ~np.isnan(queue) & ~np.isnan(window.first)
    if known.sum() < LEAST:
        return None
    most = float(np.quantile(queue[known], 0.95))
    if most < LEAST_MS:
        return None
    held = np.nan_to_num(window.done.ms("queue_gateway"), nan=0.0) + np.nan_to_num(window.done.ms("ingress"), nan=0.0)
    left = window.start / 1e6 + held + queue
    of_row = replicas(window).of_row
    firsts: list[float] = []
    sizes: list[int] = []
    for place in np.unique(of_row).tolist():
        rows = np.flatnonzero(known & (of_row == place))
        rows = rows[np.argsort(left[rows], kind="stable")]
        for group in np.split(rows, np.flatnonzero(np.diff(left[rows]) > APART * most) + 1):
            if group.size:
                firsts.append(float(queue[group].max()))
                sizes.append(int(group.size))
    waited = np.array(firsts)
    long = waited[waited >= LEAST_MS]
    if waited.size < LEAST or not long.size:
        return None
    alike = long[densest(long, apart=NARROW_MS, share=NARROW)]
    share, size = alike.size / waited.size, float(np.median(alike))
    longer = float((queue[known] > size + 2 * max(NARROW_MS, NARROW * size)).mean())
    if share < SHARE or longer > LONGER or not _spread(queue[known], size):
        return None
    explains = window.explain(cause.code, np.where(known, np.minimum(np.nan_to_num(queue, nan=0.0), size), 0.0))
    if not cause.carries(evidence, explains):
        return None
    together = float(np.mean(sizes))
    # What is inferred beyond the engine's own word holds the way to it too.
    way = window.done.ms("upstream_rtt")
    rivals = ["GW_NETWORK"] if float(np.nanmedian(way) if not np.isnan(way).all() else 0.0) >= OF_WAY * size else []
    return cause.finding(
        statement=f"A batcher waits: requests leave the engine's queue in groups ({together:.1f} on average), and "
        f"{share:.0%} of the {waited.size} groups leave it {size:.0f} ms after their first request came.",
        evidence=[
            Evidence(
                f"the first of {share:.0%} of the {waited.size} groups waited {size:.0f} ms (within "
                f"{max(NARROW_MS, NARROW * size):.0f} ms); {longer:.1%} of all requests wait longer",
                "record:queue_engine_ns",
                "window_ms",
                round(size, 2),
                "ms",
            ),
            Evidence(
                f"{together:.1f} requests leave together on average",
                "record:start, record:queue_engine_ns",
                "group",
                round(together, 2),
            ),
            of_the_tail(window, explains, "record:queue_engine_ns"),
        ],
        explains_ms=explains,
        relation=f"wait of the first of a group = {size:.0f} ms = the batcher's window; the others wait for the rest "
        "of it",
        n=int(known.sum()),
        advice=ADVICE,
        price=PRICE,
        verify=evidence.verify_command,
        rivals=rivals,
        disproof_checked=[f"{longer:.1%} wait longer than the window, whatever the load"],
    )


def _spread(queue: Floats, size: float) -> bool:
    """Whether waits are spread over the window, or all at its end: nobody is let through while a batcher waits."""
    return float((queue >= 0.15 * size).mean()) >= 0.6
