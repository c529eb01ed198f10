"""The one shape that nearly every unstreamed chat answer has, read with types at a third of the lenient cost.

Whatever is not plainly that shape is left to the lenient reading in `openai`, which this never contradicts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.measure.dialect import UNREADABLE, Count, Meaning, Usage
from tailrace.model.timeline import EventKind


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    thinking_blocks: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None
    meta_info: Any = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class _Tokens(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: Any = None
    output_tokens_details: Any = None


class _Body(msgspec.Struct, gc=False):
    choices: list[_Choice]
    id: str = ""
    object: Any = None
    type: Any = None
    usage: _Tokens | None = None
    error: Any = None
    metrics: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def read_plain_body(body: bytes) -> Meaning | None:
    """What a whole chat answer of plain text means; `None` for any other, and for what is no answer at all."""
    try:
        whole = _decode(body)
    except UNREADABLE:
        return None
    tokens = whole.usage
    if not whole.choices or whole.error or whole.object == "error" or whole.type == "error" or tokens is None:
        return None
    if tokens.input_tokens_details is not None or tokens.output_tokens_details is not None:
        return None
    if tokens.prompt_tokens is None or tokens.completion_tokens is None:
        return None
    length, finish = 0, ""
    for choice in whole.choices:
        said = choice.message
        if not said.content or choice.meta_info is not None or not _only_text(said):
            return None
        length += len(said.content)
        finish = finish or choice.finish_reason or ""
    before, after = tokens.prompt_tokens_details, tokens.completion_tokens_details
    timings = whole.metrics or whole.timings
    if timings:
        timings = {**timings, "_field": "metrics" if whole.metrics else "timings"}
    return Meaning(
        EventKind.CONTENT,
        length,
        whole.id,
        finish,
        Usage(
            tokens.prompt_tokens,
            tokens.completion_tokens,
            None if before is None else before.cached_tokens,
            None if after is None else after.reasoning_tokens,
        ),
        usage_final=True,
        timings=timings or None,
        done=True,
        has_content=True,
    )


def _only_text(said: _Message) -> bool:
    return (
        said.tool_calls is None
        and said.reasoning_content is None
        and said.reasoning is None
        and said.reasoning_details is None
        and said.reasoning_text is None
        and said.thinking is None
        and said.thinking_blocks is None
        and said.function_call is None
        and said.refusal is None
        and said.audio is None
    )
