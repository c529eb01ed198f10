"""CLIENT_UPLOAD_LATE in speech: the audio itself comes late, so nothing behind it can be on time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.diagnose.trend import trend
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["late_upload"]

LATE_S: Final = 0.5
LATE_SHARE: Final = 0.2
EARLY: Final = 0.25
"""The quantile of lateness that stands for a chunk in time: a sender may begin with some audio in store."""
FEW: Final = 5
ONE_START_S: Final = 3600.0
"""Stamps that lie further from the audio's own time do not count from the stream's start."""
PACED: Final = 0.95
NEAR: Final = 0.02


class _Upload(NamedTuple):
    stream: SpeechStream
    late_s: float
    share: float
    event: int
    n: int
    engine_s: float | None


def late_upload(cause: Cause, observed: Observed) -> Finding | None:
    """Lateness of each chunk against the best of its stream."""
    found = [one for stream in speech_streams(observed) if (one := _upload(stream)) is not None]
    if not found:
        return _by_series(cause, observed)
    worst = max(found, key=lambda one: one.late_s)
    stream = worst.stream
    source = str(stream.place_of(worst.event))
    missing, checked = [], []
    if worst.engine_s is None:
        missing.append("results with the audio they speak of: they say what the recogniser adds")
    else:
        checked.append(f"results came {worst.engine_s * 1e3:.0f} ms after their audio was received (median)")
    return cause.finding(
        statement=f"The audio comes late: {worst.share:.0%} of {worst.n} chunks more than {LATE_S * 1e3:.0f} ms "
        f"behind the speech, the worst {worst.late_s * 1e3:.0f} ms; the recogniser cannot hear it sooner.",
        evidence=[
            Evidence(
                text=f"stream {stream.name}: worst chunk {worst.late_s * 1e3:.0f} ms late, "
                f"{worst.share:.0%} of {worst.n} chunks more than {LATE_S * 1e3:.0f} ms",
                source=source,
                name="upload_late",
                value=round(worst.late_s * 1e3, 1),
                unit="ms",
            ),
            *_where(worst, source),
            *(
                [
                    Evidence(
                        text=f"recogniser's own lag {worst.engine_s * 1e3:.0f} ms (median)",
                        source=source,
                        name="result_lag",
                        value=round(worst.engine_s * 1e3, 1),
                        unit="ms",
                    )
                ]
                if worst.engine_s is not None
                else []
            ),
        ],
        explains_ms=worst.late_s * 1e3,
        relation=f"receive time - position, above the best of the stream: {worst.late_s * 1e3:.0f} ms > "
        f"{LATE_S * 1e3:.0f} ms",
        n=worst.n,
        advice="Look at the client's capture and uplink: send each frame when it is recorded (no batching of "
        "frames), no TCP queue that builds up (drop or lower the bitrate: Opus), a nearer entry point.",
        price="Compression costs some quality; dropping audio costs words.",
        verify="tailrace diagnose events.jsonl",
        missing=missing,
        disproof_checked=checked,
    )


def _where(upload: _Upload, source: str) -> list[Evidence]:
    """The worst chunk's place in the audio and in time, where both count from one start."""
    stream = upload.stream
    came, ends = float(stream.at[upload.event]), float(stream.end[upload.event])
    if not 0 <= came - ends <= ONE_START_S:
        return []
    text = f"its audio up to {ends:.2f} s came at {came:.2f} s, {came - ends:.2f} s behind"
    return [Evidence(text, source, "behind_s", round(came - ends, 3), "s")]


def _by_series(cause: Cause, observed: Observed) -> Finding | None:
    """Seconds of audio received against the clock: a live microphone makes one a second."""
    for series in observed.of_series("audio_received"):
        known = np.isfinite(series.values)
        if series.axis not in ("time", "session_age") or known.sum() < FEW:
            continue
        at, came = series.at[known], series.values[known] / 1e3
        line = trend(at, came)
        late_s = float((at[-1] - at[0]) - (came[-1] - came[0]))
        if line is None or not 0 < line.slope < PACED or late_s <= LATE_S:
            continue
        done = next((one for one in observed.of_series("audio_processed") if len(one) == len(series)), None)
        missing, checked, rivals = [], [], []
        if done is None:
            missing.append("the audio that the recogniser has processed: it must keep up with what comes")
        else:
            behind = float(np.nanmax(came - done.values[known] / 1e3))
            if behind > max(LATE_S, 0.5 * late_s):
                return None  # the recogniser is behind, too
            checked.append(f"the recogniser is {behind * 1e3:.0f} ms behind what was received, at most")
        if any(abs(line.slope / ratio - 1.0) < NEAR for ratio in (2 / 3, 0.5, 1 / 3)):
            rivals.append("AUDIO_RATE_MISMATCH")
        place, took = str(series.line_of(len(series) - 1)), float(at[-1] - at[0])
        return cause.finding(
            statement=f"The audio comes late from the client: {came[-1] - came[0]:.1f} s of it were received in "
            f"{took:.1f} s by the clock ({line.slope:.0%} of the pace of speech), so it is {late_s:.1f} s behind at "
            "the end; the recogniser cannot hear it sooner.",
            evidence=[
                Evidence(
                    text=f"received {came[-1] - came[0]:.1f} s of audio in {took:.1f} s: {late_s:.1f} s late",
                    source=place,
                    name="upload_late",
                    value=round(late_s * 1e3, 1),
                    unit="ms",
                ),
                *(Evidence(text=text, source=place, name="backlog") for text in checked),
            ],
            explains_ms=late_s * 1e3,
            relation=f"{took:.1f} s - {came[-1] - came[0]:.1f} s = {late_s:.1f} s",
            n=int(known.sum()),
            advice="Look at the client's capture and uplink: send each frame when it is recorded, no TCP queue that "
            "builds up (lower the bitrate: Opus), a nearer entry point.",
            price="Compression costs some quality; dropping audio costs words.",
            verify="tailrace diagnose after.csv  # the same series after the change: a second of audio a second",
            missing=missing,
            rivals=rivals,
            disproof_checked=checked,
        )
    return None


def _upload(stream: SpeechStream) -> _Upload | None:
    chosen = np.flatnonzero(stream.audio & np.isfinite(stream.end))
    if chosen.size < FEW:
        return None
    late = stream.at[chosen] - stream.end[chosen]
    late = late - float(np.quantile(late, EARLY))
    behind = late > LATE_S
    if float(behind.mean()) < LATE_SHARE or _steady(stream, chosen):
        return None
    results = np.flatnonzero(stream.words & np.isfinite(stream.end))
    waits = stream.at[results] - stream.received_at(stream.end[results])
    waits = waits[np.isfinite(waits)]
    own = float(np.median(waits)) if waits.size else None
    if own is not None and own > float(late.max()):
        return None  # the recogniser adds more than the upload: not the upload's story
    worst = int(np.argmax(late))
    return _Upload(
        stream,
        float(late[worst]),
        float(behind.mean()),
        int(chosen[worst]),
        int(chosen.size),
        own,
    )


def _steady(stream: SpeechStream, chosen: np.ndarray) -> bool:
    """Whether audio time runs at another, even pace: a sample rate, not a slow upload."""
    line = trend(stream.at[chosen], stream.end[chosen])
    return line is not None and line.high - line.low < 0.02 * abs(line.slope) and abs(line.slope - 1.0) > 0.05
