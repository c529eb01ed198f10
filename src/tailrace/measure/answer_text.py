"""The text of an answer, from the bytes of its whole body: for whoever has to send it back, or to compare it.

Read after the answer has ended, by the shape of what is there rather than by the API's name: the shapes do not
collide, and servers bend them. Reasoning is left out, as a chat's next turn leaves it out.
"""

from __future__ import annotations

from typing import Any

from tailrace.measure.openai import decode_leniently
from tailrace.measure.sse import EventTooLarge, SseFramer


def stream_text(body: bytes) -> str:
    """The answer text of a streamed body (server-sent events), of its first choice."""
    framer = SseFramer()
    try:
        events = framer.feed(body)
    except EventTooLarge as error:
        events = error.events
    last = framer.finish()
    if last is not None:
        events = [*events, last]
    return "".join(_piece(decode_leniently(one.data)) for one in events if one.data)


def _piece(event: Any) -> str:  # noqa: PLR0911  (one a shape)
    if not isinstance(event, dict):
        return ""
    choices = event.get("choices")
    if isinstance(choices, list):
        choice = choices[0] if choices else None
        if not isinstance(choice, dict):
            return ""
        delta = choice.get("delta")
        return _text(delta.get("content") if isinstance(delta, dict) else choice.get("text"))
    kind = event.get("type")
    delta = event.get("delta")
    if kind in ("response.output_text.delta", "transcript.text.delta"):
        return _text(delta)
    if kind == "content_block_delta":
        return _text(delta.get("text")) if isinstance(delta, dict) else ""
    if kind is not None:
        return ""
    token = event.get("token")  # TGI's own form
    if isinstance(token, dict):
        return "" if token.get("special") else _text(token.get("text"))
    # llama.cpp's and Triton's own forms
    return _text(event.get("content")) or _text(event.get("text_output"))


def body_text(body: bytes) -> str:
    """The answer text of a body in one piece, of its first choice."""
    whole = decode_leniently(body)
    if not isinstance(whole, dict):
        return ""
    choices = whole.get("choices")
    if isinstance(choices, list):
        choice = choices[0] if choices else None
        if not isinstance(choice, dict):
            return ""
        message = choice.get("message")
        return _text(message.get("content") if isinstance(message, dict) else choice.get("text"))
    output = whole.get("output")
    if isinstance(output, list):
        return "".join(_text(item.get("content")) for item in output if isinstance(item, dict))
    for key in ("content", "text", "generated_text", "text_output"):
        found = _text(whole.get(key))
        if found:
            return found
    return ""


def _text(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(
            part if isinstance(part, str) else _text(part.get("text"))
            for part in value
            if isinstance(part, str | dict) and not (isinstance(part, dict) and part.get("type") == "thinking")
        )
    return ""
