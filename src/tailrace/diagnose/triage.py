"""Triage: the first questions of anybody who looks at a slow system, as far as the evidence can answer them.

R8 needs a window from before with half of the replicas, or two arms (`triage_arms`); R12 needs readings of the
accelerator.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.limits import BUSY, IDLE, LATE_MS, SAME, TPOT_MS, TTFT_MS, UNMOVED, WORSE
from tailrace.diagnose.prefill_stalls import prefill_stalls
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.symptoms import more_often_than
from tailrace.diagnose.window import Window
from tailrace.stats.quantiles import median, or_zero, quantile, supported

__all__ = ["RULES", "triage"]

Floats = NDArray[np.float64]

RULES: Final[dict[str, str]] = {
    "R1": "high queue wait: concurrency, limits, scheduling",
    "R2": "slow first token, fast later tokens: prefill, encode or input length",
    "R3": "fast first token, long total: decode throughput or the reader",
    "R4": "only the p99 is worse: long inputs, retries, locks, jitter",
    "R5": "p50 low and p99 high: scheduling or load control, tune the configuration first",
    "R6": "p50 and p99 both worse and the engine near its limit: scale out",
    "R7": "p50 normal, error rate rising: client timeouts and the queue policy",
    "R8": "replicas doubled and the p99 unmoved: routing or scheduling does not isolate long requests; add no more",
    "R9": "one long prompt makes everything stutter: a single prefill occupies the GPU",
    "R10": "one slow request in a normal batch: host jitter, power, network",
    "R11": "TTFT over 2 s: prefill or queue, the larger one",
    "R12": "a busy GPU behind a queue is not healthy, an idle one before slow requests has nothing to do: look at the "
    "queue, at preprocessing, locks, network, scheduling",
}


def triage(evidence: EvidenceSet) -> list[str]:
    """The rules that fire, in their order."""
    window = evidence.now
    ttft, tpot, e2e = (_known(window, name) for name in ("ttft", "tpot", "e2e"))
    if ttft.size < 20:
        return []
    bounds = evidence.objectives.bounds
    target = _bound(bounds.get("ttft"), TTFT_MS)
    pace = _bound(bounds.get("tpot"), TPOT_MS)
    out = []
    queue = _queue_share(window)
    slow_ttft = more_often_than(int((ttft > target).sum()), ttft.size, 0.01)
    if queue is not None and (queue[0] > 0.5 or queue[1] > 0.5 * target):
        out.append("R1")
    if slow_ttft and tpot.size and quantile(tpot, 0.5) <= pace and (queue is None or queue[0] < 0.5):
        out.append("R2")
    tokens = window.done.column("output_tokens")
    tail = (window.end - window.first) / 1e6
    with np.errstate(invalid="ignore"):
        slow_total = tail > (tokens - 1) * pace
    if not slow_ttft and e2e.size and more_often_than(int(slow_total.sum()), window.n, 0.01):
        out.append("R3")
    out += _against_before(evidence, window, e2e)
    p = 0.99 if supported(0.99, ttft.size) else 0.95
    if quantile(ttft, 0.5) <= target and quantile(ttft, p) > 5.0 * quantile(ttft, 0.5) and slow_ttft:
        out.append("R5")
    if window.stalls.row.size and window.long.any():
        found = prefill_stalls(window)
        if found.stalling >= 3 and found.covered_share >= 0.5 and found.streams_hit >= 0.5:
            out.append("R9")
    if _lonely(window):
        out.append("R10")
    if quantile(ttft, p) > LATE_MS:
        out.append("R11")
    out += _busy_or_idle(evidence, queue, slow=slow_ttft)
    return sorted(out, key=lambda rule: int(rule[1:]))


def _busy_or_idle(evidence: EvidenceSet, queue: tuple[float, float] | None, *, slow: bool) -> list[str]:
    """The accelerator's use beside the requests': by itself it says nothing."""
    used = evidence.device_use
    if used is None:
        return []
    fires = (used > BUSY and queue is not None and queue[0] > 0.5) or (used < IDLE and slow)
    return ["R12"] if fires else []


def _known(window: Window, metric: str) -> Floats:
    values = window.done.ms(metric)
    return values[window.interactive & ~np.isnan(values)]


def _bound(bounds: dict[float, int] | None, default: float) -> float:
    return min(bounds.values()) / 1e6 if bounds else default


def _queue_share(window: Window) -> tuple[float, float] | None:
    """(queue share of TTFT in the tail, queue p95 in ms), `None` when nobody reported a queue."""
    queue = window.done.ms("queue")
    if np.isnan(queue).all():
        return None
    queue = or_zero(queue)
    ttft = or_zero(window.done.ms("ttft"))
    return window.in_tail(queue) / max(window.in_tail(ttft), 1e-9), quantile(queue[window.interactive], 0.95)


def _against_before(evidence: EvidenceSet, window: Window, e2e: Floats) -> list[str]:
    before = evidence.before
    if before is None or before.n < 100 or window.n < 100:
        return []
    old = _known(before, "e2e")
    p = 0.99 if supported(0.99, min(old.size, e2e.size)) else 0.95
    middle = quantile(e2e, 0.5) / max(quantile(old, 0.5), 1e-9) - 1.0
    tail = quantile(e2e, p) / max(quantile(old, p), 1e-9) - 1.0
    out = []
    if abs(middle) < SAME and tail > WORSE:
        out.append("R4")
    if _doubled(before, window) and abs(tail) < UNMOVED:
        out.append("R8")
    near = max(evidence.kv_usage or 0.0, evidence.device_use or 0.0)
    if middle > WORSE and tail > WORSE and near > BUSY:
        out.append("R6")
    failed = [1.0 - side.n / max(len(side.every), 1) for side in (before, window)]
    if abs(middle) < SAME and more_often_than(len(window.every) - window.n, len(window.every), max(failed[0], 0.01)):
        out.append("R7")
    return out


def _doubled(before: Window, window: Window) -> bool:
    """Twice the replicas at an equal offered load."""
    counts = [replicas(side).n for side in (before, window)]
    rates = [side.rate for side in (before, window)]
    return counts[0] >= 1 and counts[1] >= 2 * counts[0] and abs(rates[1] / rates[0] - 1.0) < 0.15


def _lonely(window: Window) -> bool:
    """A few requests at three times the usual time per token, and at three times that of those beside them."""
    if window.n < 100 or window.n > 20_000:
        return False
    pace = window.done.ms("tpot")
    start, end = window.start, window.end
    rows = np.flatnonzero(~np.isnan(pace))
    if rows.size < 100:
        return False
    slow = rows[pace[rows] > 3.0 * median(pace[rows])]
    if not 0 < slow.size <= 0.02 * rows.size:
        return False
    alone = 0
    for row in slow:
        peers = rows[(start[rows] < end[row]) & (end[rows] > start[row]) & (rows != row)]
        if peers.size >= 3 and pace[row] > 3.0 * quantile(pace[peers], 0.9):
            alone += 1
    return alone > 0
