"""The round trip of a trivial endpoint, or the loop's lag itself: if it is long, the loop was not running."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.blocked_streams import OF_THE_LOOP
from tailrace.diagnose.arm_evidence.overhead_on_arms import own_overhead
from tailrace.diagnose.arms.asked import said, told
from tailrace.diagnose.arms.pairs import change_shown, changed
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.limits import LOOP_LATE_MS
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["blocked_health"]

FAST: Final = 5.0
"""So many times faster in another arm: the difference is the work on the loop."""
_TRIVIAL: Final = re.compile(
    r"/?health(?:z|_?check)?\b|liveness|readiness|/ping|\bping\b|event[ _-]?loop (?:lag|delay)|loop[ _](?:lag|delay)|"
    r"/v1/models|metrics[ _](?:rtt|latency)",
    re.IGNORECASE,
)
_TIMERS: Final = re.compile(r"timeout|deadline|period|interval|threshold|delay_s\b|grace|initial", re.IGNORECASE)
_WORK: Final = (
    (r"audio|whisper|speech|\basr\b|librosa|resampl|wav", "audio decoding and resampling"),
    (r"image|vision|\bvlm?\b|multi[ _-]?modal|pixel|\bmm\b", "image processing"),
    (r"tokeni[sz]|long (?:prompt|input)|prompt tokens|input tokens", "tokenising"),
)


class _Trip(NamedTuple):
    name: str
    label: str
    ms: float
    source: str


def blocked_health(cause: Cause, observed: Observed) -> Finding | None:
    """A round trip over 100 ms. What blocks is named where the evidence says it."""
    if _watched(observed) or any(own_overhead(arm) is not None for arm in observed.arms):
        return None  # a probe's own view, or the loop of a hop that tells its own time
    trips = sorted(_trips(observed), key=lambda item: -item.ms)
    if not trips or trips[0].ms <= LOOP_LATE_MS:
        return None
    worst = trips[0]
    best = next((item for item in reversed(trips) if item.ms * FAST <= worst.ms), None)
    text = " ".join(
        [
            *(said(arm) for arm in observed.arms),
            *(" ".join(arm.keys) for arm in observed.arms),
            *(value.label for arm in observed.arms for value in arm.values.values()),
            *(f"{item.name} {item.value}" for item in told(observed)),
            *(item.name for item in observed.series),
        ]
    )
    work = next((words for pattern, words in _WORK if re.search(pattern, text, re.IGNORECASE)), "")
    missing = []
    if not work and not OF_THE_LOOP.search(text):
        missing.append("what the front end was doing meanwhile (prompt tokens, images, audio seconds in preprocessing)")
    if best is None and not observed.of_series("chunk_gap"):
        missing.append("a stack dump of the API process during the stall, or the same load with that work off the loop")
    one_change = best is not None and bool(changed(observed))
    return cause.finding(
        statement=f"The front end did not answer a trivial request for {number(worst.ms, 'ms')} ({worst.label}"
        + (f", {number(best.ms, 'ms')} in {best.name}" if best is not None else "")
        + "): its event loop is blocked"
        + (f" by {work}" if work else "")
        + ", and every stream waits for it.",
        evidence=[
            *(
                Evidence(
                    text=f"{item.name}: {item.label} {number(item.ms, 'ms')}".removeprefix(": "),
                    source=item.source,
                    name="health_rtt",
                    value=round(item.ms, 4),
                    unit="ms",
                )
                for item in trips[:6]
            ),
            *change_shown(observed),
        ],
        explains_ms=worst.ms,
        relation=f"round trip of a trivial endpoint {number(worst.ms, 'ms')} > {LOOP_LATE_MS:.0f} ms"
        + (f"; {worst.ms / max(best.ms, 1e-9):.3g} x that of {best.name}" if best is not None else ""),
        n=len(trips),
        advice=f"Take {work or 'tokenising, image and audio work'} off the event loop (a pool of threads or processes) "
        "and bound how much of it runs at once; until then, more API server processes.",
        price="Some CPU for the pool; the stage's own time may rise, because waiting moves into it.",
        verify=(
            "tailrace diagnose dump.txt  # py-spy dump --pid PID > dump.txt of the API server, while "
            "/health does not answer"
        ),
        missing=missing,
        disproof_checked=[f"loop lag (round trip) in the slow window: {number(worst.ms, 'ms')}"],
        level=Level.PROVEN if one_change and not missing else None,
        proof=Proof.ONE_CHANGE,
    )


def _watched(observed: Observed) -> bool:
    """Restarts by a probe: a late /health is then what the probe saw, and another's cause."""
    restarted = any("restart" in item.name and len(item) and np.nanmax(item.values) > 0 for item in observed.series)
    lost = any(len(item) and (np.diff(item.values) < 0).any() for item in observed.of_series("ready_endpoints"))
    probed = lost or any(re.search(r"probe|restart", item.name, re.IGNORECASE) for item in told(observed))
    return restarted or probed


def _trips(observed: Observed) -> list[_Trip]:
    # Beside the gaps of streams, a series of lags is laid over them instead (`blocked_in_series`).
    alone = [] if observed.of_series("chunk_gap") else _in_series(observed)
    return [item for item in (*_in_arms(observed), *_in_statements(observed), *alone) if np.isfinite(item.ms)]


def _in_arms(observed: Observed) -> list[_Trip]:
    out = []
    for arm in observed.arms:
        for value in arm.values.values():
            words = f"{value.label} {value.quantity.replace('_', ' ')}"
            if value.relative or not value.unit or not _TRIVIAL.search(words) or _TIMERS.search(value.label):
                continue
            ms = in_unit(value.value, value.unit, "ms")
            if ms is not None:
                out.append(_Trip(arm.name, value.label, ms, str(value.place) or "form"))
    return out


def _in_statements(observed: Observed) -> list[_Trip]:
    out = []
    for item in told(observed):
        words = item.name.replace("_", " ")
        if item.number is None or not item.unit or not _TRIVIAL.search(words) or _TIMERS.search(item.name):
            continue
        ms = in_unit(item.number, item.unit, "ms")
        if ms is not None:
            out.append(_Trip(_side(item.name), words, ms, str(item.place) or "form"))
    return out


def _in_series(observed: Observed) -> list[_Trip]:
    out = []
    for series in observed.series:
        named = series.name in ("health_rtt", "metrics_rtt", "loop_lag")
        if not named or not len(series) or not np.isfinite(series.values).any():
            continue
        ms = in_unit(float(np.nanmax(series.values)), series.unit or "ms", "ms")
        if ms is not None:
            place = series.line_of(int(np.nanargmax(series.values)))
            out.append(_Trip("", series.name.replace("_", " "), ms, str(place)))
    return out


def _side(name: str) -> str:
    return next((side for side in ("before", "after", "old", "new", "inline") if side in name), "stated")
