"""MIX_DECODING_OPTIONS: more sequences are decoded for each request than before."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.equal_work import sequences_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window, p95_of_both, tail_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["options_in_records", "sequences"]

Floats = NDArray[np.float64]
MORE: Final = 1.2
LEAST: Final = 20
SLOWER: Final = 1.5
GREW: Final = 0.08
_FELT: Final = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2e"}


def sequences(window: Window) -> Floats:
    """By row of `done`: sequences that the engine decodes for it, the largest of n, best_of and beams."""
    return sequences_of(window.done)


def options_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Sequences a request against the window from before; else those with several against those with one."""
    window = evidence.now
    if window.n < LEAST:
        return None
    now = sequences(window)
    before = evidence.before
    if before is not None and before.n >= LEAST:
        return _against(cause, evidence, before, now)
    return _within(cause, evidence, now)


def _against(cause: Cause, evidence: EvidenceSet, before: Window, now: Floats) -> Finding | None:
    window = evidence.now
    old = sequences(before)
    a, b = float(old.mean()), float(now.mean())
    shares = [float((values > 1).mean()) for values in (old, now)]
    if b < MORE * a or shares[1] < shares[0] + 0.05:
        return None
    rates = [side.rate for side in (before, window)]
    moved = {name: p95_of_both(before, window, metric) for name, metric in _FELT.items()}
    name, ends = max(moved.items(), key=lambda item: item[1][1] / item[1][0])
    grown = ends[1] - ends[0]
    if grown < GREW * ends[0]:
        return None
    missing, rivals = [], []
    if rates[1] > 1.2 * rates[0]:
        rivals.append("SCHED_QUEUE_SATURATION")
        missing.append("the same options at the earlier request rate")
    return cause.finding(
        statement=f"More is decoded for each request: {a:.2f} -> {b:.2f} sequences (n, best_of, beams), and {name} "
        f"p95 went from {ends[0]:.1f} to {ends[1]:.1f} ms.",
        evidence=[
            Evidence(
                f"sequences a request {a:.2f} -> {b:.2f} (mean); {shares[0]:.0%} -> {shares[1]:.0%} of the "
                f"requests "
                f"have several (n = {before.n} and {window.n})",
                "record:n, record:best_of, record:beam",
                "sequences",
                round(b, 3),
            ),
            Evidence(
                f"{name} p95 {ends[0]:.1f} -> {ends[1]:.1f} ms",
                f"record:{_FELT[name]}_ns",
                "p95_ms",
                round(ends[1], 1),
                "ms",
            ),
            Evidence(
                f"request rate {rates[0]:.2f} -> {rates[1]:.2f} /s",
                "record:start",
                "rate",
                round(rates[1], 3),
                "1/s",
            ),
        ],
        explains_ms=grown,
        relation=f"sequences {b:.2f} / {a:.2f} = {b / a:.2f} x the decoding at "
        f"{rates[1] / max(rates[0], 1e-9):.2f} x the "
        "rate",
        n=window.n,
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command,
        missing=missing,
        rivals=rivals,
        disproof_checked=[f"request rate {rates[0]:.2f} -> {rates[1]:.2f} /s"],
    )


def _within(cause: Cause, evidence: EvidenceSet, now: Floats) -> Finding | None:
    window = evidence.now
    several = now > 1
    if min(several.sum(), (~several).sum()) < LEAST:
        return None
    e2e = window.done.ms("e2e")
    tokens = np.maximum(np.nan_to_num(window.done.column("output_tokens"), nan=0.0) / now, 1.0)
    each = e2e / tokens
    slow, plain = (float(np.median(each[rows])) for rows in (several, ~several))
    top = tail_of(e2e)
    in_top = float(several[top].mean())
    usual = float(several.mean())
    if in_top < max(0.6, 1.5 * usual) or slow < SLOWER * plain:
        return None
    excess = np.where(several, np.maximum(e2e - float(np.median(e2e[~several])), 0.0), 0.0)
    explains = float(excess[top].mean())
    if explains < 50.0:
        return None
    return cause.finding(
        statement=f"Requests that decode several sequences are the slow ones: {in_top:.0%} of the slowest have n, "
        f"best_of or beams above 1, and {usual:.0%} of all.",
        evidence=[
            Evidence(
                f"{in_top:.0%} of the slowest requests and {usual:.0%} of all decode several sequences",
                "record:n, record:best_of, record:beam",
                "in_tail",
                round(in_top, 4),
            ),
            Evidence(
                f"a token of the answer takes {slow:.1f} ms with several, {plain:.1f} ms with one (medians of the "
                "whole time)",
                "record:e2e_ns, record:output_tokens",
                "each_ms",
                round(slow, 2),
                "ms",
            ),
        ],
        explains_ms=explains,
        relation=f"{slow:.1f} / {plain:.1f} ms a token = {slow / max(plain, 1e-9):.2f}",
        n=int(several.sum()),
        advice=_ADVICE,
        price=_PRICE,
        verify=evidence.verify_command,
        missing=["a window without them (--before FILE): whether the others are slower for them too"],
        disproof_checked=[f"{usual:.0%} of all requests have several"],
    )


_ADVICE: Final = (
    "Limit n, best_of and beams by lane (a lane for requests that decode several sequences, with a small running "
    "limit), "
    "or refuse them for interactive keys; count sequences, not requests, where you plan capacity."
)
_PRICE: Final = "Those requests wait in their lane, or get fewer candidates."
