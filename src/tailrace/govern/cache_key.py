"""Which requests ask the same question: the canonical form of a body, and whether its answer may be given again.

Two bodies are the same question when they differ in nothing but the order of keys, white space, how a number is
written, keys that are null, and keys that cannot change the answer. Everything else, unknown keys included, tells them
apart: an engine may read a key that we do not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import msgspec

EMBEDDINGS: Final = "/v1/embeddings"
CACHEABLE_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    EMBEDDINGS,
)
"""Endpoints whose body says whether its answer is the same each time."""

_IDLE: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier", "request_id"})
"""Keys that say who asks, or how soon, never what. `metadata` of `/v1/messages` holds the user's id alone."""
_PRIORITY: Final = "priority"
"""vLLM's and SGLang's place in their line: it changes when an answer comes and nothing in it."""
_STATEFUL: Final = ("previous_response_id", "conversation", "background")
_KEY_BYTES: Final = 16
_DEEPEST: Final = 64
_MOST_VALUES: Final = 20_000
"""In a body that is looked up: each costs 0.2 us of the one loop. A megabyte of token ids has ten times as many."""
_MOST_COMMAS: Final = 100_000
"""A body with more is not even decoded. A text of 4 MB has half as many."""


class Question(msgspec.Struct, frozen=True):
    """A request whose answer may be given again."""

    key: bytes
    """Of everything that decides the answer, and of who asks."""
    stream: bool
    partition: bytes = b""
    """As `key`, without the text of the last question: what must be equal for a semantic hit. Empty where nothing can
    be compared by meaning."""
    text: str = ""
    """The text of the last question."""


def question(
    body: bytes, *, path: str, owner: bytes, scope: Iterable[bytes] = (), semantic: bool = False
) -> Question | None:
    """Read a request's JSON body; `None` where its answer may differ from one time to the next, or cannot be read.

    `owner`: the hash of who asks (see `owner_of`), `scope`: header values that may change the answer. With `semantic`
    the question's text and partition are given too.
    """
    said, left = _said(body), [_MOST_VALUES]
    if said is None or not repeats(said, path):
        return None
    try:
        plain = {
            key: _canonical(value, left)
            for key, value in said.items()
            if value is not None and key not in _IDLE and key != _PRIORITY
        }
    except RecursionError:
        return None
    stream = plain.get("stream") is True
    # A stream and a whole answer are two questions: neither can be made of the other without inventing its events.
    plain["stream"] = stream
    fixed = (path.encode(), owner, *scope)
    key = _digest(fixed, plain)
    if not semantic:
        return Question(key, stream)
    text, rest = _last_text(plain)
    if not text:
        return Question(key, stream)
    return Question(key, stream, _digest((b"meaning", *fixed), rest), text)


def _said(body: bytes) -> dict[str, Any] | None:
    """The JSON object of a body; `None` where it is none, or takes too long to read."""
    if body.count(b",") > _MOST_COMMAS:
        return None
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def repeats(said: dict[str, Any], path: str) -> bool:
    """Whether the same body has the same answer: greedy or seeded sampling, embeddings; nothing that keeps a state."""
    if path == EMBEDDINGS:
        return True
    if any(said.get(key) for key in _STATEFUL):
        return False
    if path == "/v1/responses" and said.get("store") is not False:
        return False  # the engine keeps the answer under an id that the client may ask for: each is its own
    if said.get("store") is True:
        return False
    seed, temperature = said.get("seed"), said.get("temperature")
    seeded = isinstance(seed, int) and not isinstance(seed, bool)
    greedy = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    return seeded or greedy


def owner_of(secret: bytes, tenant: str, credentials: Iterable[bytes]) -> bytes:
    """Who asks, as 16 bytes: the tenant and what the client proves itself with, under a secret of this process.

    No key can be read or tried out from a dump of the cache, and nobody shares an answer with anybody else.
    """
    hashed = blake2b(key=secret, digest_size=_KEY_BYTES)
    for part in (tenant.encode("utf-8", "surrogatepass"), *credentials):
        hashed.update(len(part).to_bytes(4, "big"))
        hashed.update(part)
    return hashed.digest()


def _digest(parts: Iterable[bytes], plain: dict[str, Any]) -> bytes:
    hashed = blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        hashed.update(len(part).to_bytes(4, "big"))
        hashed.update(part)
    hashed.update(msgspec.json.encode(plain, order="sorted"))
    return hashed.digest()


def _canonical(value: Any, left: list[int], depth: int = 0) -> Any:
    """`0.0` and `0` are one number; within a mapping, a null is kept: in a schema or a tool it may mean something.

    RecursionError for what is nested too deep, or has more than the values that are `left`.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict | list):
        left[0] -= len(value)
        if depth > _DEEPEST or left[0] < 0:
            raise RecursionError
        if isinstance(value, dict):
            return {key: _canonical(part, left, depth + 1) for key, part in value.items()}
        return [_canonical(part, left, depth + 1) for part in value]
    return value


def _last_text(plain: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(the text of the last question, the body without it); no text where the last word is not the user's own."""
    for name in ("prompt", "input"):
        value = plain.get(name)
        if isinstance(value, str):
            return value, {**plain, name: ""}
    messages = plain.get("messages")
    if not isinstance(messages, list) or not messages:
        return "", plain
    last = messages[-1]
    if not isinstance(last, dict) or last.get("role") != "user" or not isinstance(last.get("content"), str):
        return "", plain  # a picture, a tool's result: what it means is not in its text alone
    return last["content"], {**plain, "messages": [*messages[:-1], {**last, "content": ""}]}
