"""What a client asks: the body of a chat or completions call, checked, and refused in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.simserve.options import ServerOptions
from tailrace.simserve.words import drawn_length, fingerprint

CHARS_PER_TOKEN = 4
"""A prompt is counted as one token for every four characters, unless the body says `tailrace_prompt_tokens`."""


class Refusal(Exception):  # noqa: N818  (named for what it is)
    """A request that the engine refuses, with vLLM's status and error object."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct):
    """The fields that matter to the engine; all others are accepted and ignored."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    priority: int | None = None
    tailrace_prompt_tokens: int | None = None
    """Pins the prompt's token count."""
    tailrace_output_tokens: int | None = None
    """Pins the output's token count (up to the request's own limit)."""


_DECODER = msgspec.json.Decoder(Body)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was accepted: lengths decided, nothing computed yet."""

    chat: bool
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    finish_reason: str
    priority: int
    fingerprint: int
    prefix: tuple[int, ...]


def read_ask(
    raw: bytes, headers: Mapping[str, str], *, chat: bool, model: str, max_model_len: int, options: ServerOptions
) -> Ask:
    """Check a body and decide its lengths.

    The output has `max_tokens` tokens with `ignore_eos`; otherwise its length is drawn (log-normal, the same for the
    same seed and content), at least `min_tokens`, at most `max_tokens`.

    Raises:
        Refusal: bad JSON, a field of the wrong type, an unknown model, `n` other than 1, a prompt that is too long.
    """
    try:
        body = _DECODER.decode(raw)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        place = path.strip("`").replace("$", "body", 1) or "body"
        raise Refusal(
            400, f"1 validation error:\n  {{'loc': '{place}', 'msg': '{text}'}}", "Bad Request", place
        ) from None
    except UNREADABLE as error:
        raise Refusal(
            400,
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error: {error}'}}",
            "Bad Request",
            "body",
        ) from None
    _check_target(body, chat=chat, model=model)
    content, counted = _prompt(body, chat=chat)
    prompt_tokens = body.tailrace_prompt_tokens or counted
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    _check_lengths(prompt_tokens, limit, max_model_len)
    room = max_model_len - prompt_tokens
    max_tokens = room if limit is None else min(limit, room)
    mark = fingerprint(options.seed, content)
    output, finish = _output(body, mark, max_tokens, options)
    usage = body.stream_options
    return Ask(
        chat=chat,
        model=model,
        stream=bool(body.stream),
        include_usage=bool(usage and usage.include_usage),
        continuous_usage=bool(usage and usage.include_usage and usage.continuous_usage_stats),
        prompt_tokens=prompt_tokens,
        output_tokens=output,
        max_tokens=max_tokens,
        finish_reason=finish,
        priority=_priority(body, headers),
        fingerprint=mark,
        # A pinned count says nothing about which tokens are shared: such a prompt hits nobody's cache.
        prefix=() if body.tailrace_prompt_tokens else chained_hashes(content),
    )


def chained_hashes(content: bytes, stretch: int = 16 * CHARS_PER_TOKEN) -> tuple[int, ...]:
    """Hashes of the consecutive whole stretches of a prompt, each including all before it: equal hash, equal prefix."""
    out: list[int] = []
    digest = b""
    for at in range(0, len(content) - stretch + 1, stretch):
        digest = blake2b(digest + content[at : at + stretch], digest_size=8).digest()
        out.append(int.from_bytes(digest, "big"))
    return tuple(out)


def _check_target(body: Body, *, chat: bool, model: str) -> None:
    if body.model is not None and body.model != model:
        raise Refusal(
            404, f"The model `{body.model}` does not exist. Valid aliases: {model}.", "NotFoundError", "model"
        )
    if body.n not in (None, 1):
        raise Refusal(400, f"n={body.n} is not supported by the simulated engine; use n=1.", "BadRequestError", "n")
    name = "messages" if chat else "prompt"
    if not getattr(body, name):
        raise Refusal(
            400,
            f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required'}}",
            "Bad Request",
            f"body.{name}",
        )


def _prompt(body: Body, *, chat: bool) -> tuple[bytes, int]:
    """The prompt's content, and its token count."""
    if chat:
        parts: list[str] = []
        for message in body.messages or ():
            parts.append(f"<|{message.get('role', 'user')}|>")
            content = message.get("content")
            if isinstance(content, str):
                parts.append(content)
            elif isinstance(content, list):
                parts += [str(part.get("text", "")) for part in content if isinstance(part, dict)]
        content_bytes = "".join(parts).encode("utf-8", "surrogatepass")
        return content_bytes, max(1, len(content_bytes) // CHARS_PER_TOKEN)
    prompt = body.prompt
    if isinstance(prompt, list):
        if all(isinstance(token, int) for token in prompt):
            return msgspec.json.encode(prompt), len(prompt)
        if len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        elif len(prompt) == 1 and isinstance(prompt[0], list):
            return msgspec.json.encode(prompt[0]), len(prompt[0])
        else:
            raise Refusal(400, "The simulated engine takes one prompt a request.", "BadRequestError", "prompt")
    data = str(prompt).encode("utf-8", "surrogatepass")
    return data, max(1, len(data) // CHARS_PER_TOKEN)


def _check_lengths(prompt: int, limit: int | None, max_model_len: int) -> None:
    if prompt < 1:
        raise Refusal(400, f"tailrace_prompt_tokens={prompt} must be at least 1.", "BadRequestError", "input_tokens")
    if prompt >= max_model_len:
        raise Refusal(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least "
            f"{prompt} input tokens, which exceeds this limit even without any output tokens. Please reduce the length "
            f"of the input prompt. (parameter=input_tokens, value={prompt})",
            "BadRequestError",
            "input_tokens",
        )
    if limit is None:
        return
    if limit < 1:
        raise Refusal(
            400,
            f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})",
            "BadRequestError",
            "max_tokens",
        )
    if limit > max_model_len:
        raise Refusal(
            400,
            f"max_tokens={limit} cannot be greater than max_model_len={max_model_len}. Please request fewer output "
            f"tokens. (parameter=max_tokens, value={limit})",
            "BadRequestError",
            "max_tokens",
        )


def _output(body: Body, mark: int, max_tokens: int, options: ServerOptions) -> tuple[int, str]:
    if body.tailrace_output_tokens is not None and body.tailrace_output_tokens > 0:
        wanted = body.tailrace_output_tokens
    elif body.ignore_eos:
        return max_tokens, "length"
    else:
        wanted = drawn_length(mark, options.output_median, options.output_sigma)
    wanted = max(wanted, body.min_tokens or 0)
    return (wanted, "stop") if wanted < max_tokens else (max_tokens, "length")


def _priority(body: Body, headers: Mapping[str, str]) -> int:
    """The header wins over the body, as in vLLM."""
    value = headers.get("x-vllm-priority")
    if value is None:
        return body.priority or 0
    try:
        return int(value)
    except ValueError:
        raise Refusal(
            400, f"X-Vllm-Priority must be an integer, got {value!r}.", "BadRequestError", "X-Vllm-Priority"
        ) from None
