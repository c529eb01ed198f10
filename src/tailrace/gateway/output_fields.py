"""Where each API says how long its answer may be, and how to say something else there."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE, as_count

_OPENAI: Final = ("n_predict", "max_completion_tokens", "max_tokens")
_OF_ONE_ENGINE: Final = frozenset({"n_predict"})
"""llama.cpp's own: it is bounded, and bounds nothing with another engine."""
_TRITON: Final = "/v2/models/{model}/generate"
_TOP: Final[dict[str, tuple[str, ...]]] = {
    "/v1/chat/completions": _OPENAI,
    "/v1/completions": ("n_predict", "max_tokens"),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    _TRITON: ("max_tokens",),
    f"{_TRITON}_stream": ("max_tokens",),
}
"""Endpoint -> the fields that bound its output. Where a client gives none, the last one is set: every engine that
speaks the API knows `max_tokens`, not all of them the newer name."""
_BELOW: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "/generate": (("sampling_params", "max_new_tokens"), ("parameters", "max_new_tokens")),
    "/generate_stream": (("parameters", "max_new_tokens"),),
    _TRITON: (("parameters", "max_tokens"),),
    f"{_TRITON}_stream": (("parameters", "max_tokens"),),
}
"""Endpoint -> (object, field) pairs: SGLang's, TGI's, Triton's."""
HAS_OUTPUT: Final = frozenset(_TOP.keys() | _BELOW.keys())
"""Endpoints whose output can be bounded."""


def with_output(endpoint: str, body: bytes, each: int) -> bytes | None:
    """`body` asking for at most `each` tokens a completion; `None` where that cannot be said in it.

    What the client asked for and is less stays. A `min_tokens` above the bound comes down to it: engines refuse one
    that is above the maximum.
    """
    try:
        given: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None
    fields: dict[str, Any] = {name: each for name in _TOP.get(endpoint, ()) if _above(given.get(name), each)}
    said = any(_count(given.get(name)) is not None for name in _TOP.get(endpoint, ()) if name not in _OF_ONE_ENGINE)
    for holder, name in _BELOW.get(endpoint, ()):
        inner = _object(given.get(holder))
        if inner is None:
            if holder in given and not _null(given[holder]):
                return None  # a list of them, one for each prompt of a batch
            continue
        changed = _bounded(inner, name, each)
        if changed is not None:
            fields[holder] = changed
        said = said or changed is not None or as_count(inner.get(name)) is not None
    if not said:
        fields |= _set(endpoint, given, each)
    if _above(given.get("min_tokens"), each):
        fields["min_tokens"] = each
    # Written anew, not put in front: readers differ on which of two equal keys counts, also where one is spelled with
    # escapes, and a bound that a client can get round is none.
    return msgspec.json.encode({**given, **fields})


def _set(endpoint: str, given: dict[str, Any], each: int) -> dict[str, Any]:
    """The field to add where the client says nothing."""
    below = _BELOW.get(endpoint)
    if below is None:
        return {_TOP[endpoint][-1]: each}
    # `/generate` is SGLang's or TGI's; the field of the prompt tells which.
    holder, name = below[-1] if "inputs" in given else below[0]
    return {holder: {**(_object(given.get(holder)) or {}), name: each}}


def _bounded(inner: dict[str, Any], name: str, each: int) -> dict[str, Any] | None:
    out = dict(inner)
    for key in (name, "min_new_tokens", "min_tokens"):
        value = as_count(inner.get(key))
        if value is not None and value > each:
            out[key] = each
    return out if out != inner else None


def _count(raw: Any) -> int | None:
    if raw is None:
        return None
    try:
        return as_count(msgspec.json.decode(raw))
    except UNREADABLE:
        return None


def _above(raw: Any, each: int) -> bool:
    value = _count(raw)
    return value is not None and value > each


def _null(raw: Any) -> bool:
    return bytes(raw) == b"null"


def _object(raw: Any) -> dict[str, Any] | None:
    if raw is None:
        return None
    try:
        value = msgspec.json.decode(raw)
    except UNREADABLE:
        return None
    return value if isinstance(value, dict) else None
