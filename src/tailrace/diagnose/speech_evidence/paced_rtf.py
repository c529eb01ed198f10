"""METRIC_BUG: wall time over audio of a sender that paces itself is at least 1 whatever the recogniser does: no RTF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import number_stated, stated, worded
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["called_rtf", "paced_rtf"]

ALIKE: Final = 0.03
LEAST: Final = 3
SURE: Final = 4
"""Files of other lengths from which a constant rest is no chance."""
SPAN: Final = 2.0
REST: Final = 0.25
"""Spread of wall - audio, over itself, within which it is one constant."""
_PACE: Final = r"sleep|frame m?s|chunk m?s|real ?time|pace|interval m?s"
_BUSY: Final = r"busy|compute|processing|inference|gpu time|cpu time"
_WALL: Final = r"\bwall\b|elapsed|session (?:length|duration)"
_AUDIO: Final = r"audio"


class _Ratios(NamedTuple):
    arm: Arm
    called: Quoted
    parts: tuple[Quoted, Quoted, Quoted]
    """Wall, busy, audio."""
    true: float


def called_rtf(arm: Arm) -> _Ratios | None:
    """An RTF that is wall time / audio, beside the busy time that says what it is."""
    told = arm.quoted("rtf", "", "mean", "p50") or worded(arm, r"\brtf\b")
    wall, busy, audio = worded(arm, _WALL), worded(arm, _BUSY), worded(arm, _AUDIO)
    if told is None or wall is None or busy is None or audio is None or told.value < 0.98:
        return None
    if len({wall.key, busy.key, audio.key}) < 3 or len({wall.unit, busy.unit, audio.unit}) > 1 or audio.value <= 0:
        return None
    true = busy.value / audio.value
    # Of several sessions at once the audio is all of theirs, the wall time is not.
    streams = arm.keys.get("sessions", arm.keys.get("concurrency", 1.0))
    count = float(streams) if isinstance(streams, (int, float)) and streams > 0 else 1.0
    said = [wall.value / audio.value, wall.value * count / audio.value]
    if true >= 0.5 * told.value or not any(abs(one / told.value - 1.0) <= ALIKE for one in said):
        return None
    return _Ratios(arm, told, (wall, busy, audio), true)


def paced_rtf(cause: Cause, observed: Observed) -> Finding | None:
    """The rows whose RTF is none."""
    rows = [found for arm in observed.arms if (found := called_rtf(arm)) is not None]
    if not rows:
        return _by_its_rest(cause, observed)
    worst = rows[-1]
    wall, busy, audio = rows[0].parts
    truth = ", ".join(f"{row.true:.3g} in {row.arm.name}" for row in rows[:4])
    return cause.finding(
        statement=f"The RTF of {worst.called.value:g} is wall time / audio of a paced sender, which is at least 1 by "
        f"construction; busy time / audio is {truth}: the recogniser keeps up.",
        evidence=[
            *(evidence_of(row.arm, one) for row in rows[:4] for one in (row.called, *row.parts)),
            Evidence(f"true RTF {rows[0].true:.3g}", str(busy.place) or "form", "rtf", round(rows[0].true, 4)),
        ],
        explains_ms=None,
        relation=f"{busy.value:g} / {audio.value:g} = {rows[0].true:.3g}, not {wall.value:g} / {audio.value:g} = "
        f"{wall.value / audio.value:.3g}",
        n=len(rows),
        advice="Divide the busy time by the audio, and judge whether a stream is real-time by its lag and the slope of "
        "it.",
        price="None.",
        verify=again(),
        action=Action.COLLECT,
        disproof_checked=[f"busy time is {busy.value:g} of {wall.value:g} s"],
    )


def _by_its_rest(cause: Cause, observed: Observed) -> Finding | None:
    """Files of other lengths that all take their own length and one constant more: the sender set the pace."""
    by_source: dict[str, list[tuple[Arm, Quoted, Quoted, Quoted]]] = {}
    for arm in observed.arms:
        told = arm.quoted("rtf", "", "mean", "p50") or worded(arm, r"\brtf\b")
        wall, audio = worded(arm, rf"(?:{_WALL})(?!.*rtf)"), worded(arm, rf"^(?!.*(?:rtf|wall|last|after)).*{_AUDIO}")
        if told is None or wall is None or audio is None or told in (wall, audio) or wall.unit != audio.unit:
            continue
        if audio.value > 0 and abs(wall.value / audio.value / told.value - 1.0) <= ALIKE:
            by_source.setdefault(arm.place.source, []).append((arm, told, wall, audio))
    rows = max(by_source.values(), key=len, default=[])
    lengths = np.array([audio.value for *_, audio in rows])
    rest = np.array([wall.value - audio.value for _, _, wall, audio in rows])
    if len(rows) < LEAST or lengths.max() < SPAN * lengths.min() or float(rest.min()) <= 0:
        return None
    # Work that goes with the audio would leave a rest that grows with it.
    if float(np.ptp(rest)) > REST * float(np.median(rest)) or float(np.median(rest)) > 0.2 * float(np.median(lengths)):
        return None
    told_pace = number_stated(observed, _PACE) or stated(observed, _PACE)
    last = [item for arm, *_ in rows if (item := worded(arm, r"last|final|after")) is not None]
    unit = rows[0][2].unit
    words = f"{float(rest.min()):.3g} to {float(rest.max()):.3g} {unit}"
    after = f"{max(item.value for item in last):g} {last[0].unit}" if last else ""
    late = f" (the final comes {after} after the last byte at most)" if last else ""
    most = max(told.value for _, told, *_ in rows)
    span = f"{lengths.min():g} to {lengths.max():g} {unit}"
    paced = told_pace is not None or len(rows) >= SURE
    return cause.finding(
        statement=f"The RTF of {most:g} is wall time / audio of a paced sender: files of {span} each take their own "
        f"length and {words} more, so it is at least 1 whatever the recogniser does{late}. "
        "Its busy time was not measured.",
        evidence=[
            *(evidence_of(arm, one) for arm, *items in rows[:4] for one in items),
            Evidence(f"wall - audio = {words} in all {len(rows)} rows", str(rows[0][2].place), "rest"),
            *([evidence_of_setting(told_pace)] if told_pace is not None else []),
            *(Evidence(f"last final after last byte {one.value:g} {one.unit}", str(one.place)) for one in last[:1]),
        ],
        explains_ms=None,
        relation=f"wall - audio = {words}, audio {span}: wall = audio + constant",
        n=len(rows),
        advice="Divide the busy (compute) time by the audio, or send the audio as fast as it is taken; judge whether a "
        "stream is real-time by its lag and the slope of it.",
        price="None.",
        verify=again(),
        missing=[] if paced else ["how the audio was sent: at the pace of a microphone, or as fast as it is taken"],
        action=Action.COLLECT,
    )
