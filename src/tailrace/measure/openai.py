"""The OpenAI dialects: chat completions, completions, responses.

The hot path decodes into typed structs that hold only what a token event needs; whatever does not fit their shape is
decoded again without types and read leniently, because engines and proxies bend the shape in many ways.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE, Count, EngineFault, Meaning, Usage, as_count, as_text
from tailrace.measure.fault import abort_fault, find_fault, named_fault
from tailrace.measure.openai_body import read_plain_body
from tailrace.model.timeline import EventKind

_CONTENT: Final = EventKind.CONTENT
_REASONING: Final = EventKind.REASONING
_TOOL: Final = EventKind.TOOL
_REFUSAL: Final = EventKind.REFUSAL
_ROLE: Final = EventKind.ROLE
_EMPTY: Final = EventKind.EMPTY
_USAGE: Final = EventKind.USAGE
_FINISH: Final = EventKind.FINISH
_ERROR: Final = EventKind.ERROR
_DONE: Final = EventKind.DONE
_PROGRESS: Final = EventKind.PROGRESS
_OTHER: Final = EventKind.OTHER

REASONING_FIELDS: Final = (
    "reasoning_content",  # DeepSeek, SGLang, llama.cpp, older vLLM
    "reasoning",  # vLLM since 0.16, OpenRouter, Groq
    "reasoning_details",  # OpenRouter: a list of parts
    "reasoning_text",
    "thinking",  # Ollama
    "thinking_blocks",  # LiteLLM: a list of parts
)
"""Every name under which a delta is known to carry reasoning text."""

TIMING_FIELDS: Final = ("metrics", "timings")
"""vLLM's and llama.cpp's per-request timings, as top-level members of a chunk or body."""

_END: Final = b"[DONE]"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None
    custom: Any = None


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    role: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Tokens(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    id: str = ""
    usage: _Tokens | None = None
    error: Any = None
    metrics: Any = None
    timings: Any = None
    prompt_progress: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_any = msgspec.json.Decoder().decode


def decode_leniently(data: bytes) -> Any:
    """The JSON value in `data`, or `None`. Broken UTF-8 is replaced: a token may end inside a character."""
    try:
        return _decode_any(data)
    except RecursionError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return _decode_any(data.decode("utf-8", "replace").encode())
    except UNREADABLE:
        return None


def read_usage(obj: Any) -> Usage | None:
    """Token counts of a `usage` object in chat form or in responses form; `None` where it says nothing."""
    if not isinstance(obj, dict):
        return None
    prompt = as_count(obj.get("prompt_tokens", obj.get("input_tokens")))
    completion = as_count(obj.get("completion_tokens", obj.get("output_tokens")))
    if prompt is None and completion is None:
        return None
    before = obj.get("prompt_tokens_details") or obj.get("input_tokens_details") or {}
    after = obj.get("completion_tokens_details") or obj.get("output_tokens_details") or {}
    return Usage(
        prompt,
        completion,
        as_count(before.get("cached_tokens")) if isinstance(before, dict) else None,
        as_count(after.get("reasoning_tokens")) if isinstance(after, dict) else None,
    )


def text_length(value: Any, depth: int = 8) -> int:
    """Characters of text in a field that may be a string, a part, or a list of parts, nested up to `depth`."""
    if isinstance(value, str):
        return len(value)
    if not depth:
        return 0
    if isinstance(value, list):
        return sum(text_length(part, depth - 1) for part in value)
    if isinstance(value, dict):
        keys = ("text", "content", "thinking", "summary", "data", "reasoning", "refusal", "transcript")
        return sum(text_length(value.get(key), depth - 1) for key in keys)
    return 0


def _content_lengths(content: Any) -> tuple[int, int]:
    """(answer, reasoning) characters of a `content` field; Mistral puts reasoning parts into the list."""
    if isinstance(content, str):
        return len(content), 0
    if not isinstance(content, list):
        return text_length(content), 0
    answer = reasoning = 0
    for part in content:
        if isinstance(part, dict) and part.get("type") in {"thinking", "reasoning", "redacted_thinking"}:
            reasoning += text_length(part)
        else:
            answer += text_length(part)
    return answer, reasoning


def _tool_length(delta: dict[str, Any]) -> int:
    total = 0
    calls = delta.get("tool_calls")
    legacy = delta.get("function_call")
    functions = [legacy] if isinstance(legacy, dict) else []
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            functions.extend(part for part in (call.get("function"), call.get("custom")) if isinstance(part, dict))
    for function in functions:
        for key in ("name", "arguments", "input"):
            value = function.get(key)
            total += len(value) if isinstance(value, str) else 1 if value else 0
    return total


def _typed_tool_length(delta: _Delta | None) -> int:
    """Characters of the tool calls of a plain delta; 0 where there are none, or any that the types do not hold."""
    if delta is None or not delta.tool_calls or delta.role:
        return 0
    total = 0
    for call in delta.tool_calls:
        function = call.function
        if function is None or call.custom is not None:
            return 0
        total += len(function.name or "") + len(function.arguments or "")
    return total


def _finish(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):  # SGLang's own form
        return as_text(value.get("type"))
    return ""


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def read_timings(obj: dict[str, Any]) -> dict[str, Any] | None:
    """The engine's per-request timings, tagged with the field they came from."""
    for field in TIMING_FIELDS:
        value = obj.get(field)
        if isinstance(value, dict) and value:
            return {**value, "_field": field}
    choices = obj.get("choices")
    # SGLang with `return_meta_info` puts them beside the text.
    meta = _member(choices[0], "meta_info") if isinstance(choices, list) and choices else None
    return {**meta, "_field": "meta_info"} if isinstance(meta, dict) and meta else None


def _read_choices(choices: list[Any], member: str) -> tuple[EventKind, int, str, bool]:
    """(kind, characters, finish reason, has answer text) over all choices; `member` is `delta` or `message`."""
    lengths = dict.fromkeys((_CONTENT, _REASONING, _TOOL, _REFUSAL), 0)
    finish = ""
    role = False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        finish = finish or _finish(choice.get("finish_reason"))
        delta = choice.get(member)
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        role = role or bool(delta.get("role"))
        answer, reasoning = _content_lengths(delta.get("content"))
        audio = delta.get("audio")
        lengths[_CONTENT] += answer + (text_length(audio) if audio else 0)
        # Some proxies send the same reasoning under two names: count the longest, not the sum.
        lengths[_REASONING] += max(reasoning, *(text_length(delta.get(field)) for field in REASONING_FIELDS))
        lengths[_TOOL] += _tool_length(delta)
        lengths[_REFUSAL] += text_length(delta.get("refusal"))
    total = sum(lengths.values())
    for kind, length in lengths.items():
        if length:
            return kind, total, finish, lengths[_CONTENT] > 0
    return (_FINISH if finish else _ROLE if role else _EMPTY), 0, finish, False


def _read_object(obj: dict[str, Any]) -> Meaning:
    """The lenient reading of one chunk."""
    fault = find_fault(obj)
    if fault is not None:
        return Meaning(_ERROR, fault=fault)
    rid = obj.get("id")
    choices = obj.get("choices")
    usage = read_usage(obj.get("usage"))
    timings = read_timings(obj)
    aborted: EngineFault | None = None
    if isinstance(choices, list) and choices:
        kind, length, finish, answer = _read_choices(choices, "delta")
        if finish:
            aborted = next(filter(None, (abort_fault(_member(choice, "finish_reason")) for choice in choices)), None)
    else:
        kind, length, finish, answer = (_USAGE if usage or timings else _OTHER), 0, "", False
    if kind > _REFUSAL and isinstance(obj.get("prompt_progress"), dict):
        kind = _PROGRESS
        timings = {**obj["prompt_progress"], "_field": "prompt_progress"}
    return Meaning(
        kind,
        length,
        rid if isinstance(rid, str) else "",
        finish,
        usage,
        usage is not None and (kind is _USAGE or bool(finish)),
        aborted,
        timings,
        has_content=answer,
    )


class OpenAIChat:
    """`/v1/chat/completions` and `/v1/completions`: chunks differ only in `delta` against `text`."""

    ends_with_body = False

    def __init__(self, name: str = "openai.chat") -> None:
        self.name = name

    def read(self, event: bytes | None, data: bytes) -> Meaning:  # noqa: PLR0911  (the hot path leaves early)
        """See `Dialect.read`."""
        if event is not None and event != b"message":
            return self._read_named(event, data)
        try:
            chunk = _decode_chunk(data)
        except UNREADABLE:
            return self._read_odd(data)
        choices = chunk.choices
        if (
            choices is None
            or len(choices) != 1
            or chunk.error is not None
            or chunk.timings is not None
            or chunk.metrics is not None
            or chunk.prompt_progress is not None
        ):
            return self._read_odd(data)
        choice = choices[0]
        delta = choice.delta
        if delta is None:
            text = choice.text
            kind = _CONTENT
        else:
            text = delta.content
            kind = _CONTENT
            if not text:
                text = delta.reasoning_content or delta.reasoning
                kind = _REASONING
        tokens = chunk.usage
        if not text or type(text) is not str:
            length = _typed_tool_length(delta)
            if not length or text or choice.finish_reason is not None or tokens is not None:
                return self._read_odd(data)
            return Meaning(_TOOL, length, chunk.id)
        if choice.finish_reason is not None:
            return self._read_odd(data)
        if tokens is None:
            return Meaning(kind, len(text), chunk.id)
        return Meaning(kind, len(text), chunk.id, "", Usage(tokens.prompt_tokens, tokens.completion_tokens))

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`."""
        if event is not None and event != b"message":
            return ""
        meaning = self.read(event, data)
        if meaning.finish_reason or meaning.usage is not None or meaning.timings is not None or meaning.has_content:
            return ""
        try:
            choices = _decode_chunk(data).choices
        except UNREADABLE:
            return ""
        if not choices:
            return ""
        choice = choices[0]
        delta = choice.delta
        text = choice.text if delta is None else delta.content or delta.reasoning_content or delta.reasoning
        # Only what the hot path of `read` took whole: another field with text would make the lengths differ.
        return text if isinstance(text, str) and len(text) == meaning.text else ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`."""
        return read_plain_body(body) or self._read_any_body(body)

    @staticmethod
    def _read_any_body(body: bytes) -> Meaning:
        obj = decode_leniently(body)
        if not isinstance(obj, dict):
            return Meaning(_OTHER)
        fault = find_fault(obj)
        if fault is not None:
            return Meaning(_ERROR, fault=fault)
        choices = obj.get("choices")
        rid = obj.get("id")
        usage = read_usage(obj.get("usage"))
        if isinstance(choices, list) and choices:
            kind, length, finish, answer = _read_choices(choices, "message")
        else:
            # Embeddings, model lists, transcriptions: an answer without generated text.
            kind, length, finish, answer = (_USAGE if usage else _OTHER), 0, "", False
        return Meaning(
            kind,
            length,
            rid if isinstance(rid, str) else "",
            finish,
            usage,
            usage is not None,
            timings=read_timings(obj),
            done=True,
            has_content=answer,
        )

    @staticmethod
    def _read_odd(data: bytes) -> Meaning:
        if data.strip() == _END:
            return Meaning(_DONE, done=True)
        obj = decode_leniently(data)
        return _read_object(obj) if isinstance(obj, dict) else Meaning(_OTHER)

    def _read_named(self, event: bytes, data: bytes) -> Meaning:
        if event == b"error":
            return Meaning(_ERROR, fault=named_fault(data, decode_leniently(data)))
        return self._read_odd(data)


_RESPONSES_TOKEN: Final = {
    "response.output_text.delta": _CONTENT,
    "response.audio.delta": _CONTENT,
    "response.audio.transcript.delta": _CONTENT,
    "response.reasoning_text.delta": _REASONING,
    "response.reasoning_summary_text.delta": _REASONING,
    "response.reasoning.delta": _REASONING,
    "response.refusal.delta": _REFUSAL,
    "response.function_call_arguments.delta": _TOOL,
    "response.custom_tool_call_input.delta": _TOOL,
    "response.mcp_call_arguments.delta": _TOOL,
    "response.code_interpreter_call_code.delta": _TOOL,
}
_RESPONSES_END: Final = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class _ResponsesEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None


_decode_responses = msgspec.json.Decoder(_ResponsesEvent).decode


def _responses_outcome(response: dict[str, Any]) -> tuple[str, EngineFault | None]:
    """(finish reason, fault) of a response object."""
    status = response.get("status")
    error = response.get("error")
    if status == "failed" or error:
        return "", find_fault({"error": error or {"message": "the response failed"}})
    if status == "incomplete":
        details = response.get("incomplete_details")
        return (as_text(details.get("reason")) or "incomplete") if isinstance(details, dict) else "incomplete", None
    if status == "completed":
        return "stop", None
    return ("cancelled", None) if status == "cancelled" else ("", None)


class OpenAIResponses:
    """`/v1/responses`: typed events, no `[DONE]`; the terminal event carries usage."""

    name = "openai.responses"
    ends_with_body = False

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`."""
        try:
            head = _decode_responses(data)
        except UNREADABLE:
            if event == b"error":
                return Meaning(_ERROR, fault=named_fault(data, None))
            return self._read_odd(data)
        kind = _RESPONSES_TOKEN.get(head.type)
        if kind is not None:
            length = text_length(head.delta)
            return Meaning(kind, length) if length else Meaning(_EMPTY)
        return self._read_control(event, data, head.type)

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`. Every event carries a running number, so no two are alike."""
        _ = event, data
        return ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`."""
        obj = decode_leniently(body)
        if not isinstance(obj, dict):
            return Meaning(_OTHER)
        finish, fault = _responses_outcome(obj) if obj.get("object") == "response" else ("", find_fault(obj))
        if fault is not None:
            return Meaning(_ERROR, fault=fault)
        usage = read_usage(obj.get("usage"))
        output = obj.get("output")
        items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        answer = sum(text_length(item.get("content")) for item in items)
        rest = sum(text_length(item.get("summary")) + _tool_length({"function_call": item}) for item in items)
        kind = _CONTENT if answer else _TOOL if rest else _FINISH
        return Meaning(
            kind,
            answer + rest,
            as_text(obj.get("id")),
            finish,
            usage,
            usage is not None,
            timings=read_timings(obj),
            done=True,
            has_content=answer > 0,
        )

    @staticmethod
    def _read_odd(data: bytes) -> Meaning:
        return Meaning(_DONE, done=True) if data.strip() == _END else Meaning(_OTHER)

    @staticmethod
    def _read_control(event: bytes | None, data: bytes, kind: str) -> Meaning:  # noqa: PLR0911  (one a type)
        obj = decode_leniently(data)
        if not isinstance(obj, dict):
            return Meaning(_OTHER)
        if kind == "error" or event == b"error" or (not kind and find_fault(obj)):
            return Meaning(_ERROR, fault=named_fault(data, obj))
        response = obj.get("response")
        if not isinstance(response, dict):
            response = {}
        rid = as_text(response.get("id"))
        if kind in _RESPONSES_END:
            finish, fault = _responses_outcome(response)
            usage = read_usage(response.get("usage"))
            if kind == "response.failed" and fault is None:
                fault = EngineFault("the response failed")
            if fault is not None:
                return Meaning(_ERROR, 0, rid, "", usage, usage is not None, fault, done=True)
            timings = read_timings(obj) or read_timings(response)
            return Meaning(_FINISH, 0, rid, finish or "stop", usage, usage is not None, None, timings, done=True)
        if kind == "response.output_item.added":
            item = obj.get("item")
            length = _tool_length({"function_call": item}) if isinstance(item, dict) else 0
            is_call = isinstance(item, dict) and str(item.get("type", "")).endswith("_call")
            return Meaning(_TOOL, length, rid) if is_call and length else Meaning(_ROLE, 0, rid)
        if kind in {"response.created", "response.in_progress", "response.queued"}:
            return Meaning(_ROLE, 0, rid)
        return Meaning(_OTHER, 0, rid)
