"""What recognisers send, as one kind of event: their own messages, with the time at which they were received.

Each system spells partial, final and end of turn its own way; `normalised` gives them the keys of
`speech_events`. Positions are seconds of audio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["RECEIVED", "normalised"]

Said = Mapping[str, Any]
Event = dict[str, Any]

RECEIVED: Final = ("t_recv", "t_recv_s", "received_at", "recv_s", "t", "ts", "t_s", "ts_s", "time_s", "recv_ts")
_PLAIN: Final = frozenset(
    {
        *("audio", "partial", "interim", "delta", "final", "eot", "end_of_turn", "endpoint", "done", "speech_start"),
        *("speech_end", "audio_chunk", "audio_frame", "frame", "partial_transcript", "final_transcript", "transcript"),
        *("interim_transcript", "interim_result", "partial_result", "final_result", "result"),
    }
)
"""What people who log a stream themselves call its events."""


def normalised(said: Said) -> Event | None:
    """The event in our own words; `None` where it is no event of a stream that is known.

    A message may stand inside a wrapper with its receive time: `{"t_recv": 1.2, "message": {...}}`.
    """
    if "kind" in said:
        return dict(said)
    for key in ("type", "event", "event_type", "what"):
        told = _text(said, key).lower()
        if told in _PLAIN and (key != "type" or "channel" not in said):
            return {**said, "kind": told}
    inner = next(
        (said[key] for key in ("message", "event", "payload", "data") if isinstance(said.get(key), dict)), None
    )
    message = {**said, **inner} if inner is not None else dict(said)
    for knows, read in _DIALECTS:
        if knows(message):
            event = read(message)
            event.update({key: message[key] for key in (*RECEIVED, "t_recv_ms", "stream_id", "seq") if key in message})
            event.setdefault("raw_type", _text(message, "type") or _text(message, "event"))
            return event
    return None


# -- OpenAI Realtime, and vLLM's


def _is_openai(said: Said) -> bool:
    return _text(said, "type").startswith(("conversation.item.input_audio_transcription.", "input_audio_buffer."))


def _openai(said: Said) -> Event:
    kind = _text(said, "type").rpartition(".")[2]
    out: Event = {"utt_id": _text(said, "item_id"), "mode": "append"}
    if kind == "delta":
        return {**out, "kind": "partial", "text": _text(said, "delta")}
    if kind == "completed":
        return {**out, "kind": "final", "text": _text(said, "transcript"), "segment_final": True, "turn_final": True}
    if kind == "segment":
        return {
            **out,
            "kind": "final",
            "text": _text(said, "text"),
            "audio_start_s": said.get("start"),
            "audio_end_s": said.get("end"),
            "segment_final": True,
        }
    if kind == "speech_started":
        return {**out, "kind": "speech_start", "audio_start_s": _seconds(said.get("audio_start_ms"))}
    if kind == "speech_stopped":
        return {**out, "kind": "eot", "audio_end_s": _seconds(said.get("audio_end_ms"))}
    return {**out, "kind": "error" if kind == "failed" else "other"}


def _is_vllm(said: Said) -> bool:
    return _vllm_type(said) in {"transcription.delta", "transcription.done"}


def _vllm_type(said: Said) -> str:
    return _text(said, "type") or _text(said, "event")


def _vllm(said: Said) -> Event:
    if _vllm_type(said) == "transcription.delta":
        return {"kind": "partial", "mode": "append", "text": _text(said, "delta")}
    return {
        "kind": "final",
        "mode": "append",
        "text": _text(said, "text"),
        "segment_final": True,
        "turn_final": True,
    }


# -- Deepgram


def _is_deepgram(said: Said) -> bool:
    return _text(said, "type") in {"Results", "SpeechStarted", "UtteranceEnd"}


def _deepgram(said: Said) -> Event:
    kind = _text(said, "type")
    if kind != "Results":
        begins = kind == "SpeechStarted"
        key = "audio_start_s" if begins else "audio_end_s"
        return {
            "kind": "speech_start" if begins else "eot",
            key: said.get("timestamp" if begins else "last_word_end"),
        }
    channel = said.get("channel")
    options = channel.get("alternatives") if isinstance(channel, dict) else None
    best = options[0] if isinstance(options, list) and options and isinstance(options[0], dict) else {}
    start, length = _number(said.get("start")), _number(said.get("duration"))
    return {
        "kind": "final" if said.get("is_final") is True else "partial",
        "mode": "replace",
        "text": _text(best, "transcript"),
        "confidence": best.get("confidence"),
        "audio_start_s": start,
        "audio_end_s": start + length if start is not None and length is not None else None,
        "segment_final": said.get("is_final") is True,
        "turn_final": said.get("speech_final") is True,
    }


def _is_flux(said: Said) -> bool:
    return "turn_index" in said and ("audio_window_end" in said or "sequence_id" in said)


def _flux(said: Said) -> Event:
    what = _text(said, "event")
    kinds = {"Update": "partial", "EndOfTurn": "final", "EagerEndOfTurn": "partial", "StartOfTurn": "speech_start"}
    return {
        "kind": kinds.get(what, "other"),
        "mode": "replace",
        "utt_id": f"turn {said.get('turn_index')}",
        "text": _text(said, "transcript"),
        "audio_start_s": said.get("audio_window_start"),
        "audio_end_s": said.get("audio_window_end"),
        "segment_final": what == "EndOfTurn",
        "turn_final": what == "EndOfTurn",
        "raw_type": what,
    }


# -- AssemblyAI, Riva, FunASR


def _is_assembly(said: Said) -> bool:
    return _text(said, "type") == "Turn" and "turn_order" in said


def _assembly(said: Said) -> Event:
    ended = said.get("end_of_turn") is True
    words = [word for word in said.get("words") or () if isinstance(word, dict)]
    return {
        "kind": "final" if ended else "partial",
        "mode": "replace",
        "utt_id": f"turn {said.get('turn_order')}",
        "text": _text(said, "transcript") or " ".join(_text(word, "text") for word in words),
        "audio_start_s": _seconds(words[0].get("start")) if words else None,
        "audio_end_s": _seconds(words[-1].get("end")) if words else None,
        "segment_final": ended,
        "turn_final": ended,
    }


def _is_riva(said: Said) -> bool:
    results = said.get("results")
    return isinstance(results, list) and bool(results) and isinstance(results[0], dict) and "alternatives" in results[0]


def _riva(said: Said) -> Event:
    results = [one for one in said["results"] if isinstance(one, dict)]
    best = [
        one["alternatives"][0] for one in results if isinstance(one.get("alternatives"), list) and one["alternatives"]
    ]
    final = any(_flag(one, "is_final", "isFinal") for one in results)
    done = [_number(one.get("audio_processed", one.get("audioProcessed"))) for one in results]
    return {
        "kind": "final" if final else "partial",
        "mode": "replace",
        "text": "".join(_text(one, "transcript") for one in best if isinstance(one, dict)),
        "audio_end_s": max((value for value in done if value is not None), default=None),
        "segment_final": final,
        "turn_final": final,
        "raw_type": "StreamingRecognizeResponse",
    }


def _is_funasr(said: Said) -> bool:
    return ("partial" in said or "sentences" in said) and ("partial_start_ms" in said or "sentences" in said)


def _funasr(said: Said) -> Event:
    locked = said.get("sentences")
    last = locked[-1] if isinstance(locked, list) and locked and isinstance(locked[-1], dict) else {}
    return {
        "kind": "partial" if _text(said, "partial") or not last else "final",
        "mode": "replace",
        "text": _text(said, "partial") or _text(last, "text"),
        "audio_start_s": _seconds(said.get("partial_start_ms", last.get("start"))),
        "audio_end_s": _seconds(last.get("end")) if not _text(said, "partial") else None,
        "segment_final": bool(last) and not _text(said, "partial"),
        "raw_type": "funasr",
    }


_DIALECTS: Final[tuple[tuple[Callable[[Said], bool], Callable[[Said], Event]], ...]] = (
    (_is_openai, _openai),
    (_is_vllm, _vllm),
    (_is_deepgram, _deepgram),
    (_is_flux, _flux),
    (_is_assembly, _assembly),
    (_is_riva, _riva),
    (_is_funasr, _funasr),
)


def _text(said: Said, key: str) -> str:
    value = said.get(key)
    return value if isinstance(value, str) else ""


def _flag(said: Said, *keys: str) -> bool:
    return any(said.get(key) is True for key in keys)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000.0
