"""GW_CHUNK_COALESCING: a timer in a hop groups what the engine streams."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.equal_work import tokens_an_event
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.quantiles import median, or_zero

__all__ = ["coalesced_in_records"]

Floats = NDArray[np.float64]
GROUPED: Final = 1.5
"""Tokens an event."""
SPECULATED: Final = 8.0
"""Tokens an event: no engine accepts more in one step of speculation, as it is deployed (two to five drafted)."""
LEAST: Final = 20
LEAST_MS: Final = 15.0
EVEN: Final = 0.25
"""Spread of the usual gap between requests, over its median: a timer gives all of them the same."""
STEADY: Final = 2.5
"""p95 of a stream's gaps over its p50 (median): a timer sends every time, a loop that is blocked does not."""
SAME_PACE: Final = 0.15
SAME_E2E: Final = 0.05
CONSTANT: Final = 0.5
"""Spread of the added time from p10 to p75, over its median."""
CARRIES: Final = 0.15
LATER: Final = 0.5


def coalesced_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Groups on a timer; or a first token that is later by one constant than before, and nothing else."""
    return _groups(cause, evidence) or _constant(cause, evidence)


def _groups(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    window = evidence.now
    gap, each = window.done.ms("chunk_gap_p50"), tokens_an_event(window)
    known = ~np.isnan(gap) & (window.done.column("chunk_gap_count") >= 3)
    if known.sum() < LEAST:
        return None
    group = median(each[known])
    timer = median(gap[known])
    quarter, upper = np.quantile(gap[known], (0.25, 0.75))
    spread = float(upper - quarter) / max(timer, 1e-9)
    late = window.done.ms("chunk_gap_p95")[known] / np.maximum(gap[known], 1e-9)
    if group < GROUPED or timer < LEAST_MS or spread > EVEN or float(np.nanmedian(late)) > STEADY:
        return None
    before = evidence.before
    missing, checked = [], [f"the gap's spread between requests is {spread:.0%} (quartiles over median)"]
    if before is not None and before.n >= LEAST:
        old = median(tokens_an_event(before))
        if old > 0.8 * group:
            return None
        pace = [float(np.nanmedian(side.done.ms("tpot"))) for side in (before, window)]
        checked.append(f"tokens an event {old:.1f} before; TPOT {pace[0]:.1f} -> {pace[1]:.1f} ms")
    elif group < SPECULATED:
        missing.append("the same through the direct path, or before: an engine that speculates groups its tokens too")
    else:
        checked.append(f"{group:.1f} tokens an event are more than an engine's speculation accepts in a step")
    added = timer
    share = float((np.abs(gap[known] - timer) <= 0.15 * timer).mean())
    if added < 50.0 and not _matters(evidence, added):
        return None
    return cause.finding(
        statement=f"A hop groups the events of the streams by a timer: {group:.1f} tokens every {timer:.0f} ms, in "
        f"{share:.0%} of the streams alike.",
        evidence=[
            Evidence(
                f"{group:.1f} tokens an event (median; the engine's count over events)",
                "record:output_tokens, record:chunk_gap_count",
                "tokens_an_event",
                round(group, 2),
            ),
            Evidence(
                f"the usual gap is {timer:.0f} ms, within 15 % of it in {share:.0%} of {int(known.sum())} streams",
                "record:chunk_gap_p50_ns",
                "timer_ms",
                round(timer, 1),
                "ms",
            ),
            *(Evidence(text, "record:chunk_gap_p50_ns", "checked") for text in checked),
        ],
        explains_ms=added,
        relation=f"first token later by up to the timer: {timer:.0f} ms; {group:.1f} tokens x "
        f"{timer / group:.1f} ms = {timer:.0f} ms",
        n=int(known.sum()),
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=checked,
    )


def _matters(evidence: EvidenceSet, added: float) -> bool:
    ttft = evidence.now.done.ms("ttft")
    ttft = ttft[~np.isnan(ttft)]
    return bool(ttft.size) and added >= CARRIES * median(ttft)


def _constant(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    before, window = evidence.before, evidence.now
    if before is None or min(before.n, window.n) < 100:
        return None
    levels = np.array([0.1, 0.25, 0.5, 0.75])
    a, b = (np.quantile(_known(side, "ttft"), levels) for side in (before, window))
    moved = b - a
    added = median(moved)
    ends = [median(_known(side, "e2e")) for side in (before, window)]
    change = ends[1] / max(ends[0], 1e-9) - 1.0
    if added < max(LEAST_MS, CARRIES * float(a[2])) or np.ptp(moved) > CONSTANT * added or change > SAME_E2E:
        return None
    lengths = [float(np.nanmedian(side.tokens)) if side.n else 0.0 for side in (before, window)]
    if abs(lengths[1] / max(lengths[0], 1e-9) - 1.0) > SAME_PACE:
        return None
    # The engine's own word would show the time in its queue or its prefill.
    sides = (before, window)
    own = [or_zero(side.done.ms("queue_engine")) + side.done.ms("prefill") for side in sides]
    own = [values[~np.isnan(values)] for values in own]
    missing = []
    if min(values.size for values in own) >= LEAST:
        if float(np.median(own[1]) - np.median(own[0])) > LATER * added:
            return None
    else:
        missing.append("the engine's own queue and prefill times of both windows")
    return cause.finding(
        statement=f"The first token comes {added:.0f} ms later for everybody, fast and slow alike, and the whole "
        f"answer does not ({change:+.1%}): a hop waits for more before it sends.",
        evidence=[
            Evidence(
                f"TTFT p10 {a[0]:.0f} -> {b[0]:.0f} ms, p50 {a[2]:.0f} -> {b[2]:.0f} ms, p75 {a[3]:.0f} -> "
                f"{b[3]:.0f} ms: {added:+.0f} ms throughout (n = {before.n} and {window.n})",
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
        f"{moved[3]:.0f} ms at p75",
        n=window.n,
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[f"the added time is {moved[0]:.0f} to {moved[3]:.0f} ms from p10 to p75"],
    )


def _known(window: Window, metric: str) -> Floats:
    values: Floats = window.done.ms(metric)
    kept = values[~np.isnan(values)]
    return kept if kept.size else np.zeros(1)


_ADVICE: Final = (
    "Shorten the hop's batching timer, or have it send the first chunk at once and group only later ones; look also "
    "for "
    "Nagle's algorithm (TCP_NODELAY off), a flush interval in the proxy or the SDK, stream_interval of the engine."
)
_PRICE: Final = "More, smaller writes: a little CPU at the hop."
