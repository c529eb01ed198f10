"""Where each API says how long its answer may be, and how to say something else there."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tailrace.gateway.prompt_size import ABSENT
from tailrace.measure.dialect import MAX_COUNT, UNREADABLE, as_coerced

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
_ESCAPED: Final = re.compile(rb"\\u00[567]")
"""A key may be spelled with escapes of its letters; those of other letters (`\\u00e9`) are in many a prompt."""
HAS_OUTPUT: Final = frozenset(_TOP.keys() | _BELOW.keys())
"""Endpoints whose output can be bounded."""


class _Bounds(msgspec.Struct):
    """Every field named above. Whatever else is in a body is passed over; a mapping of it all costs ten times that."""

    n_predict: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_output_tokens: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT
    parameters: msgspec.Raw = ABSENT


_bounds = msgspec.json.Decoder(_Bounds)


def unambiguous(endpoint: str, body: bytes) -> bytes:
    """`body` with each key that bounds its output once, as we have read it: readers differ on which of two counts."""
    below = _BELOW.get(endpoint, ())
    names = {*_TOP.get(endpoint, ()), *(part for pair in below for part in pair)}
    if not _ESCAPED.search(body) and all(body.count(b'"%b"' % name.encode()) < 2 for name in names):
        return body  # nearly always; a tool's field of such a name is written anew for nothing
    try:
        given: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        inner = {holder: msgspec.json.decode(given[holder]) for holder, _ in below if holder in given}
        return msgspec.json.encode({**given, **inner})
    except UNREADABLE:
        return body


def asked_output(endpoint: str, body: bytes) -> int | None:
    """The most tokens a completion that any reader of `body` may find asked for in it; `None` where it says nothing.

    An endpoint has several fields for it, and engines differ on which they read and in what they take for a number;
    fields of other endpoints are read by nobody. What is no count (`-1` is without end to llama.cpp) asks for
    `MAX_COUNT`: whoever bounds it does not rely on how it is read.
    """
    try:
        given = _bounds.decode(body)
    except UNREADABLE:
        return None
    found = [_asked(_value(getattr(given, name))) for name in _TOP.get(endpoint, ())]
    for holder, name in _BELOW.get(endpoint, ()):
        inner = _value(getattr(given, holder))
        found += [_asked(each.get(name)) for each in _objects(inner)]
    return max((count for count in found if count is not None), default=None)


def with_output(endpoint: str, body: bytes, each: int) -> bytes | None:
    """`body` asking for at most `each` tokens a completion; `None` where that cannot be said in it.

    What the client asked for and is less stays. A `min_tokens` above the bound comes down to it: engines refuse one
    that is above the maximum.
    """
    try:
        given: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None
    tops = {name: _value(given.get(name)) for name in _TOP.get(endpoint, ())}
    fields: dict[str, Any] = {name: each for name, value in tops.items() if _above(value, each)}
    said = any(value is not None for name, value in tops.items() if name not in _OF_ONE_ENGINE)
    for holder, name in _BELOW.get(endpoint, ()):
        inner = _value(given.get(holder))
        if inner is None:
            continue
        if isinstance(inner, list):  # SGLang: one for each prompt of a batch
            fields[holder] = [{name: each, **_bounded(one, name, each)} for one in _objects(inner)]
            said = True
        elif isinstance(inner, dict):  # anything else no engine reads
            fields[holder] = _bounded(inner, name, each)
            said = said or inner.get(name) is not None
    if not said:
        for holder, value in _set(endpoint, given, each).items():
            fields[holder] = {**fields.get(holder, {}), **value} if isinstance(value, dict) else value
    if _above(_value(given.get("min_tokens")), each):
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
    return {holder: {name: each}}


def _bounded(inner: dict[str, Any], name: str, each: int) -> dict[str, Any]:
    keys = [key for key in (name, "min_new_tokens", "min_tokens") if _above(inner.get(key), each)]
    return {**inner, **dict.fromkeys(keys, each)}


def _asked(value: Any) -> int | None:
    """What one field asks for; `None` where it says nothing."""
    if value is None:
        return None
    count = as_coerced(value)
    return MAX_COUNT if count is None else count


def _above(value: Any, each: int) -> bool:
    asked = _asked(value)
    return asked is not None and asked > each


def _value(raw: Any) -> Any:
    if raw is None or raw is ABSENT:
        return None
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return ""  # present, and no count


def _objects(value: Any) -> list[dict[str, Any]]:
    """A mapping, or those in a list."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
