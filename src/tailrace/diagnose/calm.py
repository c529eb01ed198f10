"""What a log or a pair of scrapes shows when nothing in it is slow: said as such, and what it cannot say."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.limits import LATE_MS
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import loads

__all__ = ["calm_words"]

_TROUBLE: Final = (
    "preempted", "retracted", "jit", "error", "died", "aborted", "restart", "deadlock", "stack", "clock_event",
)  # fmt: skip
_QUEUE_MS: Final = 500.0
_FULL: Final = 0.95
_LEAST: Final = 10


def calm_words(observed: Observed) -> str:
    """`no request waits in 40 readings, the KV cache is at most 12 % full`; empty where something may be wrong, where
    nothing can be said, or where there is more than an engine's log or scrapes.
    """
    if observed.arms or observed.rows or any(observed.of_kind(kind) for kind in _TROUBLE):
        return ""
    said = _of_loads(observed)
    if said is None:
        return ""
    timed = _of_histograms(observed)
    if timed is None or (observed.delta("preemptions") or 0.0) > 0:
        return ""
    if observed.delta("preemptions") == 0:
        timed.append("no request was preempted")
    return ", ".join([*said, *timed])


def _of_loads(observed: Observed) -> list[str] | None:
    """Waiting and KV usage of all engines; `None` where one of them has too much of it."""
    out, waits, fullest, n = [], 0.0, 0.0, 0
    for load in loads(observed):
        waiting, kv = load.get("waiting"), load.get("kv_usage")
        waits = max(waits, float(np.nanmax(waiting))) if load.has("waiting") else waits
        fullest = max(fullest, float(np.nanmax(kv))) if load.has("kv_usage") else fullest
        n += len(load)
        if load.has("waiting") and float((waiting > 0).mean()) > 0.1:
            return None
    if fullest > _FULL:
        return None
    if n:
        out.append(f"{'no request waits' if waits == 0 else f'at most {waits:.0f} wait'} in {n} readings")
        if fullest:
            out.append(f"the KV cache is at most {fullest:.0%} full")
    return out


def _of_histograms(observed: Observed) -> list[str] | None:
    out = []
    for name, limit in (("ttft", LATE_MS), ("queue", _QUEUE_MS), ("itl", _QUEUE_MS)):
        for item in observed.windows(name)[-1:]:
            if item.n < _LEAST:
                continue
            p99 = item.quantile(0.99)
            if p99 is None or p99 > limit or item.unit != "ms":
                return None
            label = name.upper() if name != "queue" else "queue"
            out.append(f"{label} p99 {shown(round(p99, 1), item.unit)} (n = {item.n:.0f}, from the buckets)")
    return out
