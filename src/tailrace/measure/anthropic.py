"""The Anthropic messages dialect."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE, Meaning, Usage, as_count, as_text
from tailrace.measure.fault import find_fault, named_fault
from tailrace.measure.openai import decode_leniently, read_timings, text_length
from tailrace.model.timeline import EventKind

_BLOCK_KIND: Final = {
    "thinking": EventKind.REASONING,
    "redacted_thinking": EventKind.REASONING,
    "tool_use": EventKind.TOOL,
    "server_tool_use": EventKind.TOOL,
    "mcp_tool_use": EventKind.TOOL,
}


class _Delta(msgspec.Struct, gc=False):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Delta | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


def _count(obj: dict[str, Any], key: str) -> int | None:
    return as_count(obj.get(key))


def read_usage(obj: Any, *, with_output: bool = True) -> Usage | None:
    """Counts of a messages `usage`. Its `input_tokens` leaves cached tokens out; ours includes them."""
    if not isinstance(obj, dict):
        return None
    fresh = _count(obj, "input_tokens")
    read = _count(obj, "cache_read_input_tokens")
    written = _count(obj, "cache_creation_input_tokens")
    output = _count(obj, "output_tokens") if with_output else None
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    if prompt is None and output is None:
        return None
    return Usage(prompt, output, read)


class AnthropicMessages:
    """`/v1/messages`: named events; `message_stop` is the end marker."""

    name = "anthropic.messages"
    ends_with_body = False

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`."""
        try:
            head = _decode_event(data)
        except UNREADABLE:
            if event == b"error":
                return Meaning(EventKind.ERROR, fault=named_fault(data, None))
            return Meaning(EventKind.DONE, done=True) if data.strip() == b"[DONE]" else Meaning(EventKind.OTHER)
        if head.type == "content_block_delta" and head.delta is not None:
            delta = head.delta
            for value, kind in (
                (delta.text, EventKind.CONTENT),
                (delta.thinking, EventKind.REASONING),
                (delta.partial_json, EventKind.TOOL),
            ):
                if value:
                    return Meaning(kind, len(value) if type(value) is str else text_length(value))
            return Meaning(EventKind.EMPTY)
        return self._read_control(event, data, head.type)

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`."""
        if event == b"error":
            return ""
        try:
            head = _decode_event(data)
        except UNREADABLE:
            return ""
        if head.type != "content_block_delta" or head.delta is None:
            return ""
        text = head.delta.text or head.delta.thinking
        return text if isinstance(text, str) else ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`."""
        obj = decode_leniently(body)
        if not isinstance(obj, dict):
            return Meaning(EventKind.OTHER)
        fault = find_fault(obj)
        if fault is not None:
            return Meaning(EventKind.ERROR, fault=fault)
        blocks = obj.get("content")
        kinds = [self._read_block(block) for block in blocks] if isinstance(blocks, list) else []
        usage = read_usage(obj.get("usage"))
        answer = any(kind is EventKind.CONTENT and length for kind, length in kinds)
        spoken = [kind for kind, length in kinds if length]
        return Meaning(
            EventKind.CONTENT if answer else spoken[0] if spoken else EventKind.FINISH,
            sum(length for _, length in kinds),
            as_text(obj.get("id")),
            as_text(obj.get("stop_reason")),
            usage,
            usage is not None,
            timings=read_timings(obj),
            done=True,
            has_content=answer,
        )

    @staticmethod
    def _read_block(block: Any) -> tuple[EventKind, int]:
        """(kind, characters) of a content block."""
        if not isinstance(block, dict):
            return EventKind.EMPTY, 0
        kind = _BLOCK_KIND.get(as_text(block.get("type")), EventKind.CONTENT)
        if kind is EventKind.TOOL:
            name = block.get("name")
            return kind, len(name) if isinstance(name, str) else 0
        return kind, text_length(block.get("text") or block.get("thinking") or block.get("data"))

    def _read_control(self, event: bytes | None, data: bytes, kind: str) -> Meaning:  # noqa: PLR0911  (one a type)
        obj = decode_leniently(data)
        if not isinstance(obj, dict):
            return Meaning(EventKind.OTHER)
        if kind == "error" or event == b"error" or (not kind and find_fault(obj)):
            return Meaning(EventKind.ERROR, fault=named_fault(data, obj))
        if kind == "message_start":
            message = obj.get("message")
            message = message if isinstance(message, dict) else {}
            # Its output count is a placeholder of the first few tokens, not a tally.
            usage = read_usage(message.get("usage"), with_output=False)
            return Meaning(EventKind.ROLE, 0, as_text(message.get("id")), usage=usage)
        if kind == "content_block_start":
            block_kind, length = self._read_block(obj.get("content_block"))
            return Meaning(block_kind, length) if length else Meaning(EventKind.EMPTY)
        if kind == "message_delta":
            delta = obj.get("delta")
            reason = as_text(delta.get("stop_reason")) if isinstance(delta, dict) else ""
            usage = read_usage(obj.get("usage"))
            kind_of = EventKind.FINISH if reason else EventKind.USAGE
            return Meaning(kind_of, 0, "", reason, usage, usage is not None, timings=read_timings(obj))
        if kind == "message_stop":
            return Meaning(EventKind.DONE, done=True, timings=read_timings(obj))
        # `ping` is a keep-alive by another name.
        return Meaning(EventKind.COMMENT if kind == "ping" else EventKind.OTHER)
