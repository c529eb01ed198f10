"""The typed reading of a plain chat answer says what the lenient one says, or nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.openai import REASONING_FIELDS, OpenAIChat
from tailrace.measure.openai_body import read_plain_body

PLAIN: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}},
}

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**60),
    st.text(max_size=4),
    st.sampled_from(["error", "abort", "stop", [], {}, [{}], {"content": "x"}, {"type": "abort"}]),
)


def lenient(body: bytes) -> object:
    return OpenAIChat._read_any_body(body)


def test_a_plain_answer_is_read() -> None:
    body = json.dumps(PLAIN).encode()
    meaning = read_plain_body(body)
    assert meaning is not None
    assert meaning == lenient(body)
    assert meaning.usage is not None
    assert (meaning.usage.completion, meaning.usage.cached) == (5, 2)


def test_the_engines_timings_are_kept_with_the_name_of_their_field() -> None:
    for field in ("metrics", "timings"):
        body = json.dumps({**PLAIN, field: {"queue_time_ms": 1.5}}).encode()
        assert read_plain_body(body) == lenient(body)
    body = json.dumps({**PLAIN, "metrics": {"a": 1}, "timings": {"b": 2}}).encode()
    assert read_plain_body(body) == lenient(body)


@given(
    top=st.dictionaries(
        st.sampled_from(["id", "object", "type", "error", "detail", "usage", "choices", "timings", "metrics", "code"]),
        odd,
        max_size=2,
    ),
    choice=st.dictionaries(
        st.sampled_from(["finish_reason", "message", "text", "meta_info", "delta"]), odd, max_size=2
    ),
    message=st.dictionaries(
        st.sampled_from(
            ["content", "role", *REASONING_FIELDS, "tool_calls", "function_call", "refusal", "audio", "text"],
        ),
        odd,
        max_size=2,
    ),
    usage=st.dictionaries(
        st.sampled_from(
            [
                "prompt_tokens",
                "completion_tokens",
                "input_tokens",
                "output_tokens",
                "prompt_tokens_details",
                "input_tokens_details",
            ]
        ),
        odd,
        max_size=2,
    ),
    twice=st.booleans(),
)
def test_never_another_meaning(
    top: dict[str, Any], choice: dict[str, Any], message: dict[str, Any], usage: dict[str, Any], twice: bool
) -> None:
    first = PLAIN["choices"][0]
    changed = {**first, "message": {**first["message"], **message}, **choice}
    value = {**PLAIN, "choices": [changed, first] if twice else [changed], "usage": {**PLAIN["usage"], **usage}, **top}
    body = json.dumps(value).encode()
    meaning = read_plain_body(body)
    assert meaning is None or meaning == lenient(body)
