"""ASR_FINAL_LATE: the turn ends only when the recogniser's final comes, and that comes late."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.silences import configured_silences
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.diagnose.speech_evidence.turns import Turns, turns_of
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["FinalLate"]

LATE_MS: Final = 1000.0
"""A turn that ends later than this after the speech is late."""
ALIKE: Final = 0.05
ALIKE_MS: Final = 50.0
_ADVICE: Final = (
    "Connect the recogniser before the first turn (open the stream when the call begins) and keep it open; ask for the "
    "final when the voice detector sees the end of speech (`Finalize`, `input_audio_buffer.commit`) and do not wait "
    "for the recogniser's own endpoint; end the turn on a stable partial where the final is slow."
)
_PRICE: Final = "An idle recogniser session is paid for; an early end may cut off people who pause."


class _Late(NamedTuple):
    turns: Turns
    row: int
    end_ms: float
    final_ms: float


class FinalLate(Cause):
    """End-of-turn delay is the transcription delay: it waits for the final, not for the endpoint timer."""

    code: ClassVar[str] = "ASR_FINAL_LATE"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "end-of-turn delay and transcription delay of each turn (agent metrics), or finals with the audio they end at",
    )
    disproof: ClassVar[str] = "The delay is the configured silence: then it waits for the timer."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """By turns; without them by the finals of streams."""
        tables = turns_of(observed)
        late = [one for turns in tables for one in _late(turns)]
        if late:
            return self._of_turns(late, observed)
        bare = [turns for turns in tables if turns.has("end_of_turn") and not turns.has("transcription_delay")]
        if bare:
            found = self._without_transcription(bare[0])
            if found is not None:
                return found
        return self._of_streams(speech_streams(observed))

    def _of_turns(self, late: list[_Late], observed: Observed) -> Finding | None:
        worst = max(late, key=lambda one: one.end_ms)
        turns, index = worst.turns, worst.row
        timers = [silence for silence in configured_silences(observed) if _alike(silence.ms, worst.end_ms)]
        if timers:
            return None
        source = str(turns.place_of(index))
        end, final = worst.end_ms / 1e3, worst.final_ms / 1e3
        rest = np.array([value for at, value in enumerate(turns.get("end_of_turn")) if at not in {x.row for x in late}])
        rest = rest[np.isfinite(rest)]
        first_only = {one.row for one in late if one.turns is turns} == {0} and rest.size > 0
        where = ""
        if first_only:
            others = f"{np.median(rest) / 1e3:.2f} s"
            where = f"; only the first turn: the others end after {others}, which points to a cold connection"
        total, relation, parts = _voice_to_voice(turns, index)
        evidence = [
            Evidence(
                text=f"turn {turns.names[index]}: end of turn {end:.2f} s after the speech",
                source=source,
                name="end_of_turn",
                value=round(worst.end_ms, 3),
                unit="ms",
            ),
            Evidence(
                text=f"turn {turns.names[index]}: transcription delay {final:.2f} s",
                source=source,
                name="transcription_delay",
                value=round(worst.final_ms, 3),
                unit="ms",
            ),
            *parts,
        ]
        if first_only:
            evidence.append(
                Evidence(text=f"the other turns end after {np.median(rest) / 1e3:.2f} s (median)", source=source)
            )
        waited = f", {total:.2f} s voice to voice" if total is not None else ""
        checked = [f"end of turn {end:.2f} s and transcription delay {final:.2f} s are alike"]
        checked.append(
            "no configured silence is known"
            if not configured_silences(observed)
            else f"the configured silence is {configured_silences(observed)[0].ms / 1e3:.2f} s"
        )
        return self.finding(
            statement=f"The turn ends {end:.2f} s after the speech, which is the transcription delay of {final:.2f} s: "
            f"it waits for the recogniser's final, not for an endpoint timer{waited}{where}.",
            evidence=evidence,
            explains_ms=worst.end_ms - (float(np.median(rest)) if rest.size else 0.0),
            relation=f"{end:.2f} s = {final:.2f} s" + (f"; {relation}" if relation else ""),
            n=len(late),
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose metrics.jsonl",
            disproof_checked=checked,
        )

    def _without_transcription(self, turns: Turns) -> Finding | None:
        ends = turns.get("end_of_turn")
        if not np.nanmax(ends) > LATE_MS:
            return None
        index = int(np.nanargmax(ends))
        end = float(ends[index]) / 1e3
        source = str(turns.place_of(index))
        return self.finding(
            statement=f"A turn ends only {end:.2f} s after the speech.",
            evidence=[
                Evidence(
                    text=f"turn {turns.names[index]}: end of turn {end:.2f} s after the speech",
                    source=source,
                    name="end_of_turn",
                    value=round(end * 1e3, 3),
                    unit="ms",
                )
            ],
            explains_ms=end * 1e3,
            relation=f"{end:.2f} s > {LATE_MS / 1e3:.0f} s",
            n=1,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose metrics.jsonl",
            missing=["the transcription delay of the same turn: it says whether the final or a timer was waited for"],
            rivals=["ASR_VAD_SILENCE_LONG"],
        )

    def _of_streams(self, streams: list[SpeechStream]) -> Finding | None:
        worst: tuple[float, SpeechStream, int, int, bool] | None = None
        for stream in streams:
            finals = np.flatnonzero((stream.kind == "final") & stream.words & np.isfinite(stream.end))
            received = stream.received_at(stream.end[finals])
            anchored = bool(np.isfinite(received).any())
            late = stream.at[finals] - (received if anchored else stream.end[finals])
            late = late[np.isfinite(late)]
            if late.size and float(np.median(late)) * 1e3 > LATE_MS:
                median = float(np.median(late))
                if worst is None or median > worst[0]:
                    worst = (median, stream, int(finals[int(np.argmax(late))]), int(late.size), anchored)
        if worst is None:
            return None
        median, stream, index, n, anchored = worst
        source = str(stream.place_of(index))
        missing = ["the end-of-turn events, which say whether the turn waits for the final"]
        if not anchored:
            missing.append("when the audio was received (`kind: audio`): the delay is measured from its position")
        return self.finding(
            statement=f"The finals come {median:.2f} s after the audio that they end at (median of {n}).",
            evidence=[
                Evidence(
                    text=f"stream {stream.name}: finals {median:.2f} s after the audio of their last word, "
                    f"median of {n}",
                    source=source,
                    name="final_latency",
                    value=round(median * 1e3, 1),
                    unit="ms",
                )
            ],
            explains_ms=median * 1e3,
            relation=f"{median:.2f} s > {LATE_MS / 1e3:.0f} s",
            n=n,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose events.jsonl",
            missing=missing,
        )


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= max(ALIKE_MS, ALIKE * max(one, other))


def _late(turns: Turns) -> list[_Late]:
    ends, finals = turns.get("end_of_turn"), turns.get("transcription_delay")
    return [
        _Late(turns, index, float(end), float(final))
        for index, (end, final) in enumerate(zip(ends, finals, strict=True))
        if end > LATE_MS and _alike(float(end), float(final))
    ]


def _voice_to_voice(turns: Turns, index: int) -> tuple[float | None, str, list[Evidence]]:
    """(voice to voice in s, its sum, the parts) of a turn that says what came after its end."""
    source = str(turns.place_of(index))
    parts = [("end of turn", float(turns.get("end_of_turn")[index]))]
    evidence = []
    for words, column in (("LLM first token", "llm_ttft"), ("first audio of the voice", "tts_ttfb")):
        value = float(turns.get(column)[index])
        if np.isfinite(value):
            parts.append((words, value))
            evidence.append(
                Evidence(
                    text=f"turn {turns.names[index]}: {words} {value / 1e3:.2f} s",
                    source=source,
                    name=column,
                    value=round(value, 3),
                    unit="ms",
                )
            )
    if len(parts) < 2:
        return None, "", evidence
    total = sum(value for _, value in parts) / 1e3
    added = " + ".join(f"{value / 1e3:.2f}" for _, value in parts)
    evidence.append(
        Evidence(
            text=f"voice to voice {total:.2f} s",
            source=source,
            name="voice_to_voice",
            value=round(total * 1e3, 1),
            unit="ms",
        )
    )
    return total, f"{added} = {total:.2f} s voice to voice", evidence
