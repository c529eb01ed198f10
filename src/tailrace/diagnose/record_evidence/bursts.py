"""MIX_BURSTY_ARRIVALS: requests come in bursts, and wait for each other although on average there is room."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding

__all__ = ["bursts_in_records"]

Floats = NDArray[np.float64]
DISPERSED: Final = 3.0
"""Variance over mean of the arrivals by slice; 1 for Poisson arrivals, 0 for even ones."""
IN_BURSTS: Final = 0.6
LEAST: Final = 100
LEAST_SLICES: Final = 20
CROWDED: Final = 1.5
SLICES_S: Final = (0.25, 0.5, 1.0, 2.0)
DRAIN_S: Final = 5.0
"""Who comes while a burst is still waited out waits for it too: at most so long."""


class _Bursts(NamedTuple):
    dispersion: float
    """Index of dispersion."""
    variation: float
    """Coefficient of variation of the times between arrivals."""
    slice_s: float
    mean: float
    most: float
    in_burst: NDArray[np.bool_]
    """By row of `done`."""
    burst_share: float
    stalled: Floats
    """By row of `done`: its stalls while a burst was waited out (ms)."""


def bursts_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Dispersion of the arrivals, and where the waits lie."""
    window = evidence.now
    if len(window.every) < LEAST or window.n < 50:
        return None
    found = _bursts(window)
    if found is None or found.dispersion < DISPERSED:
        return None
    lost = window.lost
    wait = lost.gateway_queue + lost.engine_queue + lost.first_token
    # Those that were decoding when it came stand still while its prompts are computed.
    explains = window.explain(cause.code, np.where(found.in_burst, wait, 0.0) + found.stalled)
    total = float(wait.sum())
    inside = float(wait[found.in_burst].sum()) / total if total > 0 else 0.0
    if inside < IN_BURSTS or inside < min(CROWDED * found.burst_share, 0.85) or not cause.carries(evidence, explains):
        return None
    header = evidence.header
    kind = header.arrival.kind if header else ""
    checked = [f"coefficient of variation between arrivals {found.variation:.2f} (1 for Poisson, 0 for even)"]
    if kind in ("closed", "constant"):
        return None
    before = evidence.before
    rivals = []
    if before is not None and len(before.every) >= LEAST:
        old = _bursts(before)
        if old is not None:
            checked.append(f"index of dispersion {old.dispersion:.1f} in the window before")
            if old.dispersion > 0.7 * found.dispersion:
                rivals.append("SCHED_QUEUE_SATURATION")
    peak, usual = found.most / found.slice_s, found.mean / found.slice_s
    return cause.finding(
        statement=f"Requests come in bursts: up to {peak:.1f} a second against {usual:.1f} on average, and "
        f"{inside:.0%} of all waiting lies in the {found.burst_share:.0%} of the requests that come in them.",
        evidence=[
            Evidence(
                f"index of dispersion {found.dispersion:.1f} over slices of {found.slice_s:.2g} s (Poisson 1); "
                f"variation "
                f"between arrivals {found.variation:.2f}",
                "record:start",
                "dispersion",
                round(found.dispersion, 2),
            ),
            Evidence(
                f"{usual:.1f} requests/s on average, {peak:.1f} in the fullest slice",
                "record:start",
                "peak_per_s",
                round(peak, 2),
                "1/s",
            ),
            Evidence(
                f"{inside:.0%} of all waiting lies in the {found.burst_share:.0%} of the requests in bursts; the "
                f"slowest lost {explains:.0f} of {window.tail_lost_ms:.0f} ms so",
                "record:queue_ns, record:ttft_ns",
                "inside",
                round(inside, 4),
            ),
        ],
        explains_ms=explains,
        relation=f"variance / mean of arrivals = {found.dispersion:.1f} > {DISPERSED:.0f} at the same mean rate",
        n=len(window.every),
        advice="Smooth what can be smoothed (a lane of its own for jobs that send many at once, spread their "
        "starts), "
        "admit by predicted wait with 429 and Retry-After for the rest, and test with recorded or Poisson "
        "arrivals: an even-paced benchmark never sees this. Capacity for the mean is there.",
        price="Batch senders wait a little longer.",
        verify=evidence.verify_command + "  # and with --arrival poisson at the same rate: the queue must be short",
        rivals=rivals,
        disproof_checked=checked,
    )


def _bursts(window: Window) -> _Bursts | None:
    """At the length of a slice at which the arrivals are the most uneven: bursts are as short as they are."""
    start = np.sort(account(window).start)
    span = float(start[-1] - start[0]) / 1e9
    if span <= 0:
        return None
    between = np.diff(start)
    variation = float(between.std() / max(float(between.mean()), 1e-9))
    best: tuple[float, float, NDArray[np.int64]] | None = None
    for length in SLICES_S:
        slices = int(span / length)
        if slices < LEAST_SLICES:
            continue
        place = np.minimum(((start - start[0]) / 1e9 / length).astype(np.int64), slices - 1)
        counts = np.bincount(place, minlength=slices)
        index = float(counts.var() / max(float(counts.mean()), 1e-9))
        if best is None or index > best[0]:
            best = (index, length, counts)
    if best is None:
        return None
    index, length, counts = best
    mean = float(counts.mean())
    full = np.flatnonzero(counts >= max(3.0, 2.0 * mean, mean + 2.5 * np.sqrt(mean)))
    begin = start[0] + full * length * 1e9
    wait = window.lost.engine_queue + window.lost.first_token
    drain = min(max(float(np.quantile(wait, 0.95)) / 1e3, length), DRAIN_S)
    until = begin + (length + drain) * 1e9

    def inside(at: Floats) -> NDArray[np.bool_]:
        if not begin.size:
            return np.zeros(at.size, dtype=bool)
        last = np.searchsorted(begin, at, side="right") - 1
        out: NDArray[np.bool_] = (last >= 0) & (at < until[np.maximum(last, 0)])
        return out

    in_burst = inside(window.start)
    stalls = window.stalls
    hit = inside(stalls.end)
    stalled = np.bincount(stalls.row[hit], weights=stalls.excess_ms[hit], minlength=window.n).astype(np.float64)
    return _Bursts(index, variation, length, mean, float(counts.max()), in_burst, float(in_burst.mean()), stalled)
