"""COMPUTE_IDLE_RAMP: the first request after a pause is slow."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.rank_correlation import spearman

__all__ = ["idle_before_s", "idle_ramp_in_records"]

Floats = NDArray[np.float64]
PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
LEAST: Final = 8
SLOWER: Final = 1.5
LEAST_MS: Final = 50.0
WITH_LOAD: Final = 0.3


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


def idle_ramp_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Requests after a pause against those without one, each against its own length."""
    window = evidence.now
    if window.n < 3 * LEAST:
        return None
    idle = idle_before_s(window)
    ttft = window.done.ms("ttft")
    excess = window.lost.engine_queue + window.lost.first_token
    known = ~np.isnan(ttft)
    best: tuple[float, float, float, float, int, int] | None = None
    for pause in PAUSES_S:
        cold, warm = known & (idle >= pause), known & (idle < min(pause, 1.0))
        if min(cold.sum(), warm.sum()) < LEAST:
            continue
        slow, fast = float(np.median(ttft[cold])), float(np.median(ttft[warm]))
        late = float(np.median(excess[cold])) - float(np.median(excess[warm]))
        hit = float((excess[cold] > LEAST_MS).mean())
        if slow >= SLOWER * fast and late >= LEAST_MS and hit >= 0.7 and (best is None or late > best[1]):
            best = (pause, late, slow, fast, int(cold.sum()), int(warm.sum()))
    if best is None:
        return None
    pause, late, slow, fast, n_cold, n_warm = best
    lengths = [float(np.nanmedian(window.tokens[known & rows])) for rows in (idle >= pause, idle < min(pause, 1.0))]
    if not np.isnan(lengths).any() and lengths[0] > 1.5 * lengths[1]:
        return None
    at = account(window)
    load = at.upstream().at(at.sent)[window.rows]
    with_load = spearman(load[known & (idle <= 0)], ttft[known & (idle <= 0)])
    explains = window.explain(cause.code, np.where(idle >= pause, excess, 0.0))
    if not cause.carries(evidence, explains):
        return None
    # Under a load that makes requests slower too, the pause is not what makes the difference.
    busy = known & (load >= np.quantile(load, 0.9)) & (idle <= 0)
    crowded = float(np.median(ttft[busy])) if busy.sum() >= LEAST else float("nan")
    if crowded >= slow:
        return None
    goes = spearman(idle[known], ttft[known])
    return cause.finding(
        statement=f"Requests after a pause are slow: {slow:.0f} ms to the first token after {pause:.0f} s of idle "
        f"time, {fast:.0f} ms without a pause.",
        evidence=[
            Evidence(
                f"TTFT {slow:.0f} ms (median of {n_cold}) after at least {pause:.0f} s without a request, "
                f"{fast:.0f} ms (median of {n_warm}) without a pause",
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
                [
                    Evidence(
                        f"TTFT {crowded:.0f} ms in the busiest tenth",
                        "record:ttft_ns",
                        "crowded_ms",
                        round(crowded, 1),
                        "ms",
                    )
                ]
                if not np.isnan(crowded)
                else []
            ),
        ],
        explains_ms=explains,
        relation=f"{slow:.0f} - {fast:.0f} = {slow - fast:.0f} ms after {pause:.0f} s idle",
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
        disproof_checked=[f"rank correlation with the load {with_load:.2f}"],
    )
