"""SCHED_QUEUE_SATURATION against the window before: more comes, batches are fuller, and everything takes longer."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.equal_work import batch_of, equal_pace
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["more_load"]

MORE: Final = 1.15
FULLER: Final = 1.3
SLOWER: Final = 1.12
PACE: Final = 0.10
LEAST: Final = 100


def more_load(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Rate and batch rose, the pace at an equal batch did not, and requests take longer."""
    before, window = evidence.before, evidence.now
    if before is None or min(before.n, window.n) < LEAST:
        return None
    rates = [side.rate for side in (before, window)]
    batch = batch_of(before), batch_of(window)
    if rates[1] < MORE * rates[0] or np.isnan(batch).any() or batch[1] < FULLER * max(batch[0], 1.0):
        return None
    pace = equal_pace(before, window, "decode")
    if pace is not None and pace.change > PACE and pace.low > 0:
        return None
    ends = [float(np.quantile(side.done.ms("e2e"), 0.95)) for side in (before, window)]
    middles = [float(np.median(side.done.ms("e2e"))) for side in (before, window)]
    if max(ends[1] / ends[0], middles[1] / middles[0]) < SLOWER:
        return None
    tpot = [side.done.ms("tpot") for side in (before, window)]
    paces = [float(np.nanmedian(values)) if not np.isnan(values).all() else float("nan") for values in tpot]
    missing = [] if pace is not None else ["requests of equal batch in both windows: whether the engine is as fast"]
    both = ends[1] > 1.2 * ends[0] and middles[1] > 1.2 * middles[0]
    token = f", a token {paces[0]:.1f} -> {paces[1]:.1f} ms" if not np.isnan(paces).any() else ""
    return cause.finding(
        statement=f"More work comes than before and fills the batches: {rates[0]:.2f} -> {rates[1]:.2f} requests/s, "
        f"{batch[0]:.0f} -> {batch[1]:.0f} run together{token}; E2E p95 {ends[0]:.0f} -> {ends[1]:.0f} ms.",
        evidence=[
            Evidence(
                f"{rates[0]:.2f} -> {rates[1]:.2f} requests/s (x {rates[1] / rates[0]:.2f})",
                "record:start",
                "rate",
                round(rates[1], 3),
                "1/s",
            ),
            Evidence(
                f"{batch[0]:.0f} -> {batch[1]:.0f} run together (median){token}",
                "record:running_at_first_token, record:tpot_ns",
                "batch",
                batch[1],
            ),
            Evidence(
                f"E2E p50 {middles[0]:.0f} -> {middles[1]:.0f} ms, p95 {ends[0]:.0f} -> {ends[1]:.0f} ms "
                f"(n = {before.n} and {window.n})",
                "record:e2e_ns",
                "e2e_p95_ms",
                round(ends[1], 1),
                "ms",
            ),
            *(
                [
                    Evidence(
                        f"at an equal batch a token takes {pace.change:+.0%} ({pace.cells} cells of equal batch and "
                        "length)",
                        "record:chunk_gap_p50_ns",
                        "equal_pace",
                        round(pace.change, 4),
                    )
                ]
                if pace is not None
                else []
            ),
        ],
        explains_ms=ends[1] - ends[0],
        relation=f"rate x {rates[1] / rates[0]:.2f}, batch x {batch[1] / max(batch[0], 1.0):.2f}, E2E p95 "
        f"x {ends[1] / ends[0]:.2f}; pace at an equal batch "
        + (f"{pace.change:+.0%}" if pace is not None else "not comparable"),
        n=window.n,
        advice="Shed load at the gateway (queued limit and 429) or lower what runs at once so that tokens keep their "
        "pace, shorten outputs, or add a replica; a new replica takes minutes to load. A longer timeout only hides it.",
        price="Refused requests must be retried by their clients; a replica costs its GPU.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[f"pace at an equal batch {pace.change:+.0%}"] if pace is not None else [],
        action=Action.SCALE if both else Action.SHED,
    )
