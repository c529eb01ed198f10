"""What voice agents say of their turns: LiveKit's metric objects, Deepgram's and Bolna's reports, pipecat's metrics.

Seconds and milliseconds are told apart by the names: LiveKit's snake_case and Deepgram's fields are seconds, names
that end in `Ms` and Bolna's fields are milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tailrace.diagnose.observed import Clock, Observed, Place, Rows, Setting, Understood
from tailrace.diagnose.readers.facts import settings_of
from tailrace.diagnose.readers.foreign_json import lines
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.headings import stamp_ms
from tailrace.diagnose.readers.json_objects import BEFORE, Objects
from tailrace.diagnose.speech_evidence.turns import COLUMNS
from tailrace.model.errors import InputError

__all__ = ["VOICE_PAYLOAD"]

_NAME: Final = "voice agent metrics"
_TELLS: Final = re.compile(
    r'"(?:end_?[oO]f_?[uU]tterance_?[dD]elay|transcription_?[dD]elay)(?:Ms|_ms|_s)?"\s*:'
    r'|"type"\s*:\s*"(?:eou|stt|llm|tts|vad)(?:_m|M)etrics"'
    r'|"type"\s*:\s*"(?:LatencyReport|AgentStartedSpeaking)"'
    r'|"latency_data"\s*:\s*\{|"(?:ttsNodeTtfb|llmNodeTtft|endOfTurnDelay)"\s*:'
    r'|"(?:ttfb|processing)"\s*:\s*\[\s*\{\s*"processor"'
)
_CONSOLE: Final = re.compile(
    r"(?<!\w)(?P<service>\w{0,80}?(?P<part>STT|LLM|TTS)\w{0,80})#\d{1,9} "
    r"(?P<what>TTFB|TTFA|text aggregation time|processing time): "
    r"(?P<value>\d{1,15}(?:\.\d{1,15})?)"
)
_REPR: Final = re.compile(r"\b(?P<kind>EOU|STT|LLM|TTS)Metrics\((?P<pairs>[^()\n]{0,4000})\)")
_LINE: Final = re.compile(r"\b(?P<kind>EOU|STT|LLM|TTS) metrics: (?P<pairs>(?:\w+=[^\s,\"{}]+(?:, *)?){1,40})")
"""`Pipeline EOU metrics: sequence_id=…, end_of_utterance_delay=0.70, …`, bare or as the message of a JSON line."""
_PAIR: Final = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|[-\w.+]+)")

# metric object's type -> field (snake_case) -> column
_LIVEKIT: Final[dict[str, dict[str, str]]] = {
    "eou": {"end_of_utterance_delay": "end_of_turn", "transcription_delay": "transcription_delay"},
    "llm": {"ttft": "llm_ttft"},
    "tts": {"ttfb": "tts_ttfb", "duration": "tts_duration", "audio_duration": "tts_audio"},
    "stt": {"duration": "stt_duration", "audio_duration": "stt_audio"},
}
_REPORT: Final = {
    "end_of_turn_delay": "end_of_turn",
    "transcription_delay": "transcription_delay",
    "llm_node_ttft": "llm_ttft",
    "tts_node_ttfb": "tts_ttfb",
    "e2e_latency": "total",
}
_DEEPGRAM: Final = {
    "stt_latency": "transcription_delay",
    "ttt_token_latency": "llm_ttft",
    "ttt_latency": "llm_ttft",
    "tts_latency": "tts_ttfb",
    "total_latency": "total",
}
_BOLNA: Final = (
    ("transcriber", "transcription_delay", ("audio_to_text_latency", "turn_latency", "time_to_first_transcript")),
    ("llm", "llm_ttft", ("time_to_first_token", "time_to_first_token_ms", "ttft")),
    ("synthesizer", "tts_ttfb", ("time_to_first_token", "time_to_first_audio", "time_to_first_byte", "ttfb")),
)
_JOINS: Final = ("speech_id", "speechId", "sequence_id", "sequenceId", "turn_id", "turn")
_SILENCES: Final = {
    "endpointing": "ms",
    "utterance_end_ms": "ms",
    "min_endpointing_delay": "s",
    "min_silence_duration": "s",
    "silence_duration_ms": "ms",
}
"""What a recogniser or a turn detector was told to wait for; kept as settings."""
_MOST_FACTS: Final = 30
_NAMED: Final = frozenset({BEFORE, "type", "speech_id", "speechId", "latency_data", "message", "event"})
"""An object of an agent's own; a form that a person wrote names none of these."""
_OLD_JS_S: Final = 60.0
"""A camelCase value without a unit in its name is in seconds up to here, in milliseconds above."""

Cells = dict[str, float]


class _Turns:
    """Turns in the order in which they were first heard of."""

    def __init__(self) -> None:
        self.rows: dict[str, Cells] = {}
        self.lines: dict[str, int] = {}
        self.newest = ""
        """The turn that was written to last."""
        self._open = 1

    def add(self, name: str, line: int, column: str, value: float | None) -> bool:
        """Note a value (ms). What names no turn begins a new one when its column is there already."""
        if value is None or not math.isfinite(value):
            return False
        if not name:
            if column in self.rows.get(str(self._open), {}):
                self._open += 1
            name = str(self._open)
        self.newest = name
        self.lines.setdefault(name, line)
        self.rows.setdefault(name, {}).setdefault(column, value)
        return True


def _matches(head: str, name: str) -> bool:  # noqa: ARG001
    # A pattern that begins with any word is tried at each of them: what else it needs is asked before.
    return bool(
        _TELLS.search(head)
        or ("#" in head and any(part in head for part in ("STT", "LLM", "TTS")) and _CONSOLE.search(head))
        or ("Metrics(" in head and _REPR.search(head))
        or (" metrics: " in head and _LINE.search(head))
    )


def _read(path: Path, name: str) -> Observed:
    turns = _Turns()
    settings: list[Setting] = []
    objects = Objects(path, name, _NAME)
    if not _has_objects(path):
        understood = _console(path, name, turns)
    else:
        for line, found in objects:
            place = Place(name, line)
            taken = [_take(turns, line, one) for one in _metric_objects(found)]
            kept = list(_settings(found, place))
            settings += kept
            if len(found) <= _MOST_FACTS and not found.keys() & _NAMED:
                known = {one.name for one in settings}
                settings += [one for one in settings_of(found, place)[0] if one.name not in known]
            if not any(taken) and not kept:
                objects.refuse(line, found)
        understood = [objects.understood("objects")]
    if not turns.rows and not settings:
        raise InputError("there is no turn in it", place=str(path), remedy="Give the metric objects, one a line.")
    names = list(turns.rows)
    columns: dict[str, Any] = {"turn": np.array(names, dtype=object)}
    for column in (*COLUMNS, "streamed"):
        cells = [turns.rows[one].get(column, math.nan) for one in names]
        if any(not math.isnan(value) for value in cells):
            columns[column] = np.array(cells, dtype=np.float64)
    return Observed(
        rows=[
            Rows(
                kind="turns",
                columns=columns,
                clock=Clock.NONE,
                lines=np.array([turns.lines[one] for one in names], dtype=np.int64),
                place=Place(name),
            )
        ]
        if names
        else [],
        settings=settings,
        understood=understood,
    )


def _has_objects(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(1 << 16).decode("utf-8", "replace")
    return _TELLS.search(head) is not None


def _console(path: Path, name: str, turns: _Turns) -> list[Understood]:
    """Pipecat's and LiveKit's own log lines."""
    total = taken = 0
    for number, raw in lines(path):
        total += 1
        line = raw.decode("utf-8", "replace")
        done = False
        for found in _CONSOLE.finditer(line):
            column = {"LLM": "llm_ttft", "TTS": "tts_ttfb", "STT": "transcription_delay"}[found["part"]]
            if found["what"] in {"TTFB", "TTFA"}:
                done = turns.add("", number, column, float(found["value"]) * 1e3) or done
            else:
                done = True  # known, and no stage of a turn
        for found in (*_REPR.finditer(line), *_LINE.finditer(line)):
            said: dict[str, Any] = {key: _literal(value) for key, value in _PAIR.findall(found["pairs"])}
            said["type"] = f"{found['kind'].lower()}_metrics"
            done = _take(turns, number, said) or done
        taken += done
    return [Understood(source=name, format=_NAME, understood=taken, total=total)]


def _literal(text: str) -> Any:
    if text[:1] in {"'", '"'}:
        return text[1:-1]
    try:
        return float(text)
    except ValueError:
        return {"True": True, "False": False}.get(text)


def _metric_objects(found: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """The object, and those inside it, that may be a metric: agents wrap them in `metrics`, `data`, `extra` …"""
    yield found
    if depth >= 6:
        return
    for key, value in found.items():
        if key in {"latency_data", BEFORE}:
            continue
        for one in value[:10_000] if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _metric_objects(one, depth + 1)


def _take(turns: _Turns, line: int, said: dict[str, Any]) -> bool:
    if isinstance(said.get("latency_data"), dict):
        return _bolna(turns, line, said["latency_data"])
    kind = str(said.get("type") or "")
    if kind in {"LatencyReport", "AgentStartedSpeaking"}:
        return _put(turns, line, _join(said), said, _DEEPGRAM)
    if isinstance(said.get("ttfb"), list):
        return _pipecat(turns, line, said)
    plain = re.sub(r"(?:_m|M)etrics$", "", kind)
    what = plain.lower() if plain != kind else _told_before(said)
    if not what:
        what = "eou" if any(_snake(key) in _LIVEKIT["eou"] for key in said) and not _is_report(said) else ""
    if what in _LIVEKIT:
        taken = _put(turns, line, _join(said), said, _LIVEKIT[what])
        if what == "stt" and isinstance(said.get("streamed"), bool) and taken:
            turns.rows[turns.newest].setdefault("streamed", float(said["streamed"]))
        return taken
    return _put(turns, line, _join(said), said, _REPORT) if _is_report(said) else False


def _is_report(said: dict[str, Any]) -> bool:
    return any(_snake(key) in {"end_of_turn_delay", "llm_node_ttft", "tts_node_ttfb", "e2e_latency"} for key in said)


def _told_before(said: dict[str, Any]) -> str:
    """LiveKit's log: `EOU metrics {"end_of_utterance_delay": …}`."""
    found = re.search(r"\b(EOU|STT|LLM|TTS) metrics", f"{said.get(BEFORE, '')} {said.get('message', '')}")
    return found[1].lower() if found else ""


def _join(said: dict[str, Any]) -> str:
    return next((str(said[key]) for key in _JOINS if isinstance(said.get(key), str | int) and said[key] != ""), "")


def _snake(key: str) -> str:
    """`endOfUtteranceDelayMs` -> `end_of_utterance_delay`; a unit at its end goes."""
    plain = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()
    return plain.removesuffix("_ms").removesuffix("_seconds").removesuffix("_s")


def _scale(key: str, value: float, *, report: bool) -> float:
    """Milliseconds in one of the field's own units."""
    if key.endswith(("Ms", "_ms")):
        return 1.0
    if key.islower() or report or abs(value) <= _OLD_JS_S:
        return 1000.0
    return 1.0


def _put(turns: _Turns, line: int, name: str, said: dict[str, Any], columns: dict[str, str]) -> bool:
    done = False
    report = columns is _REPORT
    if report:
        done = _speech_span(turns, line, name, said)
    for key, value in said.items():
        column = columns.get(_snake(key))
        if column is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        done = turns.add(name, line, column, float(value) * _scale(key, float(value), report=report)) or done
    return done


def _speech_span(turns: _Turns, line: int, name: str, said: dict[str, Any]) -> bool:
    """From the start of the user's speech to its end, where both are stamped: below 0 the stamps are wrong."""
    stamps = {_snake(key): value for key, value in said.items()}
    both = stamp_ms([stamps.get("started_speaking_at"), stamps.get("stopped_speaking_at")])
    if both is None:
        return False
    (start, stop), _ = both
    return turns.add(name, line, "speech_span", stop - start)


def _pipecat(turns: _Turns, line: int, said: dict[str, Any]) -> bool:
    done = False
    for one in said["ttfb"]:
        if not isinstance(one, dict) or not isinstance(one.get("value"), int | float):
            continue
        service = str(one.get("processor", "")).upper()
        column = next(
            (
                to
                for mark, to in (("LLM", "llm_ttft"), ("TTS", "tts_ttfb"), ("STT", "transcription_delay"))
                if mark in service
            ),
            "",
        )
        if column and one["value"]:  # a zero is sent at the start, before anything was measured
            done = turns.add("", line, column, float(one["value"]) * 1e3) or done
    return done or bool(said["ttfb"])


def _bolna(turns: _Turns, line: int, data: dict[str, Any]) -> bool:
    done = False
    for component, column, keys in _BOLNA:
        part = data.get(component)
        listed = part.get("turns") if isinstance(part, dict) else None
        for number, turn in enumerate(listed if isinstance(listed, list) else [], start=1):
            if not isinstance(turn, dict):
                continue
            value = next((turn[key] for key in keys if isinstance(turn.get(key), int | float)), None)
            name = _join(turn) or str(number)
            done = turns.add(name, line, column, None if value is None else float(value)) or done
    return done


def _settings(found: dict[str, Any], place: Place) -> Iterator[Setting]:
    """What the agent was told to wait for, and how long connecting took."""
    for said in _metric_objects(found):
        for key, unit in _SILENCES.items():
            value = said.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield Setting(
                    name=f"speech.{key.removesuffix('_ms')}",
                    value=float(value) * (1000.0 if unit == "s" else 1.0),
                    unit="ms",
                    place=place,
                )
        data = said.get("latency_data")
        for component, part in data.items() if isinstance(data, dict) else ():
            value = part.get("time_to_connect") if isinstance(part, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield Setting(name=f"speech.{component}.time_to_connect", value=float(value), unit="ms", place=place)


VOICE_PAYLOAD: Final = Format(name=_NAME, matches=_matches, read=_read)
