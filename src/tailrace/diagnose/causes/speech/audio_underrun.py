"""AUDIO_UNDERRUN: synthesis is slower than playback, so every listener hears gaps."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.speech_evidence.paced_rtf import called_rtf
from tailrace.diagnose.speech_evidence.speech_stated import synthesis_stated
from tailrace.diagnose.speech_evidence.turns import turns_of
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["AudioUnderrun"]

_SPEAKS: Final = re.compile(
    r"\btts\b|tts_|_tts|synth|vocoder|playback|underrun|voice out|audio out|text.to.speech|\bspeak|kokoro|orpheus|xtts",
    re.IGNORECASE,
)
_FIRST_AUDIO: Final = re.compile(r"\bttf[ba]\b|\bfirst (?:audio|byte|sound)\b", re.IGNORECASE)
_HEARS: Final = re.compile(r"\basr\b|\bstt\b|transcri|recogni|whisper|speech.to.text|funasr", re.IGNORECASE)


class _Slow(NamedTuple):
    rtf: float
    streams: float | None
    first_ms: float | None
    place: str
    name: str
    wall: bool


class AudioUnderrun(Cause):
    """Compute time / audio time (RTF) of synthesis is above 1."""

    code: ClassVar[str] = "AUDIO_UNDERRUN"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("RTF of synthesis (busy time / audio time)", "the number of streams")
    disproof: ClassVar[str] = "RTF below 1: then gaps come from the network or the player."
    action: ClassVar[Action] = Action.SHED

    def observe(self, observed: Observed) -> Finding | None:
        """By arms or forms with an RTF; without them by agents' synthesis times."""
        told = _words(observed)
        hears = bool(_HEARS.search(told))
        speaks = bool(_SPEAKS.search(told)) or (not hears and any(map(_sends_audio, observed.arms)))
        if hears and not speaks:
            return None  # a recogniser above 1 builds a backlog; nobody listens to it
        slow = [one for arm in observed.arms if (one := _of_arm(arm)) is not None] or _of_form(observed)
        if slow:
            return self._found(max(slow, key=lambda one: one.rtf), synthesis=speaks)
        turns = _of_turns(observed)
        if turns is not None:
            return self._found(turns, synthesis=True)
        made = synthesis_stated(observed) if speaks else None
        if made is None:
            return None
        slow_one = _Slow(made.rtf, made.streams, made.first_ms, made.place, "", wall=False)
        return self._found(slow_one, synthesis=True)

    def _found(self, slow: _Slow, *, synthesis: bool) -> Finding:
        missing, rivals = [], []
        if not synthesis:
            missing.append("whether this RTF is of synthesis: no word says so")
            rivals.append("ASR_LAG_GROWS: a recogniser above RTF 1 builds a backlog")
        if slow.wall:
            missing.append("busy time of synthesis: its wall time holds the wait for the text as well")
        evidence = [
            Evidence(text=f"RTF {slow.rtf:.2f}", source=slow.place, name="rtf", value=round(slow.rtf, 4)),
        ]
        behind = 1.0 - 1.0 / slow.rtf
        statement = (
            f"Synthesis takes {slow.rtf:.2f} s for each second of audio (RTF {slow.rtf:.2f} > 1): playback starves "
            "whatever the first byte did"
        )
        relation = f"RTF {slow.rtf:.2f} > 1"
        if slow.first_ms is not None and np.isfinite(slow.first_ms):
            evidence.append(
                Evidence(
                    text=f"first byte after {slow.first_ms:.0f} ms",
                    source=slow.place,
                    name="ttfb",
                    value=slow.first_ms,
                    unit="ms",
                )
            )
        advice = "Cap the streams of one engine"
        if slow.streams:
            fits = int(slow.streams / slow.rtf + 1e-9)
            evidence += [
                Evidence(text=f"{slow.streams:g} streams", source=slow.place, name="streams", value=slow.streams),
                Evidence(
                    text=f"about {fits} streams would run in real time, if RTF is linear in load",
                    source=slow.place,
                    name="sustained_streams",
                    value=float(fits),
                ),
            ]
            statement += f"; {slow.streams:g} streams are too many, about {fits} would do"
            relation += (
                f"; {slow.streams:g}/{slow.rtf:.2f} = {slow.streams / slow.rtf:.1f} streams (RTF linear in load)"
            )
            advice += f" at {fits}"
        else:
            missing.append("the number of streams: it gives how many would run in real time")
        return self.finding(
            statement=f"{statement}.",
            evidence=evidence,
            explains_ms=behind * 1e3,
            relation=relation,
            n=1,
            advice=f"{advice}, refuse or queue the rest; then a faster voice, a smaller model, or batching across "
            "streams.",
            price="Callers above the cap wait or are refused.",
            verify="tailrace diagnose table.md",
            missing=missing,
            rivals=rivals,
            disproof_checked=[f"RTF is {slow.rtf:.2f}, above 1"],
        )


def _words(observed: Observed) -> str:
    parts = [*observed.notes]
    for arm in observed.arms:
        parts += [arm.name, arm.label, *arm.keys, *(f"{key} {value.label}" for key, value in arm.values.items())]
    parts += [f"{item.name} {item.value}" for item in observed.settings]
    parts += [one.name for one in observed.series[:200]]
    return " ".join(parts)[:100_000]


def _sends_audio(arm: Arm) -> bool:
    """An RTF beside a first byte or first audio: what is recognised has neither."""
    rtf = any(value.quantity in {"rtf", "rtfx"} for value in arm.values.values())
    return rtf and any(_FIRST_AUDIO.search(value.label) for value in arm.values.values())


def _of_arm(arm: Arm) -> _Slow | None:
    rtf = arm.get("rtf", "", "mean", "p50", "p95")
    faster = arm.get("rtfx", "", "mean", "p50")
    if rtf is None and faster:
        rtf = 1.0 / faster
    if rtf is None or not 1.0 < rtf < 1e4 or called_rtf(arm) is not None:
        return None
    streams = next(
        (float(value) for key, value in arm.keys.items() if _counts(key) and isinstance(value, int | float)),
        arm.get("sessions") or arm.get("concurrency"),
    )
    return _Slow(rtf, streams, arm.get("ttft", "p50", "mean", "p99", ""), str(arm.place), arm.name, wall=False)


def _counts(key: str) -> bool:
    return key.lower() in {"sessions", "streams", "concurrency", "n", "voices", "calls"}


def _of_form(observed: Observed) -> list[_Slow]:
    rtf = observed.number("rtf", "tts_rtf", "synthesis_rtf")
    faster = observed.number("rtfx", "tts_rtfx")
    rtf = rtf if rtf is not None else 1.0 / faster if faster else None
    if rtf is None or not 1.0 < rtf < 1e4:
        return []
    setting = observed.setting("rtf", "tts_rtf", "synthesis_rtf", "rtfx", "tts_rtfx")
    streams = observed.number("streams", "sessions", "concurrency", "max_concurrency")
    place = str(setting.place) if setting is not None else ""
    return [_Slow(rtf, streams, observed.number("tts_ttfb_ms", "ttfb_ms"), place, "", wall=False)]


def _of_turns(observed: Observed) -> _Slow | None:
    """Agents say how long a synthesis took and how much audio it made."""
    for turns in turns_of(observed):
        took, made = turns.get("tts_duration"), turns.get("tts_audio")
        known = np.isfinite(took) & np.isfinite(made) & (made > 0) & (took > 0)
        if known.any():
            rtf = float(took[known].sum() / made[known].sum())
            if rtf > 1.0:
                first = turns.get("tts_ttfb")[known]
                heard = float(np.nanmedian(first)) if np.isfinite(first).any() else None
                return _Slow(rtf, None, heard, str(turns.place_of(int(np.flatnonzero(known)[0]))), "", wall=True)
    return None
