"""ASR_SILENT_HANG: speech goes in, nothing comes out, and the socket stays open."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name
from tailrace.diagnose.speech_evidence.encoder_cache import ENCODER_FULL, encoder_cache
from tailrace.diagnose.speech_evidence.speech_stated import silent_in_series, silent_stated
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["SilentHang", "is_speech"]

IDLE_S: Final = 5.0
"""Without any text for longer than this while somebody speaks, a stream hangs."""
VOICED_S: Final = 1.0
SPOKEN_SHARE: Final = 0.2
"""Speech with less voice in it than this is mostly pauses, in which silence is right."""
EMPTY_PER_S: Final = 1.0
"""Results that keep coming, empty, are another cause."""
_AUDIO: Final = (
    "the received audio with a voice detector's word (`kind: audio`, `voiced`): without it nobody can tell a hang from "
    "a pause"
)
_NO_DELTA: Final = re.compile(r"first_delta|no_delta|delta_gap|silent_for|no_text|without_text|since_last_delta")
_VOICED: Final = re.compile(r"voiced|speech_sent|audio_sent|spoken")
_SPEECH: Final = re.compile(
    r"realtime|audio|speech|voxtral|whisper|transcri|\basr\b|\bstt\b|canary|parakeet|funasr|paraformer", re.IGNORECASE
)


class _Silence(NamedTuple):
    """A stretch of one stream in which speech came in and no text went out."""

    stream: SpeechStream
    since: float
    until: float
    voiced_s: float
    loudest: float | None
    ended: bool
    """Text came again, or the stream ended by a result; otherwise nothing ever came."""
    empty: int

    @property
    def length(self) -> float:
        return self.until - self.since


class SilentHang(Cause):
    """No result with text for seconds while voiced audio arrives; or a full encoder cache with requests running."""

    code: ClassVar[str] = "ASR_SILENT_HANG"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "events of the stream: results with their receive times",
        "received audio with a voice detector's word (`kind: audio`, `voiced`)",
    )
    disproof: ClassVar[str] = "No voiced audio arrived in the gap: silence rightly gives no text."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """By the events; without them by an engine's encoder cache."""
        streams = speech_streams(observed)
        found = [silence for stream in streams for silence in _silences(stream)]
        if found:
            return self._of_events(found, len(streams))
        if any(_unheard(stream) for stream in streams):
            return self.insufficient(_AUDIO)
        stated = silent_in_series(self, observed) or silent_stated(self, observed)
        return self._of_cache(observed) or stated or self._of_form(observed)

    def _of_form(self, observed: Observed) -> Finding | None:
        """A form that tells how long no delta came, and that speech was sent meanwhile."""
        told = _silent_for(observed)
        if told is None or not is_speech(observed):
            return None
        silent, seconds = told
        voiced = next((one for one in observed.settings if one.number and _VOICED.search(one.name)), None)
        if voiced is None or voiced.number is None:
            return self.insufficient(_AUDIO)
        sent = f"{voiced.name} {voiced.number:g}"
        return self.finding(
            statement=f"No delta came for {seconds:g} s while speech was sent ({sent}): the session hangs with its "
            "socket open.",
            evidence=[
                Evidence(f"{silent.name}: {seconds:g} s", str(silent.place) or "form", silent.name, seconds, "s"),
                Evidence(sent, str(voiced.place) or "form", voiced.name, voiced.number),
            ],
            explains_ms=seconds * 1e3,
            relation=f"{seconds:g} s > {IDLE_S:g} s without text",
            n=1,
            advice="Give each session a timer for the first delta, for idleness and for `done`, each with its own "
            "reason; end the session when one runs out, open a new one and send the audio since the last result again.",
            price="A timer that is too short ends sessions of people who pause.",
            verify="tailrace diagnose events.jsonl",
            missing=["the events of the session with voiced audio (`kind: audio`)"],
        )

    def _of_events(self, found: list[_Silence], n: int) -> Finding:
        worst = max(found, key=lambda one: one.length)
        stream = worst.stream
        voice = "voiced audio" if stream.knows_voice else "audible audio"
        source = str(stream.place_of(int(np.searchsorted(stream.at, worst.until, side="left"))))
        missing = []
        if not stream.knows_voice:
            missing.append("a voice detector's word beside the audio (`voiced`): loudness alone may be noise")
        if worst.voiced_s < SPOKEN_SHARE * worst.length:
            missing.append("the audio of the gap: most of it was no speech")
        empty = f"{worst.empty} results without text came in it"
        loud = "" if worst.loudest is None else f", the loudest at {worst.loudest:.0f} dBFS"
        never = "" if worst.ended else "; no result came after it"
        evidence = [
            Evidence(
                text=f"stream {stream.name}: no non-empty delta for {worst.length:.1f} s, from {worst.since:.1f} s to "
                f"{worst.until:.1f} s{never}",
                source=source,
                name="silence",
                value=round(worst.length, 3),
                unit="s",
            ),
            Evidence(
                text=f"{worst.voiced_s:.1f} s of {voice} were received in it{loud}",
                source=source,
                name="voiced_audio",
                value=round(worst.voiced_s, 3),
                unit="s",
            ),
            Evidence(text=empty, source=source, name="empty_deltas", value=float(worst.empty)),
            Evidence(text=f"{len(found)} such gaps in {n} streams", source=source),
        ]
        return self.finding(
            statement=f"The recogniser said nothing for {worst.length:.1f} s while {worst.voiced_s:.1f} s of {voice} "
            f"arrived{never}: the session hangs with its socket open.",
            evidence=evidence,
            explains_ms=worst.length * 1e3,
            relation=f"{worst.until:.1f} - {worst.since:.1f} = {worst.length:.1f} s > {IDLE_S:g} s without text, "
            f"voiced {worst.voiced_s:.1f} s > {VOICED_S:g} s",
            n=len(found),
            advice="Give each session a timer for the first delta, for idleness and for `done`, each with its own "
            "reason; end the session when one runs out, open a new one and send the audio since the last result "
            "again. Log the silence, the audio sent since and its loudest 100 ms, so that a hang can be told from a "
            "pause. Of an engine ask how full its encoder cache is, and wait for `done` before the next commit (vLLM "
            "drops a commit while a generation runs).",
            price="A timer that is too short ends sessions of people who pause; audio sent again costs its decoding.",
            verify="tailrace diagnose events.jsonl",
            missing=missing,
            disproof_checked=[f"{worst.voiced_s:.1f} s of {voice} arrived in the gap", empty],
        )

    def _of_cache(self, observed: Observed) -> Finding | None:
        used = encoder_cache(observed)
        if used is None or used[0] < ENCODER_FULL or not is_speech(observed):
            return None
        share, source = used
        stuck = _stuck(observed)
        if stuck is None:
            return None
        running, zero_lines, place, lasted_s = stuck
        return self.finding(
            statement=f"The encoder cache is {share:.0%} full while Running is {running:g} and nothing is generated: a "
            "speech session that cannot get room in the encoder cache may hang the others.",
            evidence=[
                Evidence(
                    text=f"encoder cache usage {share:.0%}", source=source, name="encoder_cache_usage", value=share
                ),
                Evidence(
                    text=f"Running {running:g} with 0 tokens/s generated in {zero_lines} log lines in a row",
                    source=place,
                    name="running",
                    value=running,
                ),
            ],
            explains_ms=lasted_s * 1e3 if lasted_s else None,
            relation=f"encoder cache {share:.0%}, Running {running:g} > 0, 0 tokens/s over {zero_lines} lines",
            n=zero_lines,
            advice="Admit fewer audio sessions at once, or give the encoder cache more room; end a session that gets "
            "no delta by a timer and open it again.",
            price="Fewer sessions, or memory taken from the KV cache.",
            verify="tailrace diagnose vllm.log events.jsonl",
            missing=["a stack dump of the engine while it hangs, or the session's events with voiced audio"],
            rivals=["ENGINE_STALL"],
        )


def _silent_for(observed: Observed) -> tuple[Setting, float] | None:
    """What a form says of the time without a delta, and how long that is (s)."""
    for setting in observed.settings:
        value = setting.number
        if value is None or not _NO_DELTA.search(setting.name):
            continue
        seconds = in_unit(value, setting.unit or unit_in_name(setting.name)[1] or "s", "s")
        if seconds is not None and seconds > IDLE_S:
            return setting, seconds
    return None


def _silences(stream: SpeechStream) -> list[_Silence]:
    if not (stream.knows_voice or stream.knows_level):
        return []
    filled = stream.at[stream.words]
    edges = [float(stream.at[0]) - 1e-9, *filled.tolist(), float(stream.at[-1])]
    spoken = stream.at[stream.sounding]
    blank = stream.at[stream.deltas & ~stream.words]
    out = []
    for index, (begin, end) in enumerate(pairwise(edges)):
        if end - begin <= IDLE_S:
            continue
        voiced = spoken[(spoken > begin) & (spoken <= end)]
        if not voiced.size:
            continue
        since = max(begin, float(voiced[0]))
        heard = stream.sounding_s(begin, end)
        empty = int(((blank > since) & (blank < end)).sum())
        last = index == len(edges) - 2
        # At the end of the log only speech that still came in says that text is due.
        until = float(voiced[-1]) if last else end
        if until - since <= IDLE_S or heard <= VOICED_S or empty > EMPTY_PER_S * (until - since):
            continue
        out.append(_Silence(stream, since, until, heard, stream.loudest(begin, end), not last, empty))
    return out


def _unheard(stream: SpeechStream) -> bool:
    """Whether there are results, and nothing is known of the audio that they are results of."""
    return not (stream.knows_voice or stream.knows_level) and bool(stream.deltas.any())


def is_speech(observed: Observed) -> bool:
    """Whether any word of the evidence says that it is about speech."""
    told = [str(item.value) for item in observed.settings] + [item.name for item in observed.settings] + observed.notes
    return any(_SPEECH.search(text) for text in told)


def _stuck(observed: Observed) -> tuple[float, int, str, float] | None:
    """(Running, lines, place, seconds) of the longest stretch in which requests ran and nothing was generated."""
    best: tuple[float, int, str, float] | None = None
    for running in observed.of_series("running"):
        for generated in observed.of_series("output_tok_s", **running.labels):
            if generated.place.source != running.place.source or len(generated) != len(running):
                continue
            length = 0
            for index in range(len(running)):
                still = running.values[index] > 0 and generated.values[index] == 0
                length = length + 1 if still else 0
                if length >= 2 and (best is None or length > best[1]):
                    # A line tells of the interval before it.
                    lasted = float(running.at[index] - running.at[max(index - length, 0)])
                    best = (float(running.values[index]), length, str(running.line_of(index)), lasted)
    if best is None:
        now = observed.number("running", "engine_running")
        made = observed.number("decode_tok_s", "output_tok_s", "tok_s")
        if now and made == 0:
            setting = observed.setting("running", "engine_running")
            best = (now, 1, str(setting.place) if setting is not None else "", 0.0)
    return best
