"""What a request asks for, read from its body with a typed decoder that ignores what it does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tailrace.gateway.prompt_size import ABSENT, Message, Part, Tally
from tailrace.govern.text_size import NO_TEXT, TextSize
from tailrace.govern.token_estimate import BYTES_PER_TOKEN
from tailrace.measure.dialect import UNREADABLE, as_coerced, as_count
from tailrace.measure.ledger import RequestLedger

LONGEST_NAME: Final = 256
"""Characters of a model's name that are read. Clients write it, and thousands of records in memory hold it, and labels;
the longest on Hugging Face has 122."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Knobs(msgspec.Struct):
    """What SGLang, TGI and Triton keep one level down."""

    max_new_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None


_NO_KNOBS: Final = _Knobs()


class _Body(msgspec.Struct):
    """The union of what the supported APIs call these things."""

    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n_predict: int | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    temperature: float | None = None
    stream_options: _StreamOptions | None = None
    messages: list[Message] | None = None
    system: str | list[Part] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    instructions: str | None = None
    input: str | list[msgspec.Raw] | None = None
    inputs: str | list[msgspec.Raw] | None = None
    """TGI's prompt; Triton's tensors."""
    text_input: str | None = None
    return_progress: bool | None = None
    text: str | list[str] | dict[str, msgspec.Raw] | None = None
    """SGLang's prompt; in `/v1/responses` how the answer is written."""
    sampling_params: msgspec.Raw = ABSENT
    parameters: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    response_format: dict[str, msgspec.Raw] | None = None
    structured_outputs: msgspec.Raw = ABSENT
    guided_json: msgspec.Raw = ABSENT
    guided_regex: msgspec.Raw = ABSENT
    guided_choice: msgspec.Raw = ABSENT
    guided_grammar: msgspec.Raw = ABSENT
    grammar: msgspec.Raw = ABSENT
    json_schema: msgspec.Raw = ABSENT


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that admission, injection and the record need."""

    model: str = ""
    stream: bool = False
    prompt_tokens: int | None = None
    """An estimate: UTF-8 bytes of the text fields / 4, or what the model's own counts have made of that; token ids
    counted one each; images and audio not counted."""
    size: TextSize = NO_TEXT
    """What the estimate is made of."""
    max_tokens: int | None = None
    n: int = 1
    best_of: int = 1
    beam: int = 1
    prompts: int = 1
    """Prompts in one body, each with completions of its own."""
    sampled: bool | None = None
    grammar: bool = False
    usage_asked: bool = False
    """The client itself asked for the usage frame."""
    has_stream_options: bool = False
    progress_asked: bool = False
    """The client itself asked for llama.cpp's progress frames."""
    audio_seconds: float | None = None
    """Length of the audio, where its header says so."""

    @property
    def completions(self) -> int:
        """How many the engine works on."""
        return max(self.n, self.best_of, self.beam) * self.prompts

    def enter_in(self, ledger: RequestLedger) -> None:
        """Put into the ledger what the record shows of it."""
        ledger.model = self.model[:LONGEST_NAME]
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
    below = _NO_KNOBS
    if asked.sampling_params is not ABSENT or asked.parameters is not ABSENT:
        below = _read_knobs(asked.parameters if asked.sampling_params is ABSENT else asked.sampling_params)
    copies, best_of = asked.n or below.n, asked.best_of or below.best_of
    temperature = below.temperature if asked.temperature is None else asked.temperature
    size = _size(asked)
    kind = bytes((asked.response_format or {}).get("type", b"")) if asked.response_format else b""
    return Work(
        model=asked.model[:LONGEST_NAME],
        stream=bool(asked.stream),
        prompt_tokens=plain_estimate(size),
        size=size,
        max_tokens=_most(
            (
                asked.max_completion_tokens,
                asked.max_tokens,
                asked.max_output_tokens,
                asked.n_predict,
                below.max_new_tokens,
                below.max_tokens,
            )
        ),
        n=as_count(copies) or 1,
        best_of=as_count(best_of) or 1,
        beam=(as_count(best_of) or as_count(copies) or 1) if asked.use_beam_search else 1,
        prompts=max(_batch(asked.prompt), _batch(asked.text)),
        sampled=None if temperature is None else temperature > 0,
        grammar=kind not in (b"", b'"text"') or _constrained(asked),
        usage_asked=bool(options and options.include_usage),
        progress_asked=bool(asked.return_progress),
        has_stream_options=options is not None,
    )


def _read_knobs(raw: msgspec.Raw) -> _Knobs:
    """What is one level down; of a list, one for each prompt of a batch, the most that any of them asks for."""
    try:
        said = msgspec.json.decode(raw)
    except UNREADABLE:
        return _NO_KNOBS
    each = [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, dict)]
    heat = [one["temperature"] for one in each if type(one.get("temperature")) in (int, float)]
    return _Knobs(
        **{name: _most([one.get(name) for one in each]) for name in _COUNTS_BELOW},
        temperature=max(heat, default=None),
    )


_COUNTS_BELOW: Final = ("max_new_tokens", "max_tokens", "n", "best_of")


def _batch(source: Any) -> int:
    """Prompts in a list of texts or of token ids; one, where it is one."""
    if not isinstance(source, list) or not source or isinstance(source[0], int):
        return 1
    return len(source)


def _constrained(asked: _Body) -> bool:
    """Whether any of the fields by which engines constrain their output is used."""
    return (
        (asked.structured_outputs is not ABSENT and _given(asked.structured_outputs))
        or (asked.guided_json is not ABSENT and _given(asked.guided_json))
        or (asked.guided_regex is not ABSENT and _given(asked.guided_regex))
        or (asked.guided_choice is not ABSENT and _given(asked.guided_choice))
        or (asked.guided_grammar is not ABSENT and _given(asked.guided_grammar))
        or (asked.grammar is not ABSENT and _given(asked.grammar))
        or (asked.json_schema is not ABSENT and _given(asked.json_schema))
    )


def _size(asked: _Body) -> TextSize:
    tally = Tally()
    tally.content(asked.system)
    tally.text(asked.instructions)
    for message in asked.messages or ():
        tally.message(message)
    for source in (asked.prompt, asked.input, asked.text_input):
        if source is not None:
            tally.members(source)
    if isinstance(asked.inputs, str):
        tally.text(asked.inputs)
    if asked.text is not None and not isinstance(asked.text, dict):
        tally.members(asked.text)
    tally.raw(asked.tools)
    return tally.size()


def plain_estimate(size: TextSize) -> int:
    """Tokens where nothing is known of the model: a quarter of the bytes."""
    return -(-size.text // BYTES_PER_TOKEN) + size.ids


def _most(values: Sequence[Any]) -> int | None:
    """The largest count among fields of which some engine reads any: it must not matter which."""
    return max((count for value in values if (count := as_coerced(value)) is not None), default=None)


def _read_leniently(body: bytes) -> Work:
    try:
        raw: Any = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise BodyError(str(error)) from None
    if not isinstance(raw, dict):
        raise BodyError("the body is no JSON object")
    model, options = raw.get("model"), raw.get("stream_options")
    below = _NO_KNOBS
    for holder in ("sampling_params", "parameters"):
        if holder in raw and below is _NO_KNOBS:
            below = _read_knobs(msgspec.Raw(msgspec.json.encode(raw[holder])))
    copies, best_of = (as_coerced(raw.get(key)) or getattr(below, key) or 1 for key in ("n", "best_of"))
    return Work(
        model=model[:LONGEST_NAME] if isinstance(model, str) else "",
        stream=raw.get("stream") is True,
        prompt_tokens=plain_estimate(TextSize(narrow=len(body))),
        size=TextSize(narrow=len(body)),
        max_tokens=_most([*(raw.get(key) for key in _LIMITS), below.max_new_tokens, below.max_tokens]),
        n=copies,
        best_of=best_of,
        beam=max(copies, best_of) if raw.get("use_beam_search") else 1,
        prompts=max(_batch(raw.get("prompt")), _batch(raw.get("text"))),
        usage_asked=isinstance(options, dict) and options.get("include_usage") is True,
        progress_asked=raw.get("return_progress") is True,
        has_stream_options="stream_options" in raw,
    )


_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")


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
