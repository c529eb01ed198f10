"""METRIC_GAP of scrapes: what the engine holds against what its own latencies account for (L = lambda W)."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Histogram, Observed
from tailrace.model.finding import Evidence, Finding, Level

__all__ = ["held_in_scrapes"]

LONG: Final = 3.0
"""A window must last this many times the mean latency: in a shorter one most requests lie across its edges."""
LEAST: Final = 20


def held_in_scrapes(cause: Cause, observed: Observed) -> Finding | None:
    """Running and waiting, on average over the scrapes, far above finished requests/s x mean E2E of the same time."""
    windows = [
        item for item in observed.windows("e2e") if not item.lifetime and item.window_s and item.mean is not None
    ]
    n = sum(item.n for item in windows)
    seconds = sum(item.window_s or 0.0 for item in windows)
    if n < LEAST or not seconds:
        return None
    mean_s = sum((item.mean or 0.0) * item.n for item in windows) / n / 1e3
    held, readings = _held(observed)
    if readings < 2 or seconds < LONG * mean_s:
        return None
    ours = n / seconds * mean_s
    if held <= 1.5 * ours + 3.0:
        return None
    return _found(cause, windows[-1], n, seconds, mean_s, ours, held, readings)


def _held(observed: Observed) -> tuple[float, int]:
    """(mean of running + waiting over the readings, how many readings)."""
    total, readings = 0.0, 0
    for name in ("running", "waiting"):
        for item in observed.of_series(name):
            known = item.values[np.isfinite(item.values)]
            if known.size:
                total += float(known.mean())
                readings = max(readings, int(known.size))
    return total, readings


def _found(
    cause: Cause, last: Histogram, n: float, seconds: float, mean_s: float, ours: float, held: float, readings: int
) -> Finding:
    missing = ["how the others end: requests that were cancelled, or that do not end, are in no E2E"]
    if readings < 5:
        missing.append(f"more scrapes: running is known at {readings} moments only")
    return cause.finding(
        statement=f"The engine holds {held:.1f} requests on average, its finished ones account for {ours:.1f} "
        "(Little's law): many requests are not in its latencies.",
        evidence=[
            Evidence(
                text=f"running + waiting: {held:.1f} on average of {readings} readings", source="running",
                name="held", value=held,
            ),
            Evidence(
                text=f"{n:.0f} finished in {seconds:.0f} s x {mean_s:.2f} s mean E2E = {ours:.1f}",
                source=str(last.place) or last.raw, name="accounted", value=ours,
            ),
        ],
        explains_ms=None,
        relation=f"{n:.0f}/{seconds:.0f} x {mean_s:.2f} = {ours:.1f} at once; seen {held:.1f}",
        n=int(n),
        advice="Count cancelled, aborted and still running requests beside the latencies before reading them.",
        price="None.",
        verify="tailrace diagnose t0.prom t1.prom t2.prom",
        missing=missing,
        level=Level.SUSPECTED,
    )  # fmt: skip
