"""COMPUTE_IDLE_RAMP from records: the first token is late after a pause of the machine, and not under load."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.quantiles import median, or_zero, quantile
from tailrace.stats.rank_correlation import spearman

__all__ = ["idle_before_s", "idle_ramp_in_records"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
LEAST: Final = 8
MOST_PAUSES: Final = 24
"""Lengths of a pause that are tried as the one from which it hurts."""
SLOWER: Final = 1.3
"""First token after a pause over the one without, at equal prompt length (medians)."""
APART: Final = 0.8
"""P(one after a pause is slower than one without), from which the pause is what divides them."""
LEAST_MS: Final = 8.0


class _Split(NamedTuple):
    """Requests after a pause of at least so long, and the others."""

    pause_s: float
    cold: Mask
    warm: Mask
    ratio: float
    apart: float


def idle_before_s(window: Window) -> Floats:
    """By row of `done`: how long nothing had been under way on its replica when it was sent (s); 0 if something was."""
    known = account(window)
    of_every = replicas(window).of_every
    out = np.zeros(len(window.every))
    for place in np.unique(of_every).tolist():
        rows = np.flatnonzero((of_every == place) & known.reached)
        rows = rows[np.argsort(known.sent[rows], kind="stable")]
        if rows.size < 2:
            continue
        busy_until = np.maximum.accumulate(known.end[rows])[:-1]
        out[rows[1:]] = np.maximum(known.sent[rows[1:]] - busy_until, 0.0) / 1e9
    chosen: Floats = out[window.rows]
    return chosen


def _woken_after_s(window: Window, idle: Floats) -> Floats:
    """By row of `done`: the pause before the busy time that it fell into (s): what comes up slowly is late for all who
    come meanwhile.
    """
    out = idle.copy()
    of_row = replicas(window).of_row
    for place in np.unique(of_row).tolist():
        rows = np.flatnonzero(of_row == place)
        rows = rows[np.argsort(window.start[rows], kind="stable")]
        begins = np.maximum.accumulate(np.where(idle[rows] > 0, np.arange(rows.size), 0))
        out[rows] = idle[rows[begins]]
    return out


def idle_ramp_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Requests after a pause against those without one, each against its own length."""
    window = evidence.now
    if window.n < 3 * LEAST:
        return None
    idle = idle_before_s(window)
    ttft = window.done.ms("ttft")
    known = ~np.isnan(ttft) & (ttft > 0)
    relative = _at_equal_length(window, ttft, known)
    split = _split(idle, _woken_after_s(window, idle), relative, known)
    if split is None:
        return None
    cold, warm = split.cold, split.warm
    usual = np.where(known, ttft / np.exp(relative), np.nan) * float(np.exp(np.median(relative[warm])))
    slow, fast = median(ttft[cold]), median(usual[cold])
    late = slow - fast
    if late < max(LEAST_MS, cause.least_ms(evidence)):
        return None
    at = account(window)
    load = at.upstream().at(at.sent)[window.rows]
    # Under a load that makes requests slower too, the pause is not what makes the difference.
    busy = warm & (load >= np.quantile(load, 0.9)) & (idle <= 0)
    crowded = float(np.exp(np.median(relative[busy]) - np.median(relative[warm]))) if busy.sum() >= LEAST else 1.0
    if crowded >= split.ratio:
        return None
    explains = window.explain(cause.code, np.where(cold, np.maximum(ttft - usual, 0.0), 0.0))
    with_load = spearman(load[known & (idle <= 0)], ttft[known & (idle <= 0)])
    goes = spearman(idle[known], relative[known])
    pause, n_cold, n_warm = split.pause_s, int(cold.sum()), int(warm.sum())
    return cause.finding(
        statement=f"Requests after a pause are slow: {slow:.0f} ms to the first token after {pause:.1f} s of idle "
        f"time, {fast:.0f} ms without a pause.",
        evidence=[
            Evidence(
                f"TTFT {slow:.0f} ms (median of {n_cold}) after at least {pause:.1f} s without a request, "
                f"{fast:.0f} ms is usual for such prompts without a pause (n = {n_warm}): x {split.ratio:.2f}; "
                f"{split.apart:.0%} of the pairs are in this order",
                "record:start, record:ttft_ns",
                "cold_ms",
                round(slow, 1),
                "ms",
            ),
            Evidence(
                f"TTFT goes with the pause (rank correlation {goes:.2f}), with the load {with_load:.2f}",
                "record:start, record:ttft_ns",
                "correlation",
                round(goes, 3),
            ),
            *(
                [Evidence(f"x {crowded:.2f} in the busiest tenth", "record:ttft_ns", "crowded", round(crowded, 3))]
                if busy.sum() >= LEAST
                else []
            ),
        ],
        explains_ms=explains,
        relation=f"{slow:.0f} - {fast:.0f} = {slow - fast:.0f} ms after {pause:.1f} s idle",
        n=n_cold,
        advice="Send a small request every few seconds while nobody does (keep-warm), lock the clock "
        "(nvidia-smi -lgc) or the power state, and look for what sleeps meanwhile: a connection, a worker that "
        "spins down, memory given back.",
        price="Power at idle.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 0.1 --arrival constant --duration 200 --out "
            "idle.run && tailrace bench http://localhost:8000 --concurrency 1 --requests 20 --out "
            "busy.run && tailrace compare busy.run idle.run"
        ),
        missing=[],
        disproof_checked=[f"rank correlation with the load {with_load:.2f}, x {crowded:.2f} in the busiest tenth"],
    )


def _at_equal_length(window: Window, ttft: Floats, known: Mask) -> Floats:
    """Logarithm of the time to the first token over that of neighbours in prompt length (factor of two)."""
    out = np.zeros(window.n)
    out[known] = np.log(ttft[known]) - median(np.log(ttft[known])) if known.any() else 0.0
    tokens = or_zero(window.tokens)
    bucket = np.where(known & (tokens > 0), np.log2(np.maximum(tokens, 1.0)).astype(np.int64), -1)
    for value in np.unique(bucket[bucket >= 0]).tolist():
        rows = bucket == value
        if rows.sum() >= LEAST:
            # The lower quartile: most requests of a bucket may be the slow ones.
            out[rows] = np.log(ttft[rows]) - quantile(np.log(ttft[rows]), 0.25)
    return out


def _split(idle: Floats, woken: Floats, relative: Floats, known: Mask) -> _Split | None:
    """The shortest pause from which on requests are slower than those with a shorter one, or none."""
    pauses = idle[known & (idle >= 0.5)]
    if pauses.size < LEAST:
        return None
    best: tuple[float, _Split] | None = None
    for pause in np.unique(np.quantile(pauses, np.linspace(0.0, 1.0 - LEAST / (pauses.size + 1), MOST_PAUSES))):
        cold, warm = known & (idle >= pause), known & (woken < pause)
        if min(cold.sum(), warm.sum()) < LEAST:
            continue
        ratio = float(np.exp(np.median(relative[cold]) - np.median(relative[warm])))
        order = np.sort(relative[warm])
        ranks = np.searchsorted(order, relative[cold], side="left") + np.searchsorted(order, relative[cold], "right")
        apart = float(ranks.mean()) / 2.0 / order.size
        # By how many standard errors of equal groups (Mann-Whitney): of two good splits the larger one.
        error = float(np.sqrt((1 / cold.sum() + 1 / warm.sum()) / 12.0))
        score = (apart - 0.5) / error
        if ratio >= SLOWER and apart >= APART and (best is None or score > best[0]):
            best = (score, _Split(float(pause), cold, warm, ratio, apart))
    return None if best is None else best[1]
