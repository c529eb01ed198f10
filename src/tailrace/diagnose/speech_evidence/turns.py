"""Turns of a conversation: what each waited for, from agents' own metrics or from a table of turns."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Arm, Observed, Place, Rows
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name

__all__ = ["COLUMNS", "Turns", "turns_of"]

Floats = NDArray[np.float64]

COLUMNS: Final = (
    "end_of_turn",
    "transcription_delay",
    "llm_ttft",
    "tts_ttfb",
    "total",
    "stt_duration",
    "stt_audio",
    "tts_duration",
    "tts_audio",
    "speech_end",
    "final_recv",
    "speech_span",
    "turn_end",
    "answer_begins",
)
"""What a turn may say, in ms."""
_SERIES: Final = {
    "end_of_turn_delay": "end_of_turn",
    "end_of_utterance_delay": "end_of_turn",
    "eou_delay": "end_of_turn",
    "transcription_delay": "transcription_delay",
    "llm_ttft": "llm_ttft",
    "ttft": "llm_ttft",
    "tts_ttfb": "tts_ttfb",
    "ttfb": "tts_ttfb",
    **dict.fromkeys(
        ("final_receive", "final", "final_transcript", "transcript_final", "final_at", "final_received", "stt_final"),
        "final_recv",
    ),
    **dict.fromkeys(
        (
            "user_stopped",
            "user_stop",
            "speech_stop",
            "speech_stopped",
            "speech_ended",
            "stopped_speaking",
            "user_stopped_speaking",
            "vad_end",
            "user_end",
            "speech_end_at",
            "user_speech_end",
            "user_audio_end",
            "caller_stopped",
        ),
        "speech_end",
    ),
    **dict.fromkeys(("eot", "end_of_turn_at", "turn_end", "turn_ended", "eou", "end_of_utterance_at"), "turn_end"),
    **dict.fromkeys(("end_of_utterance", "eot_delay", "eou_delay_ms", "turn_delay"), "end_of_turn"),
    **dict.fromkeys(("transcription", "stt_delay", "final_delay", "stt_final_delay"), "transcription_delay"),
    "stt_duration": "stt_duration",
    **dict.fromkeys(
        (
            *("voice_to_voice", "v2v", "silence_measured", "measured_silence", "silence", "response_latency"),
            *(
                "response_delay",
                "perceived_latency",
                "perceived_delay",
                "turn_latency",
                "mouth_to_ear",
                "heard_silence",
            ),
        ),
        "total",
    ),
    **dict.fromkeys(
        (
            *("agent_audio_start", "agent_speech_start", "agent_started", "agent_start", "bot_started", "bot_start"),
            *("bot_audio_start", "bot_started_speaking", "agent_started_speaking", "playback_start", "first_audio_out"),
        ),
        "answer_begins",
    ),
}
"""Other names for them."""


class Turns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row a turn, in the order in which they were said."""

    names: list[str]
    values: dict[str, Floats]
    """By the names of `COLUMNS`, in ms; NaN where a turn does not say it."""
    place: Place = Place()
    lines: list[int] = []

    def __len__(self) -> int:
        return len(self.names)

    def get(self, name: str) -> Floats:
        """A column; all NaN where there is none."""
        return self.values.get(name, np.full(len(self.names), np.nan))

    def has(self, *names: str) -> bool:
        """Whether each of these columns holds anything."""
        return all(bool(np.isfinite(self.get(name)).any()) for name in names)

    def place_of(self, index: int) -> Place:
        """Where a turn stands."""
        return Place(self.place.source, self.lines[index]) if index < len(self.lines) else self.place


def turns_of(observed: Observed) -> list[Turns]:
    """Every table of turns in the evidence, and series along turns."""
    out = [_of_rows(rows) for rows in observed.table("turns")]
    by_source: dict[str, dict[str, Floats]] = {}
    axes: dict[str, Floats] = {}
    lines: dict[str, list[int]] = {}
    for series in observed.series:
        if series.axis != "turn":
            continue
        source = series.place.source
        if source in axes and len(axes[source]) != len(series):
            continue
        plain, unit = unit_in_name(series.name.lower())
        name = _column(plain)
        scale = in_unit(1.0, series.unit or unit or "ms", "ms")
        if not name or scale is None:
            continue
        axes.setdefault(source, series.at)
        if series.lines is not None:
            lines.setdefault(source, [int(line) for line in series.lines])
        by_source.setdefault(source, {}).setdefault(name, series.values * scale)
    out += [
        Turns(
            names=[f"{at:g}" for at in axes[source]],
            values=values,
            place=Place(source),
            lines=lines.get(source, []),
        )
        for source, values in by_source.items()
    ]
    out += _of_arms(observed)
    return [_derived(turns) for turns in out if len(turns)]


def _derived(turns: Turns) -> Turns:
    """Delays from stamps, where the turns have the stamps only."""
    values = dict(turns.values)
    for delay, stamp in (("end_of_turn", "turn_end"), ("transcription_delay", "final_recv")):
        if turns.has("speech_end", stamp) and turns.has("turn_end") and not turns.has(delay):
            values[delay] = turns.get(stamp) - turns.get("speech_end")
    if turns.has("speech_end", "answer_begins") and not turns.has("total"):
        values["total"] = turns.get("answer_begins") - turns.get("speech_end")
    return msgspec.structs.replace(turns, values=values) if len(values) > len(turns.values) else turns


def _of_arms(observed: Observed) -> list[Turns]:
    """Rows of a table that say when turns end: one source, one table."""
    by_source: dict[str, list[Arm]] = {}
    for arm in observed.arms:
        if any(value.quantity in {"end_of_turn", "transcription_delay"} for value in arm.values.values()):
            by_source.setdefault(arm.place.source, []).append(arm)
    out = []
    for source, arms in by_source.items():
        cells = [_cells(arm) for arm in arms]
        names = [name for name in COLUMNS if any(name in row for row in cells)]
        values = {name: np.array([row.get(name, np.nan) for row in cells]) for name in names}
        lines = [arm.place.line for arm in arms]
        out.append(Turns(names=[arm.name for arm in arms], values=values, place=Place(source), lines=lines))
    return out


def _cells(arm: Arm) -> dict[str, float]:
    out: dict[str, float] = {}
    for value in arm.values.values():
        if value.relative or value.unit != "ms":
            continue
        words = f"{value.qualifier} {value.label}".lower()
        name = value.quantity if value.quantity in COLUMNS else ""
        if value.quantity == "ttft":
            name = "tts_ttfb" if re.search(r"tts|synth|voice|audio|ttfb", words) else "llm_ttft"
        if name:
            out.setdefault(name, value.value)
    return out


def _column(plain: str) -> str:
    return plain if plain in COLUMNS else _SERIES.get(plain, "")


def _of_rows(rows: Rows) -> Turns:
    return Turns(
        names=rows.texts("turn"),
        values={
            name: rows.numbers(theirs) for theirs in rows.columns if (name := _column(unit_in_name(theirs.lower())[0]))
        },
        place=rows.place,
        lines=[int(line) for line in rows.lines] if rows.lines is not None else [],
    )
