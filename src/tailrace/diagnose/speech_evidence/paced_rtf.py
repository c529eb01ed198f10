"""METRIC_BUG: wall time over audio of a sender that paces itself is at least 1 whatever the recogniser does: no RTF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import worded
from tailrace.diagnose.arms.shown import evidence_of
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["called_rtf", "paced_rtf"]

ALIKE: Final = 0.03
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
        return None
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
