"""MIX_SHIFT by load: each request brings more work than before, and everybody waits for it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import CARRIES_SHARE, Cause
from tailrace.diagnose.equal_work import equal_pace
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.record_evidence.options import sequences
from tailrace.diagnose.shorter_prompts import shorter_prompts_of
from tailrace.diagnose.window import Window, p95_of_both
from tailrace.model.finding import Evidence, Finding

__all__ = ["heavier_mix"]

Floats = NDArray[np.float64]

HEAVIER: Final = 1.12
CERTAIN: Final = 2.5
"""Standard errors; chance alone reaches them in one of 160 windows, and seldom makes anybody slower then."""
LONGER: Final = 4.0
"""A prompt of so many times the median of before is a long one ..."""
MORE_LONG: Final = 1.5
"""... and so many times their share is another mix, however little it moves the mean."""
SAME_CACHED: Final = 0.9
RATE: Final = 1.15
PACE: Final = 0.12
GREW: Final = 0.08
LEAST: Final = 100


class _Side(NamedTuple):
    what: str
    unit: str
    a: float
    b: float
    z: float
    n_a: int
    n_b: int

    @property
    def words(self) -> str:
        return self.what if "requests" in self.what else f"{self.what} a request"

    @property
    def ratio(self) -> float:
        return self.b / max(self.a, 1e-9)


def heavier_mix(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """More prompt or output tokens, or audio, a request, at about the old rate and the old pace at equal work."""
    before, window = evidence.before, evidence.now
    if before is None or min(before.n, window.n) < LEAST:
        return None
    sides = [side for side in _sides(before, window) if side.ratio >= HEAVIER and side.z >= CERTAIN]
    if not sides:
        return None
    most = max(sides, key=lambda side: side.ratio)
    rates = [side.rate for side in (before, window)]
    if rates[1] > max(RATE, most.ratio) * rates[0]:
        return None  # more requests came, and that adds more work than what each of them brings
    pace = equal_pace(before, window, "decode")
    if pace is not None and pace.change > PACE and pace.low > 0:
        return None  # the engine is slower for the same work: the traffic is not all
    ends = {metric: p95_of_both(before, window, metric) for metric in ("ttft", "e2e")}
    metric, (a, b) = max(ends.items(), key=lambda item: item[1][1] / item[1][0])
    if b < (1.0 + GREW) * a or b - a < CARRIES_SHARE * window.tail_lost_ms:
        return None
    name = {"ttft": "TTFT", "e2e": "E2E"}[metric]
    return cause.finding(
        statement=f"The requests bring more work than before: {_count(most.a)} -> {_count(most.b)} {most.words} "
        f"(x {most.ratio:.2f}), and {name} p95 went from {a:.0f} to {b:.0f} ms.",
        evidence=[
            *(
                Evidence(
                    f"{side.words} {_count(side.a)} -> {_count(side.b)} (mean, x {side.ratio:.2f}, "
                    f"z = {side.z:.1f}, n = {side.n_a} and {side.n_b})",
                    f"record:{side.unit}",
                    "work",
                    round(side.b, 2),
                )
                for side in sides
            ),
            Evidence(
                f"request rate {rates[0]:.2f} -> {rates[1]:.2f} /s", "record:start", "rate", round(rates[1], 3), "1/s"
            ),
            Evidence(f"{name} p95 {a:.0f} -> {b:.0f} ms", f"record:{metric}_ns", "p95_ms", round(b, 1), "ms"),
        ],
        explains_ms=b - a,
        relation=f"work by request x {most.ratio:.2f} at {rates[1] / max(rates[0], 1e-9):.2f} x the rate",
        n=window.n,
        advice="Give the traffic that grew a lane with its own limits, or capacity for the new mix; what others feel "
        "of "
        "it (their wait behind long prompts, fuller batches) goes with it. Nothing became slower, so do "
        "not roll back. Where prompts grew: " + shorter_prompts_of(window),
        price="The lane that is limited waits longer; a shorter context may lose an answer.",
        verify="tailrace compare before.run after.run  # it weights B to the traffic of A",
        disproof_checked=[f"the rate is {rates[1] / max(rates[0], 1e-9):.2f} x, the pace at equal work unchanged"],
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _sides(before: Window, window: Window) -> list[_Side]:
    out = []
    for what, field in (
        ("prompt tokens", "prompt_tokens"),
        ("output tokens", "output_tokens"),
        ("seconds of audio", "audio_seconds"),
    ):
        a, b = (side.done.column(field) for side in (before, window))
        if field == "output_tokens":
            # Several answers at once are other options, not longer answers.
            a, b = a / sequences(before), b / sequences(window)
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        if min(a.size, b.size) < LEAST or float(a.mean()) <= 0:
            continue
        out.append(_mean(what, field, a, b))
    computed = _computed(before, window)
    shares = [_long_share((before.tokens, window.tokens), "prompt_tokens")]
    if computed is not None:
        out.append(_mean("computed prompt tokens", "prompt_tokens, record:cached_tokens", *computed))
        shares.append(_long_share(computed, "prompt_tokens, record:cached_tokens"))
    return [*out, *(share for share in shares if share is not None)]


def _mean(what: str, unit: str, a: Floats, b: Floats) -> _Side:
    error = float(np.hypot(a.std() / a.size**0.5, b.std() / b.size**0.5))
    return _Side(
        what,
        unit,
        float(a.mean()),
        float(b.mean()),
        float(b.mean() - a.mean()) / max(error, 1e-9),
        int(a.size),
        int(b.size),
    )


def _computed(before: Window, window: Window) -> tuple[Floats, Floats] | None:
    """Prompt tokens that the engine had to compute, where it says what it had cached and that did not become less: a
    long beginning that everybody shares hides in the whole length how much longer the rest has become.
    """
    sides = []
    cached = []
    for side in (before, window):
        known = ~np.isnan(side.tokens) & ~np.isnan(side.done.column("cached_tokens"))
        if known.sum() < max(LEAST, 0.5 * side.n):
            return None
        held = np.minimum(side.done.column("cached_tokens")[known], side.tokens[known])
        cached.append(float(held.mean()))
        sides.append(np.maximum(side.tokens[known] - held, 1.0))
    return (sides[0], sides[1]) if cached[1] >= SAME_CACHED * cached[0] > 0 else None


def _long_share(tokens: tuple[Floats, Floats], unit: str) -> _Side | None:
    a, b = (side[~np.isnan(side)] for side in tokens)
    if min(a.size, b.size) < LEAST:
        return None
    bound = LONGER * float(np.median(a))
    p, q = float((a >= bound).mean()), float((b >= bound).mean())
    both = (p * a.size + q * b.size) / (a.size + b.size)
    error = float(np.sqrt(max(both * (1 - both), 1e-9) * (1 / a.size + 1 / b.size)))
    if q < MORE_LONG * p or q * b.size < 10:
        return None
    name = f"long prompts (from {bound:,.0f} tokens) in 100 requests"
    return _Side(name, unit, 100 * p, 100 * q, (q - p) / max(error, 1e-9), int(a.size), int(b.size))
