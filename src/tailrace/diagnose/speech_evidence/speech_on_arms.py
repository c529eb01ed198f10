"""Speech in tables that people write: work that grows with the utterance, a silence that is waited for, a wrong rate,
audio that comes late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from tailrace.diagnose.arms.asked import ANY, condition, figure, number_stated, worded
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["late_upload_on_arms", "rate_on_arms", "redecode_on_arms", "silence_on_arms"]

_AUDIO: Final = (
    r"audio (?:so far|length|duration|seconds|received)|utterance(?: length| duration| age| so far)?\b|segment length"
)
_WORK: Final = r"decod|partial|recogni|inference|encod|process|compute"
_SILENCE: Final = r"silence|endpoint(?:ing)?\b(?!.*delay)|end.?of.?speech timeout|hangover"
_END: Final = (
    r"(?:final|end.?of.?(?:turn|speech|utterance)|eou|eot|turn|endpoint|reply|response).*(?:delay|latency|after)"
)
_BYTES: Final = r"bytes? (?:received |sent )?(?:per|a|/) ?s|byte rate|bytes/s|bytes received per second"
_RATE: Final = r"(?:configured |expected |declared )?(?:sample|sampling) ?rate"
_DUE: Final = r"should|\bdue\b|scheduled|ideal|expected|planned|real.?time (?:at|stamp)"
_SENT: Final = r"^sent|\bsent\b|actual|\bsend (?:time|at)"
LONG_MS: Final = 500.0
LATE_S: Final = 0.5


class _Point(NamedTuple):
    at: float
    work: Quoted
    arm: Arm


def redecode_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Work on a partial in proportion to the audio so far: the whole utterance is decoded again each time."""
    points = [
        _Point(at, work, arm)
        for arm in observed.arms
        if (at := condition(arm, _AUDIO)) is not None
        and (work := worded(arm, _WORK)) is not None
        and work.unit in {"ms", "s"}
    ]
    points.sort(key=lambda point: point.at)
    if len(points) < 4 or points[-1].at < 3 * max(points[0].at, 1e-9):
        return None
    x = np.array([point.at for point in points])
    y = np.array([in_unit(point.work.value, point.work.unit, "ms") or 0.0 for point in points])
    slope = float(np.polyfit(x, y, 1)[0])
    if np.ptp(y) <= 0 or float(np.corrcoef(x, y)[0, 1]) < 0.95 or y[-1] < 3 * y[0] or slope <= 0:
        return None
    first, last = points[0], points[-1]
    chunk = number_stated(observed, r"chunk") or None
    pace = figure(last.arm, "chunk", stats=("",)) or worded(last.arm, r"chunk (?:size|length|ms)")
    behind = pace is not None and pace.unit == "ms" and y[-1] > pace.value
    over = f", longer than a chunk of {number(pace.value, 'ms')}: the stream falls behind" if behind and pace else ""
    return cause.finding(
        statement=f"A partial takes {y[0]:.4g} ms with {first.at:g} s of audio and {y[-1]:.4g} ms with {last.at:g} s, "
        f"{slope:.3g} ms more for each second{over}: the whole utterance is decoded again for each partial.",
        evidence=[
            *(evidence_of(point.arm, point.work) for point in points[:12]),
            *([evidence_of_setting(chunk)] if chunk is not None else []),
            *([evidence_of(last.arm, pace)] if pace is not None else []),
            Evidence(
                f"{slope:.3g} ms for each second of audio", str(first.work.place) or "form", "slope", slope, "ms/s"
            ),
        ],
        explains_ms=float(y[-1] - y[0]),
        relation=f"({y[-1]:.4g} - {y[0]:.4g}) ms / ({last.at:g} - {first.at:g}) s = {slope:.3g} ms/s",
        n=len(points),
        advice="Decode what is new only (keep the encoder's and decoder's state), or cut the utterance into segments "
        "of a few seconds (a window that slides, finals that lock what is behind).",
        price="Segments see less context: watch the word error rate at their edges.",
        verify="tailrace diagnose table.csv",
        missing=["that the work falls back with the next utterance: else it grows with the session"],
    )


def silence_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """An end-of-turn delay that is the configured silence and little more."""
    for arm in observed.arms:
        end = figure(arm, "end_of_turn", stats=("p50", "mean", "", "p90", "p95")) or worded(arm, _END)
        if end is None or end.unit != "ms" or end.value < LONG_MS:
            continue
        of_arm = worded(arm, _SILENCE)
        stated = number_stated(observed, _SILENCE)
        if of_arm is not None and of_arm is not end and of_arm.unit in {"ms", "s"}:
            silence, shown = in_unit(of_arm.value, of_arm.unit, "ms"), evidence_of(arm, of_arm)
        elif stated is not None and stated.number is not None:
            silence, shown = in_unit(stated.number, stated.unit or "ms", "ms"), evidence_of_setting(stated)
        else:
            continue
        final = figure(arm, "transcription_delay", "final_latency", stats=(end.stat, "p50", "mean", ""))
        if silence is None or silence < LONG_MS or not silence <= end.value <= 1.5 * silence:
            continue
        if final is not None and final.value >= 0.8 * end.value:
            continue  # it waits for the final
        own = end.value - silence
        return cause.finding(
            statement=f"Each turn ends {number(end.value, 'ms')} after the speech ({quantity(end)}), of which "
            f"{number(silence, 'ms')} are the configured silence; {number(own, 'ms')} are the system's own.",
            evidence=[
                evidence_of(arm, end),
                shown,
                *([evidence_of(arm, final)] if final is not None else []),
                Evidence(f"own part {number(own, 'ms')}", str(end.place) or "form", "own", own, "ms"),
            ],
            explains_ms=silence,
            relation=f"{end.value:.4g} - {silence:.4g} = {own:.4g} ms",
            n=1,
            advice="Shorten the silence (300 to 500 ms), or let a turn detector that reads the words decide and keep "
            "the timer as its upper bound.",
            price="Shorter silences cut off people who pause in a sentence: count interrupted turns beside it.",
            verify="tailrace diagnose metrics.jsonl",
            missing=[] if final is not None else ["the transcription delay, which the delay could follow instead"],
            disproof_checked=[f"the final comes after {number(final.value, 'ms')}"] if final is not None else [],
        )
    return None


_USUAL: Final = (8000.0, 16000.0, 22050.0, 24000.0, 32000.0, 44100.0, 48000.0)


def rate_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Bytes a second of 16-bit mono audio against the configured rate; beside it, audio against wall time."""
    for arm in observed.arms:
        told, came = worded(arm, _RATE), worded(arm, _BYTES)
        stated = number_stated(observed, _RATE) if told is None else None
        rate = told.value if told is not None else stated.number if stated is not None else None
        if rate is None or came is None or came is told or rate <= 0 or came.value <= 0:
            continue
        rate = rate * 1e3 if rate < 100 else rate
        actual = came.value / 2.0
        ratio = actual / rate
        if abs(ratio - 1.0) < 0.1:
            continue
        near = min(_USUAL, key=lambda usual: abs(usual - actual))
        fits = abs(near / actual - 1.0) < 0.03
        return cause.finding(
            statement=f"{came.value:.0f} bytes a second are {actual:.0f} samples of 16 bit, {ratio:.3g} x the "
            f"configured {rate:.0f} Hz"
            + (f": the audio is {near:.0f} Hz. " if fits else ". ")
            + f"Every time in the audio is off by {ratio:.3g} x.",
            evidence=[
                evidence_of(arm, came),
                *([evidence_of(arm, told)] if told is not None else []),
                *([evidence_of_setting(stated)] if stated is not None else []),
            ],
            explains_ms=None,
            relation=f"{came.value:.0f} / 2 / {rate:.0f} = {ratio:.3g}",
            n=1,
            advice="Send what the session says, or say what is sent: set the sample rate of the session to the "
            "source's, or resample before sending.",
            price="Resampling costs a little CPU at the sender.",
            verify="tailrace diagnose events.jsonl",
            missing=[] if fits else ["width and channels of the samples (16 bit mono was assumed)"],
            disproof_checked=[f"{near:.0f} Hz of 16-bit mono audio fit"] if fits else [],
        )
    return None


def _sent(arm: Arm, due: Quoted) -> Quoted | None:
    others = msgspec.structs.replace(arm, values={key: item for key, item in arm.values.items() if item is not due})
    return worded(others, _SENT)


def late_upload_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """When each chunk was due and when it was sent: the lateness grows while the server has time."""
    rows = [
        (due, sent, arm)
        for arm in observed.arms
        if (due := worded(arm, _DUE)) is not None
        and (sent := _sent(arm, due)) is not None
        and due.unit == sent.unit
        and due.unit in {"s", "ms"}
    ]
    if len(rows) < 3:
        return None
    scale = 1.0 if rows[0][0].unit == "s" else 1e-3
    late = np.array([(sent.value - due.value) * scale for due, sent, _ in rows])
    if late[-1] < LATE_S or late[-1] < 2 * max(late[0], 0.0) or bool((np.diff(late) < -0.2 * late.max()).any()):
        return None
    due, sent, arm = rows[-1]
    busy = figure(arm, "busy", stats=ANY) or worded(arm, r"server|busy|service|process")
    idle = busy is not None and busy.unit == "ms" and busy.value < 200
    return cause.finding(
        statement=f"The sender falls behind: in {arm.name} audio that was due at {due.value:g} {due.unit} was sent at "
        f"{sent.value:g} {sent.unit}, {late[-1]:.3g} s late ({late[0]:.3g} s at first)"
        + (f", while the server is busy for {number(busy.value, 'ms')} only" if idle and busy else "")
        + ". The recogniser waits for the client, not the other way round.",
        evidence=[
            *(evidence_of(one, value) for d, s, one in (rows[0], rows[-1]) for value in (d, s)),
            *([evidence_of(arm, busy)] if busy is not None else []),
            Evidence(f"{late[-1]:.3g} s late", str(sent.place) or "form", "late_s", round(float(late[-1]), 3), "s"),
        ],
        explains_ms=float(late[-1]) * 1e3,
        relation=f"{sent.value:g} - {due.value:g} = {late[-1]:.3g} s",
        n=len(rows),
        advice="Look at the client and its network: who encodes the audio, a socket that blocks, a mobile link; send "
        "at the pace of the audio (100 ms frames), smaller or compressed.",
        price="None at the server.",
        verify="tailrace diagnose events.jsonl",
        missing=[] if idle else ["how long the server works on a chunk: backpressure of a busy one looks the same"],
        disproof_checked=[f"the server is busy for {number(busy.value, 'ms')} a chunk"] if idle and busy else [],
    )
