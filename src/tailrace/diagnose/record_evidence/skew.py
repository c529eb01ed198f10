"""LB_SKEW: one replica has the queue while others have room."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import of_the_tail
from tailrace.diagnose.replicas import LEAST, Replicas, replicas
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding

__all__ = ["SKEW", "lost_on_hot", "skew_in_records"]

SKEW: Final = 2.0
"""Largest mean in flight over the mean of the replicas; two replicas cannot exceed 2, so half of the way counts."""
WORK: Final = 1.15
SLOWER: Final = 1.3
TILTED: Final = 1.4
EVEN: Final = 1.25
CERTAIN: Final = 4.0
PACE: Final = 1.1


def threshold(count: int) -> float:
    """The skew from which it is one: 2, or half of what so few replicas can show at all."""
    return min(SKEW, 1.0 + 0.5 * (count - 1))


def lost_on_hot(window: Window, served: Replicas) -> NDArray[np.float64]:
    """By row of `done`: what it lost on the fullest replica beyond the median of the others (ms)."""
    total = window.lost.total
    hot = served.of_row == served.hot
    rest = (served.of_row >= 0) & ~hot
    usual = float(np.median(total[rest])) if rest.any() else 0.0
    out: NDArray[np.float64] = np.where(hot, np.maximum(total - usual, 0.0), 0.0)
    return out


def skew_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Mean in flight of the fullest above twice the mean, more work there, and slower requests there."""
    window = evidence.now
    served = replicas(window)
    if served.n < 2 or window.n < 50:
        return None
    least = threshold(served.n)
    tilted = _tilted(evidence, served)
    if served.skew < (min(least, TILTED) if tilted else least):
        return None
    hot = served.of_row == served.hot
    rest = (served.of_row >= 0) & ~hot
    if hot.sum() < LEAST:
        return None
    explains = window.explain(cause.code, lost_on_hot(window, served))
    if not cause.carries(evidence, explains) and not (tilted and _slower_there(window, hot, rest)):
        return None
    theirs, others = (window.done.ms("e2e")[rows] for rows in (hot, rest))
    slower = float(np.median(theirs)) / max(float(np.median(others)), 1e-9) if others.size else float("inf")
    missing, rivals = [], []
    most = float(served.requests.max() / max(float(served.requests.mean()), 1e-9))
    even = served.work_skew < WORK and most < WORK
    if even:
        # As much work as the others and still full: the replica is slow, not the balancer wrong.
        rivals.append("DECODE_SLOWDOWN")
        missing.append("whether that replica is slower by itself (its clocks, neighbours, version)")
    mean = float(served.in_flight.mean())
    name = served.names[served.hot]
    low, high = (float(np.quantile(values, 0.95)) if values.size else 0.0 for values in (others, theirs))
    return cause.finding(
        statement=f"The load is skewed: replica {name!r} has {served.in_flight[served.hot]:.1f} requests under way "
        f"on average, {served.skew:.2f} x the mean of {served.n} replicas, and {explains:.0f} of the "
        f"{window.tail_lost_ms:.0f} ms that the slowest requests lost are lost there.",
        evidence=[
            Evidence(
                f"mean in flight by replica: {served.words()} ({served.n} replicas); largest / mean = "
                f"{served.skew:.2f}",
                "record:backend, record:e2e_ns",
                "skew",
                round(served.skew, 3),
            ),
            Evidence(
                f"it got {most:.2f} x the mean number of requests and {served.work_skew:.2f} x the mean tokens",
                "record:backend, record:prompt_tokens, record:output_tokens",
                "work_skew",
                round(served.work_skew, 3),
            ),
            Evidence(
                f"E2E p95 {high:.0f} ms there, {low:.0f} ms elsewhere (median x {slower:.2f})",
                "record:e2e_ns",
                "hot_p95_ms",
                round(high, 1),
                "ms",
            ),
            of_the_tail(window, explains, "record:backend", "there"),
        ],
        explains_ms=explains,
        relation=f"max in flight / mean = {served.in_flight[served.hot]:.1f} / {mean:.1f} = {served.skew:.2f} > "
        f"{min(least, TILTED) if tilted else least:.2g}" + (" (even in the window before)" if tilted else ""),
        n=window.n,
        advice="Balance by what a replica has under way and queued (least requests, or tokens under way), not by "
        "turns or by the number of requests; do not add replicas before: the new one takes from the idle ones.",
        price="Fewer prefix-cache hits, where the skew came from an affinity.",
        verify=evidence.verify_command,
        missing=missing,
        rivals=rivals,
        disproof_checked=[
            f"work by tokens {served.work_skew:.2f} x the mean, by requests {most:.2f} x",
            *([] if slower >= SLOWER else [f"its requests take {slower:.2f} x as long as the others' (median)"]),
        ],
    )


def _tilted(evidence: EvidenceSet, served: Replicas) -> bool:
    """Whether the same replicas had even loads in the window before, and the fullest now gets more of the requests than
    chance gives it.
    """
    if evidence.before is None or evidence.before.n < 50:
        return False
    old = replicas(evidence.before)
    if old.names != served.names or old.skew > EVEN:
        return False
    n_old, n_now = float(old.requests.sum()), float(served.requests.sum())
    a, b = float(old.requests[served.hot]) / n_old, float(served.requests[served.hot]) / n_now
    pooled = (a * n_old + b * n_now) / (n_old + n_now)
    return b - a > CERTAIN * float(np.sqrt(pooled * (1 - pooled) * (1 / n_old + 1 / n_now)))


def _slower_there(window: Window, hot: NDArray[np.bool_], rest: NDArray[np.bool_]) -> bool:
    """Whether a token takes a tenth longer there: the batch is that much fuller, whoever makes the tail."""
    pace = window.done.ms("tpot")
    theirs, others = (pace[rows & ~np.isnan(pace)] for rows in (hot, rest))
    return min(theirs.size, others.size) >= LEAST and float(np.median(theirs)) >= PACE * float(np.median(others))
