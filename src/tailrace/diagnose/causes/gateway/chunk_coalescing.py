"""GW_CHUNK_COALESCING: a timer in a hop groups what the engine streams."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.gateway.coalescing_on_arms import coalescing_on_arms
from tailrace.diagnose.causes.gateway.proxy_buffering import COALESCED_EVENTS, COALESCED_MS, bursty_path
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["ChunkCoalescing"]

Floats = np.ndarray
SAME_E2E: Final = 0.04
EVEN: Final = 0.35
"""Largest spread of the added time, over its median, for it to be one number."""
LEAST: Final = 100
LEAST_MS: Final = 10.0
CARRIES: Final = 0.2
"""Of the TTFT that it makes longer, where the windows differ by it alone."""


class ChunkCoalescing(Cause):
    """Events come in small groups on a quick timer; or the first token is later by one constant, and nothing else."""

    code: ClassVar[str] = "GW_CHUNK_COALESCING"
    stage: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = ("timelines of streams", "a window or path without the hop")
    disproof: ClassVar[str] = "What is added to the first token grows with the load."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From TTFT through the hop and straight to the engine."""
        return coalescing_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Against the window from before where the TTFT moved by a constant; else by the groups themselves."""
        return self._constant(evidence) or self._groups(evidence)

    def _groups(self, evidence: EvidenceSet) -> Finding | None:
        window = evidence.now
        found = bursty_path(evidence) if window.gaps.rows else None
        if found is None:
            return None
        path, streams = found
        if float(streams.at_once.mean()) >= 0.5:
            return None
        period, events = (float(np.median(values[streams.bursty])) for values in (streams.period_ms, streams.events))
        if period > COALESCED_MS or events >= COALESCED_EVENTS or not self.carries(evidence, period):
            return None
        where = f" from backend {path!r}" if path else ""
        share = float(streams.bursty.mean())
        return self.finding(
            statement=f"A hop groups the events of the streams{where} by a timer: a group of {events:.1f} events every "
            f"{period:.0f} ms in {share:.0%} of them.",
            evidence=[
                Evidence(
                    f"a group every {period:.0f} ms (median), {events:.1f} events each",
                    "timeline",
                    "group_period_ms",
                    round(period, 1),
                    "ms",
                ),
                Evidence(
                    f"{share:.0%} of {streams.rows.size} streams{where} come so", "timeline", "share", round(share, 4)
                ),
            ],
            explains_ms=period,
            relation=f"{events:.1f} events at one instant, then nothing for {period:.0f} ms",
            n=int(streams.rows.size),
            advice=_ADVICE,
            price=_PRICE,
            verify=evidence.verify_command,
            missing=["the same requests through the direct path (an engine may group its own output: stream_interval)"],
            disproof_checked=[f"{share:.0%} of the streams are hit"],
        )

    def _constant(self, evidence: EvidenceSet) -> Finding | None:
        before, window = evidence.before, evidence.now
        if before is None or min(before.n, window.n) < LEAST:
            return None
        levels = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
        a, b = (np.quantile(_known(side, "ttft"), levels) for side in (before, window))
        moved = b - a
        added = float(np.median(moved))
        ends = [float(np.median(_known(side, "e2e"))) for side in (before, window)]
        change = ends[1] / max(ends[0], 1e-9) - 1.0
        if added < max(LEAST_MS, CARRIES * float(a[2])) or np.ptp(moved) > EVEN * added or abs(change) > SAME_E2E:
            return None
        lengths = [float(np.nanmedian(side.tokens)) if side.n else 0.0 for side in (before, window)]
        if abs(lengths[1] / max(lengths[0], 1e-9) - 1.0) > 0.15:
            return None
        return self.finding(
            statement=f"The first token comes {added:.0f} ms later for everybody, fast and slow alike, and the whole "
            f"answer does not ({change:+.1%}): a hop waits for more before it sends.",
            evidence=[
                Evidence(
                    f"TTFT p10 {a[0]:.0f} -> {b[0]:.0f} ms, p50 {a[2]:.0f} -> {b[2]:.0f} ms, p90 {a[4]:.0f} -> "
                    f"{b[4]:.0f} ms: {added:+.0f} ms throughout (n = {before.n} and {window.n})",
                    "record:ttft_ns",
                    "added_ms",
                    round(added, 1),
                    "ms",
                ),
                Evidence(
                    f"E2E p50 {ends[0]:.0f} -> {ends[1]:.0f} ms ({change:+.1%})",
                    "record:e2e_ns",
                    "e2e_change",
                    round(change, 4),
                ),
            ],
            explains_ms=added,
            relation=f"{b[2]:.0f} - {a[2]:.0f} = {b[2] - a[2]:.0f} ms at p50, {moved[0]:.0f} ms at p10, "
            f"{moved[4]:.0f} ms at p90",
            n=window.n,
            advice=_ADVICE,
            price=_PRICE,
            verify=evidence.verify_command,
            disproof_checked=[f"the added time is {moved[0]:.0f} to {moved[4]:.0f} ms from p10 to p90"],
        )


def _known(window: Window, metric: str) -> np.ndarray:
    values = window.done.ms(metric)
    kept: np.ndarray = values[~np.isnan(values)]
    return kept if kept.size else np.zeros(1)


_ADVICE: Final = (
    "Shorten the hop's batching timer, or have it send the first chunk at once and group only later ones; look also "
    "for "
    "Nagle's algorithm (TCP_NODELAY off) and a flush interval in the proxy or the SDK."
)
_PRICE: Final = "More, smaller writes: a little CPU at the hop."
