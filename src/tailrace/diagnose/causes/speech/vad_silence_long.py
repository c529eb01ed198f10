"""ASR_VAD_SILENCE_LONG: every turn waits out the silence that somebody configured."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.silences import Silence, configured_silences
from tailrace.diagnose.speech_evidence.speech_on_arms import silence_on_arms
from tailrace.diagnose.speech_evidence.turns import Turns, turns_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["VadSilenceLong"]

LONG_MS: Final = 700.0
"""People take a pause in a conversation of about so long for an answer that does not come."""
EARLY: Final = 0.9
FEW_EARLY: Final = 0.2
NEAR: Final = 0.25
EVEN: Final = 0.10
"""Delays that a timer makes differ by less than this (standard deviation / mean)."""


class VadSilenceLong(Cause):
    """End-of-turn delay is the configured silence, and that is long."""

    code: ClassVar[str] = "ASR_VAD_SILENCE_LONG"
    stage: ClassVar[str] = "postprocess"
    needs: ClassVar[tuple[str, ...]] = ("end-of-turn delays of turns", "the configured silence of the turn detector")
    disproof: ClassVar[str] = "The delay follows the transcription delay, or stays when the silence is shortened."

    def observe(self, observed: Observed) -> Finding | None:
        """Delays that equal the silence; or that are all alike, where nobody told the silence."""
        for turns in turns_of(observed):
            ends = turns.get("end_of_turn")
            ends = ends[np.isfinite(ends)]
            if not ends.size or float(np.median(ends)) < LONG_MS or _waits_for_final(turns):
                continue
            typical = float(np.median(ends))
            near = [
                one
                for one in configured_silences(observed)
                if one.ms >= LONG_MS and abs(typical - one.ms) <= NEAR * one.ms and _waited(ends, one.ms)
            ]
            if near:
                return self._found(turns, ends, typical, min(near, key=lambda one: abs(one.ms - typical)))
            told = configured_silences(observed)
            if ends.size >= 3 and float(ends.std() / ends.mean()) < EVEN and not told:
                return self._found(turns, ends, typical, None)
        return silence_on_arms(self, observed)

    def _found(self, turns: Turns, ends: np.ndarray, typical: float, silence: Silence | None) -> Finding:
        source = str(turns.place_of(0))
        evidence = [
            Evidence(
                text=f"end of turn {typical:.0f} ms after the speech (median of {ends.size}; {ends.min():.0f} to "
                f"{ends.max():.0f})",
                source=source,
                name="end_of_turn",
                value=round(typical, 1),
                unit="ms",
            )
        ]
        missing = []
        if silence is not None:
            own = typical - silence.ms
            evidence += [
                Evidence(
                    text=f"{silence.name} waits for {silence.ms:.0f} ms of silence",
                    source=silence.place,
                    name=silence.name,
                    value=silence.ms,
                    unit="ms",
                ),
                Evidence(text=f"own part of the delay {own:.0f} ms", source=source, value=round(own, 1), unit="ms"),
            ]
            statement = (
                f"Each turn ends {typical:.0f} ms after the speech, of which {silence.ms:.0f} ms are the configured "
                f"silence; {own:.0f} ms are the system's own."
            )
            relation = (
                f"{typical:.0f} - {silence.ms:.0f} = {own:.0f} ms ({typical / 1e3:.3g} - {silence.ms / 1e3:.3g} s)"
            )
        else:
            statement = (
                f"Each turn ends about {typical:.0f} ms after the speech, whatever was said: that looks like a timer."
            )
            relation = f"standard deviation / mean = {float(ends.std() / ends.mean()):.2f} < {EVEN:g}"
            missing.append("the configured silence (endpointing, utterance end, voice detector)")
        if not turns.has("transcription_delay"):
            missing.append("the transcription delay of the turns, which the delay could follow instead")
        return self.finding(
            statement=statement,
            evidence=evidence,
            explains_ms=typical,
            relation=relation,
            n=int(ends.size),
            advice="Shorten the silence (300 to 500 ms), or let a turn detector that reads the words decide and keep "
            "the timer as its upper bound.",
            price="Shorter silences cut off people who pause in a sentence: count interrupted turns beside it.",
            verify="tailrace diagnose metrics.jsonl",
            missing=missing,
            disproof_checked=["the delay is not the transcription delay"] if turns.has("transcription_delay") else [],
        )


def _waited(ends: np.ndarray, silence_ms: float) -> bool:
    """Whether (nearly) no turn ended before its silence was over: a timer that waits does not end early."""
    return float((ends < EARLY * silence_ms).mean()) <= FEW_EARLY


def _waits_for_final(turns: Turns) -> bool:
    """Whether the turns end with their finals: then the final is late, not the timer long."""
    ends, finals = turns.get("end_of_turn"), turns.get("transcription_delay")
    known = np.isfinite(ends) & np.isfinite(finals)
    return bool(known.any() and float(np.median(ends[known] - finals[known])) < NEAR * float(np.median(ends[known])))
