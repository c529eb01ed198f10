"""ASR_LAG_GROWS: the older the session, the longer each chunk takes, or the further the text is behind."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.growth import Growth, growths
from tailrace.diagnose.speech_evidence.lags import StreamLag, stream_lags
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["LagGrows"]

MORE: Final = 1.2
"""Growth below this factor matters to nobody."""
WAITS_MS: Final = 200.0
"""A backlog or lag must have grown by so much."""
FEW: Final = 5
_ADVICE: Final = (
    "Look for state that a session keeps and never compacts (a voice detector's cache, a growing buffer, decoder "
    "history); bound it. Until then restart sessions before they are that old."
)
_PRICE: Final = "A restarted session loses its context and costs a connection."
_LEAK: Final = "a state that grows with the session"

IN_SECONDS_MS: Final = 10_000.0


class LagGrows(Cause):
    """Service time of a chunk, backlog or lag has a positive slope over the age of the session."""

    code: ClassVar[str] = "ASR_LAG_GROWS"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "service time of chunks, backlog or lag over the age of a session",
        "the number of sessions meanwhile",
    )
    disproof: ClassVar[str] = "The slope follows the number of sessions: then a lock or a loop serialises them."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """By series over a session's age; without them by the lag of each result of a stream."""
        found = [one for one in growths(observed) if _matters(one)]
        if found:
            own = [one for one in found if one.sessions != "follows"]
            return self._of_series(max(own, key=lambda one: one.last / max(one.first, 1e-9))) if own else None
        lags = [lag for lag in stream_lags(observed) if _stream_grows(lag)]
        return self._of_stream(max(lags, key=lambda lag: lag.line.slope)) if lags else None

    def _of_series(self, growth: Growth) -> Finding:
        ages = f"{growth.age_s[0] / 60:g} to {growth.age_s[-1] / 60:g} min"
        sessions = {
            "constant": f"the number of sessions stood at {growth.most_sessions:g}",
            "unknown": "how many sessions there were is not known",
        }[growth.sessions]
        minutes = float(growth.age_s[-1] - growth.age_s[0]) / 60.0
        missing = [] if growth.sessions == "constant" else ["the number of sessions over the same time"]
        rivals = [] if growth.sessions == "constant" else ["FE_EVENTLOOP_BLOCK: sessions were added meanwhile"]
        if growth.line.n < FEW:
            missing.append(f"more points: {growth.line.n} are few for a slope")
        stream = f" of stream {growth.stream}" if growth.stream else ""
        return self.finding(
            statement=f"The {growth.what}{stream} grows with the age of the session: "
            f"{_span(growth.first, growth.last)}, {_told(growth.per_minute)} per minute: {_LEAK}.",
            evidence=[
                Evidence(
                    text=f"{growth.what} {_told(growth.first)} at the first point",
                    source=growth.first_place,
                    name="first",
                    value=growth.first,
                    unit="ms",
                ),
                Evidence(
                    text=f"{growth.what} {_told(growth.last)} at the last point, ages {ages}",
                    source=growth.last_place,
                    name="last",
                    value=growth.last,
                    unit="ms",
                ),
                Evidence(
                    text=f"slope {growth.per_minute:.2f} ms per minute (95 %: {growth.line.low * 60:.2f} to "
                    f"{growth.line.high * 60:.2f})",
                    source=growth.last_place,
                    name="slope",
                    value=round(growth.per_minute, 4),
                    unit="ms/min",
                ),
                Evidence(text=sessions, source=growth.last_place),
            ],
            explains_ms=growth.last - growth.first,
            relation=f"({growth.last:.2f} - {growth.first:.2f}) ms / {minutes:g} min = "
            f"{(growth.last - growth.first) / minutes:.2f} ms/min",
            n=growth.line.n,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose series.csv",
            missing=missing,
            rivals=rivals,
            disproof_checked=[sessions],
        )

    def _of_stream(self, lag: StreamLag) -> Finding:
        missing = ["the number of sessions over the same time"]
        rivals = ["FE_EVENTLOOP_BLOCK: sessions were added meanwhile"]
        if not lag.anchored:
            missing.append("the received audio: without it the lag is measured from the audio's own clock")
        if lag.utterances < 2:
            rivals.append("ASR_REDECODE_GROWTH: there is one utterance, so growth within it looks alike")
        per_minute = lag.line.slope * 60e3
        return self.finding(
            statement=f"The text falls behind the audio: lag {lag.first_s * 1e3:.0f} -> {lag.last_s * 1e3:.0f} ms, "
            f"{per_minute:.0f} ms per minute of the session.",
            evidence=[
                Evidence(
                    text=f"stream {lag.stream}: lag {lag.first_s * 1e3:.0f} ms at {lag.at[0]:.1f} s, "
                    f"{lag.last_s * 1e3:.0f} ms at {lag.at[-1]:.1f} s",
                    source=lag.place,
                    name="lag",
                    value=round(lag.last_s * 1e3, 1),
                    unit="ms",
                ),
                Evidence(
                    text=f"slope {per_minute:.0f} ms per minute",
                    source=lag.place,
                    name="slope",
                    value=round(per_minute, 2),
                    unit="ms/min",
                ),
            ],
            explains_ms=(lag.last_s - lag.first_s) * 1e3,
            relation=f"({lag.last_s * 1e3:.0f} - {lag.first_s * 1e3:.0f}) ms / {(lag.at[-1] - lag.at[0]) / 60:.2f} min",
            n=lag.line.n,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose events.jsonl",
            missing=missing,
            rivals=rivals,
        )


def _told(ms: float) -> str:
    """`32.5 s`, `840.20 ms`: a backlog of minutes is read in seconds."""
    return f"{ms / 1e3:.4g} s" if abs(ms) >= IN_SECONDS_MS else f"{ms:.2f} ms"


def _span(first: float, last: float) -> str:
    """As the evidence has both."""
    in_ms = max(abs(first), abs(last)) < IN_SECONDS_MS
    return f"{first:.2f} -> {last:.2f} ms" if in_ms else f"{_told(first)} -> {_told(last)}"


def _matters(growth: Growth) -> bool:
    if not (growth.line.grows or growth.steady) or growth.line.n < 3 or float(np.ptp(growth.age_s)) <= 0:
        return False
    if growth.waits:
        return max(growth.line.last - growth.line.first, growth.last - growth.first) >= WAITS_MS
    return growth.line.last >= MORE * max(growth.line.first, 1e-9)


def _stream_grows(lag: StreamLag) -> bool:
    return lag.line.grows and lag.line.n >= FEW - 1 and (lag.line.last - lag.line.first) * 1e3 >= WAITS_MS
