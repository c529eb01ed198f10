"""Events of streaming speech, one JSON object a line: audio that came in, partials and finals that came out.

The keys are `stream_id, utt_id, seq, t_recv, kind, mode, text, audio_start_s, audio_end_s, segment_final, turn_final,
confidence, stability, raw_type`; received audio is `kind: "audio"` with `voiced` and `rms_dbfs`. A recogniser's own
messages are read as well, where somebody wrote beside each when it was received (`t_recv`).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.diagnose.observed import Clock, Observed, Place, Rows
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.json_objects import Objects
from tailrace.diagnose.readers.speech_dialects import RECEIVED, normalised
from tailrace.model.errors import InputError

__all__ = ["SPEECH_EVENTS"]

_NAME: Final = "speech events"
_SECONDS: Final = {
    "t_recv": RECEIVED,
    "audio_start": ("audio_start_s", "audio_start", "start_s", "start"),
    "audio_end": ("audio_end_s", "audio_end", "end_s", "end", "audio_s", "cursor_s", "audio_cursor_s", "position_s"),
    "stamp": ("transcript_stamp_s", "transcript_stamp", "stamp_s", "timestamp_s", "timestamp"),
}
"""Column -> the keys that may hold it, in seconds; with `_ms` instead of `_s`, in milliseconds."""
_NUMBERS: Final = {
    "seq": ("seq",),
    "rms": ("rms_dbfs", "rms_db", "level_dbfs"),
    "confidence": ("confidence",),
    "stability": ("stability",),
}
_FLAGS: Final = {
    "voiced": ("voiced", "is_speech", "speech", "vad", "voice", "speaking", "has_speech"),
    "segment_final": ("segment_final", "is_final"),
                 "turn_final": ("turn_final", "end_of_turn", "speech_final")}  # fmt: skip
_TEXTS: Final = {
    "stream": ("stream_id", "session_id", "stream"),
    "utterance": ("utt_id", "item_id", "utterance"),
    "kind": ("kind",),
    "mode": ("mode",),
    "text": ("text", "transcript", "delta"),
    "raw_type": ("raw_type", "type"),
}
_KINDS: Final = {
    **dict.fromkeys(("partial_transcript", "interim_transcript", "interim_result", "partial_result"), "partial"),
    **dict.fromkeys(("transcript", "result"), "partial"),
    **dict.fromkeys(("final_transcript", "final_result"), "final"),
    **dict.fromkeys(("audio_chunk", "audio_frame", "frame"), "audio"),
    "interim": "partial", "delta": "partial", "end_of_turn": "eot", "endpoint": "eot", "done": "final",
}  # fmt: skip
_LONGEST_AUDIO_S: Final = 15.0
"""Whoever logs received audio does so at least this often."""
_KIND: Final = re.compile(r'"kind"\s*:\s*"(?:audio|partial|interim|delta|final|eot|speech_start|speech_end|usage)"')
_RAW: Final = re.compile(
    r'"type"\s*:\s*"(?:Results|Turn|transcription\.(?:delta|done)|conversation\.item\.input_audio_transcription\.)'
    r'|"event"\s*:\s*"(?:Update|EndOfTurn|StartOfTurn|transcription\.(?:delta|done))"'
    r'|"(?:type|event|event_type)"\s*:\s*"(?:partial|interim|final)(?:_transcript|_result)?"'
    r'|"audio_?[pP]rocessed"\s*:|"partial_start_ms"\s*:'
)
_RECEIVED: Final = re.compile(r'"(?:t_recv(?:_m?s)?|received_at|recv_s|t|ts|t_s|ts_s|time_s|recv_ts)"\s*:')
_POSITION: Final = re.compile(r'"(?:t_recv(?:_m?s)?|audio_(?:start|end)(?:_m?s)?)"\s*:')


def _matches(head: str, name: str) -> bool:  # noqa: ARG001
    start = head[:16384]
    if start.lstrip()[:1] not in {"{", "["}:
        return False
    if _KIND.search(start) and _POSITION.search(start):
        return True
    return bool(_RECEIVED.search(start) and _RAW.search(start))


def _read(path: Path, name: str) -> Observed:
    objects = Objects(path, name, _NAME)
    columns: dict[str, list[Any]] = {key: [] for key in (*_SECONDS, *_NUMBERS, *_FLAGS, *_TEXTS)}
    at: list[int] = []
    for line, found in objects:
        event = normalised(found)
        row = _row(event) if event is not None else None
        if row is None:
            objects.refuse(line, found)
            continue
        at.append(line)
        for key, cells in columns.items():
            cells.append(row[key])
    if not at:
        raise InputError(
            "no event says when it was received",
            place=str(path),
            remedy="Write t_recv (seconds on one clock) beside each event.",
        )
    _place_audio(columns)
    return Observed(
        rows=[
            Rows(
                kind="speech",
                columns={
                    key: np.array(cells, dtype=object if key in _TEXTS else np.float64)
                    for key, cells in columns.items()
                },
                clock=Clock.RELATIVE,
                lines=np.array(at, dtype=np.int64),
                place=Place(name),
            )
        ],
        understood=[objects.understood("events")],
    )


def _place_audio(columns: dict[str, list[Any]]) -> None:
    """Audio without a position is where the last one ended, up to its own end, or to when it came (a live one)."""
    ended: dict[str, float] = {}
    for row, kind in enumerate(columns["kind"]):
        if kind != "audio":
            continue
        stream = columns["stream"][row]
        if math.isnan(columns["audio_end"][row]):
            columns["audio_end"][row] = columns["t_recv"][row]
        end = columns["audio_end"][row]
        if math.isnan(columns["audio_start"][row]):
            last = ended.get(stream, end)
            columns["audio_start"][row] = last if 0 <= end - last <= _LONGEST_AUDIO_S else end
        ended[stream] = end


def _row(event: dict[str, Any]) -> dict[str, Any] | None:
    out: dict[str, Any] = {column: _first_seconds(event, keys) for column, keys in _SECONDS.items()}
    if math.isnan(out["t_recv"]):
        return None
    out.update({column: _first_number(event, keys) for column, keys in _NUMBERS.items()})
    out.update({column: _first_flag(event, keys) for column, keys in _FLAGS.items()})
    out.update({column: _first_text(event, keys) for column, keys in _TEXTS.items()})
    out["kind"] = _KINDS.get(out["kind"], out["kind"])
    if not out["kind"]:
        return None
    words = event.get("words")
    if isinstance(words, list) and words and all(isinstance(word, dict) for word in (words[0], words[-1])):
        out["audio_start"] = _either(out["audio_start"], _first_seconds(words[0], ("start_s", "start")))
        out["audio_end"] = _either(out["audio_end"], _first_seconds(words[-1], ("end_s", "end")))
    return out


def _either(value: float, other: float) -> float:
    return other if math.isnan(value) else value


def _plain(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _first_seconds(event: dict[str, Any], keys: tuple[str, ...]) -> float:
    for key in keys:
        if event.get(key) is not None:
            return _plain(event[key])
        thousandth = f"{key.removesuffix('_s')}_ms"
        if event.get(thousandth) is not None:
            return _plain(event[thousandth]) / 1000.0
    return math.nan


def _first_number(event: dict[str, Any], keys: tuple[str, ...]) -> float:
    return next((_plain(event[key]) for key in keys if event.get(key) is not None), math.nan)


def _first_flag(event: dict[str, Any], keys: tuple[str, ...]) -> float:
    found = next((event[key] for key in keys if event.get(key) is not None), None)
    if isinstance(found, str):
        found = {"true": True, "false": False, "yes": True, "no": False}.get(found.lower())
    return math.nan if found is None else float(bool(found))


def _first_text(event: dict[str, Any], keys: tuple[str, ...]) -> str:
    found = next((event[key] for key in keys if event.get(key) is not None), "")
    if isinstance(found, str):
        return found
    return str(found) if isinstance(found, int | float) else msgspec.json.encode(found, enc_hook=str).decode()[:200]


SPEECH_EVENTS: Final = Format(name=_NAME, matches=_matches, read=_read)
