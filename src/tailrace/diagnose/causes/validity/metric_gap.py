"""METRIC_GAP: the number that is wanted is not measured by the system that reports it."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.diagnose.record_evidence.held_by_engine import held_by_engine
from tailrace.diagnose.series_evidence.held_in_scrapes import held_in_scrapes
from tailrace.diagnose.speech_evidence.turns import turns_of
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["MetricGap"]

FEWEST: Final = 3
_DURATION: Final = re.compile(r"(?:stt|asr|transcri\w*|recogni\w*|speech).*(?:duration|latency)|^duration(?:_m?s)?$")
_SPEECH: Final = re.compile(r"(?<![a-z])(?:stt|asr)(?![a-z])|sttmetrics|transcri|recogni|speech|livekit", re.IGNORECASE)
_ADVICE: Final = (
    "Measure it where the stream passes: first-partial and final latency at a gateway, from the audio's receipt to the "
    "result's, or end of speech to final in the agent (transcription delay)."
)


def _unfilled(observed: Observed) -> tuple[int, float, str, str] | None:
    """(rows, seconds of audio, place, field) of rows with audio of which the `duration` is 0 in each."""
    rows = []
    for arm in observed.arms:
        field = next((v for v in arm.values.values() if _DURATION.search(v.label) and not v.relative), None)
        audio = next((v for v in arm.values.values() if "audio" in f"{v.label} {v.qualifier}" and v.value > 0), None)
        if field is not None and audio is not None and field is not audio:
            rows.append((field, in_unit(audio.value, audio.unit or "s", "s")))
    lengths = [seconds for _, seconds in rows if seconds is not None]  # audio in tokens or bytes is no length
    if len(lengths) < FEWEST or any(field.value for field, _ in rows):
        return None
    field = rows[0][0]
    return len(lengths), sum(lengths), str(field.place), field.label


class MetricGap(Cause):
    """A field that is always 0 where work was done: nobody fills it."""

    code: ClassVar[str] = "METRIC_GAP"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("the field for several utterances", "the audio that they held")
    disproof: ClassVar[str] = "The field is not 0 for some utterance."
    action: ClassVar[Action] = Action.COLLECT
    beside_when_suspected: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """What the engine holds against what the records account for."""
        return held_by_engine(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """A recogniser's `duration` that is 0 for every utterance."""
        for turns in turns_of(observed):
            durations = turns.get("stt_duration")
            known = durations[np.isfinite(durations)]
            if not known.size or bool((np.abs(known) > 1e-9).any()):
                continue
            audio = turns.get("stt_audio")
            heard = audio[np.isfinite(audio)]
            return self._found(
                int(known.size),
                float(heard.sum()) / 1e3 if heard.size and heard.sum() > 0 else None,
                str(turns.place_of(int(np.flatnonzero(np.isfinite(durations))[0]))),
                "duration",
            )
        return self._of_form(observed) or held_in_scrapes(self, observed)

    def _of_form(self, observed: Observed) -> Finding | None:
        told = " ".join([*observed.notes, *(f"{item.name} {item.value}" for item in observed.settings)])
        for setting in observed.settings:
            plain = setting.name.lower()
            if setting.number == 0 and _DURATION.search(plain) and (_SPEECH.search(plain) or _SPEECH.search(told)):
                return self._found(1, None, str(setting.place), setting.name)
        unfilled = _unfilled(observed)
        if unfilled is not None:
            return self._found(*unfilled)
        for arm in observed.arms:
            for value in arm.values.values():
                words = f"{value.label} {arm.name}"
                if (
                    value.value == 0
                    and not value.relative
                    and _DURATION.search(value.quantity)
                    and _SPEECH.search(words)
                ):
                    return self._found(1, None, str(value.place), value.label or value.quantity)
        return None

    def _found(self, n: int, audio_s: float | None, place: str, field: str) -> Finding:
        evidence = [
            Evidence(
                text=f"{field} is 0 for all {n} utterance{'s' if n != 1 else ''}", source=place, name=field, value=0.0
            )
        ]
        missing = []
        heard = ""
        if audio_s is not None:
            heard = f", with {audio_s:.1f} s of audio recognised"
            evidence.append(
                Evidence(text=f"{audio_s:.1f} s of audio in them", source=place, name="audio", value=audio_s, unit="s")
            )
        else:
            missing.append("the audio that was recognised in them: without any, 0 would be right")
        if n < 2:
            missing.append("the field for more utterances")
        return self.finding(
            statement=f"`{field}` of the recogniser is always 0{heard}: streaming recognition does not measure it, "
            "so the wanted latency is not in these numbers.",
            evidence=evidence,
            explains_ms=None,
            relation=f"{field} = 0 in {n} of {n}",
            n=n,
            advice=_ADVICE,
            price="None beyond the measuring.",
            verify="tailrace diagnose events.jsonl",
            missing=missing,
        )
