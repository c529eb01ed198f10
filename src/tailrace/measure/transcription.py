"""The dialect of `/v1/audio/transcriptions` and `/v1/audio/translations`.

Streams come in two forms: OpenAI's typed events, and vLLM's chunks, which are chat chunks by another name. The answer
streams; the audio was a whole upload before it, so its TTFT counts the upload in.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE, Meaning, as_text
from tailrace.measure.fault import find_fault
from tailrace.measure.openai import OpenAIChat, decode_leniently, read_usage, text_length
from tailrace.model.timeline import EventKind

_DELTA: Final = "transcript.text.delta"
_DONE: Final = "transcript.text.done"
_SEGMENT: Final = "transcript.text.segment"
"""A speaker's finished segment, in diarized streams; read as text, though deltas may have brought it before: some
streams have nothing else, and those must not look silent."""
_TYPED: Final = b"transcript.text."


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    text: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class Transcription:
    """Speech to text over HTTP."""

    name = "openai.transcription"
    ends_with_body = False

    def __init__(self) -> None:
        self._chunks = OpenAIChat("openai.transcription")

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`."""
        if _TYPED not in data:
            # vLLM's chunks carry no type; an error looks alike in both.
            named = event if event == b"error" else None
            return self._chunks.read(named, data)
        try:
            head = _decode_event(data)
        except UNREADABLE:
            return Meaning(EventKind.OTHER)
        if head.type in (_DELTA, _SEGMENT):
            length = text_length(head.delta if head.type == _DELTA else head.text)
            return Meaning(EventKind.CONTENT, length) if length else Meaning(EventKind.EMPTY)
        if head.type == _DONE:
            obj = decode_leniently(data)
            usage = read_usage(obj.get("usage")) if isinstance(obj, dict) else None
            return Meaning(EventKind.FINISH, 0, "", "stop", usage, usage is not None, done=True)
        return self._chunks.read(None, data)

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`."""
        if _TYPED not in data:
            return self._chunks.plain_text(event, data)
        try:
            head = _decode_event(data)
        except UNREADABLE:
            return ""
        return head.delta if head.type == _DELTA and isinstance(head.delta, str) else ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`. `text` is the transcript; `verbose_json` and `diarized_json` hold it, too."""
        obj = decode_leniently(body)
        if not isinstance(obj, dict):
            return Meaning(EventKind.OTHER)
        fault = find_fault(obj)
        if fault is not None:
            return Meaning(EventKind.ERROR, fault=fault)
        length = text_length(obj.get("text"))
        usage = read_usage(obj.get("usage"))
        return Meaning(
            EventKind.CONTENT if length else EventKind.FINISH,
            length,
            as_text(obj.get("id")),
            "",
            usage,
            usage is not None,
            done="text" in obj,
            has_content=length > 0,
        )
