"""Frames of a stream that another tool kept with their stamps, read by our own dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.diagnose.readers.told_request import Told, reason_of
from tailrace.measure.dialect import Dialect, Meaning, Usage
from tailrace.measure.sse import EventTooLarge, SseFramer
from tailrace.model.timeline import TOKEN_KINDS, EventKind

__all__ = ["events_in", "read_frames"]


def read_frames(told: Told, frames: Iterable[tuple[int, Any]], dialect: Dialect) -> None:
    """Fill `told` from (offset ns, what was kept of the frame): events, first token, first text, counts, fault, end.

    Which frame carries a token is decided as for any stream that Tailrace measures itself. Frames are put in the order
    of their stamps. Without usage the tokens are counted by their frames.
    """
    usage: Usage | None = None
    for at, output in sorted(frames, key=lambda frame: frame[0]):
        told.end_ns = max(told.end_ns or 0, at)
        for event, data in events_in(output):
            meaning = dialect.read(event, data)
            _note(told, at, meaning)
            if meaning.usage is not None and meaning.usage.completion is not None:
                usage = meaning.usage
    if usage is not None:
        told.output_tokens, told.output_source = usage.completion, "usage"
        told.cached_tokens = usage.cached
        if usage.prompt is not None:
            told.prompt_tokens, told.prompt_source = usage.prompt, "usage"
    elif told.output_tokens is None and told.events:
        told.output_tokens, told.output_source = len(told.events), "chunks"


def _note(told: Told, at: int, meaning: Meaning) -> None:
    kind = meaning.kind
    if kind not in TOKEN_KINDS:
        told.others.append((at, int(kind)))
    else:
        told.events.append(at)
        told.kinds.append(int(kind))
        told.tokens.append(-1)
        if told.ttft_ns is None:
            told.ttft_ns = at
        if told.content_ns is None and (meaning.has_content or kind is EventKind.CONTENT):
            told.content_ns = at
    if meaning.fault is not None:
        told.reason, told.error = reason_of(meaning.fault.message, meaning.fault.code), meaning.fault.message
    told.finish_reason = meaning.finish_reason or told.finish_reason


def events_in(output: Any) -> list[tuple[bytes | None, bytes]]:
    """The events of one frame as it was kept: the text of an SSE read, or one JSON object without its `data:`."""
    if isinstance(output, dict):
        # The key is `response` of OpenAI endpoints; Triton's own have the outputs by their names, the text alone.
        text = output.get("text_output")
        if isinstance(text, str) and text:
            return [(None, b'{"choices":[{"delta":{"content":"x"}}]}')]
        output = output.get("response")
    if not isinstance(output, str) or not output.strip():
        return []
    raw = output.encode("utf-8", "replace")
    if not raw.lstrip().startswith((b"data:", b"event:", b":", b"id:")):
        return [(None, raw)]
    framer = SseFramer()
    try:
        events = framer.feed(raw + b"\n\n")
    except EventTooLarge:
        return []
    return [(one.event, one.data) for one in events if one.data is not None]
