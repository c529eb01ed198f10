"""What a request asks for, read from its body with a typed decoder that ignores what it does not know."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE, as_count
from tailrace.measure.ledger import RequestLedger

_ABSENT: Final = msgspec.Raw()


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = _ABSENT


class _Body(msgspec.Struct):
    """The union of what the supported APIs call these things."""

    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    temperature: float | None = None
    stream_options: _StreamOptions | None = None
    messages: list[_Message] | None = None
    system: str | list[_Part] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    input: str | list[msgspec.Raw] | None = None
    text_input: str | None = None
    return_progress: bool | None = None
    text: str | list[str] | None = None
    tools: msgspec.Raw = _ABSENT
    response_format: dict[str, msgspec.Raw] | None = None
    structured_outputs: msgspec.Raw = _ABSENT
    guided_json: msgspec.Raw = _ABSENT
    guided_regex: msgspec.Raw = _ABSENT
    guided_choice: msgspec.Raw = _ABSENT
    guided_grammar: msgspec.Raw = _ABSENT
    grammar: msgspec.Raw = _ABSENT
    json_schema: msgspec.Raw = _ABSENT


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that admission, injection and the record need."""

    model: str = ""
    stream: bool = False
    prompt_tokens: int | None = None
    """An estimate: UTF-8 bytes of the text fields / 4, token ids counted one each; images and audio not counted."""
    max_tokens: int | None = None
    n: int = 1
    best_of: int = 1
    beam: int = 1
    sampled: bool | None = None
    grammar: bool = False
    usage_asked: bool = False
    """The client itself asked for the usage frame."""
    has_stream_options: bool = False
    progress_asked: bool = False
    """The client itself asked for llama.cpp's progress frames."""
    audio_seconds: float | None = None
    """Length of the audio, where its header says so."""

    def enter_in(self, ledger: RequestLedger) -> None:
        """Put into the ledger what the record shows of it."""
        ledger.model = self.model
        ledger.stream = self.stream
        ledger.max_tokens = self.max_tokens
        ledger.n, ledger.best_of, ledger.beam = self.n, self.best_of, self.beam
        ledger.sampled, ledger.grammar = self.sampled, self.grammar
        ledger.audio_seconds = self.audio_seconds
        if self.prompt_tokens is not None:
            ledger.prompt_tokens = self.prompt_tokens
            ledger.prompt_tokens_source = "estimate"


class BodyError(Exception):
    """The body is no JSON object."""


_decoder = msgspec.json.Decoder(_Body)
BYTES_PER_TOKEN = 4
"""English text under the common BPE vocabularies; 10-30 % off in either direction, more for code and CJK text."""


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _parts(content: str | list[_Part] | None) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return _size(content)
    return sum(_size(part.text) for part in content if part.text)


def _given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"null", b"[]", b"{}")


def read_work(body: bytes) -> Work:
    """Read a JSON body. Raises `BodyError` when it is no JSON object.

    A body of the right syntax and a wrong type somewhere is not refused here: the engine owns its schema and answers
    for it. Then only the fields that can be read are.
    """
    try:
        asked = _decoder.decode(body)
    except msgspec.ValidationError:
        return _read_leniently(body)
    except UNREADABLE as error:
        raise BodyError(str(error)) from None
    options = asked.stream_options
    kind = bytes((asked.response_format or {}).get("type", b"")) if asked.response_format else b""
    return Work(
        model=asked.model,
        stream=bool(asked.stream),
        prompt_tokens=_prompt_tokens(asked),
        max_tokens=_first(asked.max_completion_tokens, asked.max_tokens, asked.max_output_tokens),
        n=as_count(asked.n) or 1,
        best_of=as_count(asked.best_of) or 1,
        beam=(as_count(asked.best_of) or as_count(asked.n) or 1) if asked.use_beam_search else 1,
        sampled=None if asked.temperature is None else asked.temperature > 0,
        grammar=kind not in (b"", b'"text"') or _constrained(asked),
        usage_asked=bool(options and options.include_usage),
        progress_asked=bool(asked.return_progress),
        has_stream_options=options is not None,
    )


def _constrained(asked: _Body) -> bool:
    """Whether any of the fields by which engines constrain their output is used."""
    return (
        (asked.structured_outputs is not _ABSENT and _given(asked.structured_outputs))
        or (asked.guided_json is not _ABSENT and _given(asked.guided_json))
        or (asked.guided_regex is not _ABSENT and _given(asked.guided_regex))
        or (asked.guided_choice is not _ABSENT and _given(asked.guided_choice))
        or (asked.guided_grammar is not _ABSENT and _given(asked.guided_grammar))
        or (asked.grammar is not _ABSENT and _given(asked.grammar))
        or (asked.json_schema is not _ABSENT and _given(asked.json_schema))
    )


def _prompt_tokens(asked: _Body) -> int:
    size = _parts(asked.system)
    for message in asked.messages or ():
        size += _parts(message.content)
        if message.tool_calls is not _ABSENT:
            size += len(bytes(message.tool_calls))
    ids = 0
    for source in (asked.prompt, asked.input, asked.text_input, asked.text):
        if isinstance(source, str):
            size += _size(source)
        elif source is not None:
            text, count = _members(source)
            size += text
            ids += count
    if asked.tools is not _ABSENT and _given(asked.tools):
        size += len(bytes(asked.tools))
    return -(-size // BYTES_PER_TOKEN) + ids


def _members(source: list[Any]) -> tuple[int, int]:
    """(bytes of text, number of token ids) in a list of texts, ids, lists of ids, or raw items."""
    size = ids = 0
    for member in source:
        if isinstance(member, str):
            size += _size(member)
        elif isinstance(member, int):
            ids += 1
        elif isinstance(member, list):
            ids += len(member)
        else:
            size += len(bytes(member))
    return size, ids


def _first(*values: int | None) -> int | None:
    return as_count(next((value for value in values if value is not None), None))


def _read_leniently(body: bytes) -> Work:
    try:
        raw: Any = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise BodyError(str(error)) from None
    if not isinstance(raw, dict):
        raise BodyError("the body is no JSON object")
    model, options = raw.get("model"), raw.get("stream_options")
    limits = (as_count(raw.get(key)) for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    return Work(
        model=model if isinstance(model, str) else "",
        stream=raw.get("stream") is True,
        prompt_tokens=-(-len(body) // BYTES_PER_TOKEN),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        usage_asked=isinstance(options, dict) and options.get("include_usage") is True,
        progress_asked=raw.get("return_progress") is True,
        has_stream_options="stream_options" in raw,
    )


def with_fields(body: bytes, work: Work, fields: dict[str, Any]) -> bytes:
    """`body` with top-level `fields` set; the rest of it keeps its bytes.

    Where none of the fields can be there already, they are put in front, without decoding the prompt; a client's own
    `stream_options` is kept and extended.
    """
    if not fields:
        return body
    start = body.index(b"{") + 1
    empty = body[start : start + 64].lstrip()[:1] in (b"", b"}")
    if not empty and not work.has_stream_options and not any(b'"%b"' % name.encode() in body for name in fields):
        head = msgspec.json.encode(fields)
        return b"%b%b,%b" % (body[: start - 1], head[:-1], body[start:])
    whole: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name, value in fields.items():
        if name == "stream_options" and work.has_stream_options:
            own = msgspec.json.decode(whole[name])
            whole[name] = {**(own if isinstance(own, dict) else {}), **value}
        else:
            whole[name] = value
    return msgspec.json.encode(whole)
