from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.dialect import Usage
from tailrace.measure.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, dialect_for
from tailrace.measure.openai import REASONING_FIELDS
from tailrace.model.timeline import EventKind as K
from tests.measure.transcripts import STREAMS, chunk, delta


def kind_of(**fields: Any) -> K:
    return CHAT.read(None, delta(**fields).encode()).kind


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"content": "x"}, K.CONTENT),
        ({"role": "assistant", "content": "x"}, K.CONTENT),
        ({"content": ""}, K.EMPTY),
        ({}, K.EMPTY),
        ({"role": "assistant", "content": ""}, K.ROLE),
        ({"role": "assistant", "content": None}, K.ROLE),
        ({"refusal": "no"}, K.REFUSAL),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, K.TOOL),
        ({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, K.TOOL),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, K.EMPTY),
        ({"tool_calls": [{"index": 0, "custom": {"input": "x"}}]}, K.TOOL),
        ({"tool_calls": [{"index": 0, "function": {"arguments": {"a": 1}}}]}, K.TOOL),
        ({"function_call": {"arguments": "{"}}, K.TOOL),
        ({"content": [{"type": "text", "text": "x"}]}, K.CONTENT),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]}, K.REASONING),
        ({"audio": {"transcript": "hi"}}, K.CONTENT),
        ({"audio": {"data": "AAAA"}}, K.CONTENT),
    ],
)
def test_kinds_of_a_delta(fields: dict[str, Any], kind: K) -> None:
    assert kind_of(**fields) is kind


@pytest.mark.parametrize("field", REASONING_FIELDS)
def test_reasoning_under_every_known_name(field: str) -> None:
    value: Any = "hm"
    if field in {"reasoning_details", "thinking_blocks"}:
        value = [{"type": "reasoning.text", "text": "hm"}]
    meaning = CHAT.read(None, delta(content="", **{field: value}).encode())
    assert (meaning.kind, meaning.text) == (K.REASONING, 2)


def test_reasoning_under_two_names_is_one_text() -> None:
    meaning = CHAT.read(None, delta(reasoning="abc", reasoning_details=[{"text": "abc"}], thinking="abc").encode())
    assert (meaning.kind, meaning.text) == (K.REASONING, 3)


def test_content_beside_reasoning_is_content() -> None:
    meaning = CHAT.read(None, delta(content="x", reasoning_details=[{"text": "abc"}]).encode())
    assert meaning.kind is K.CONTENT


def test_finish_with_and_without_text() -> None:
    last = CHAT.read(None, delta("length", content=" end").encode())
    assert (last.kind, last.finish_reason, last.text) == (K.CONTENT, "length", 4)
    bare = CHAT.read(None, delta("stop").encode())
    assert (bare.kind, bare.finish_reason) == (K.FINISH, "stop")


def test_usage_final_continuous_and_with_finish() -> None:
    counts = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    final = CHAT.read(None, chunk([], usage=counts).encode())
    assert (final.kind, final.usage, final.usage_final) == (K.USAGE, Usage(9, 4, 8, 3), True)
    word = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
    running = CHAT.read(None, chunk([word], usage=counts).encode())
    assert (running.kind, running.usage_final) == (K.CONTENT, False)
    assert running.usage is not None
    assert running.usage.completion == 4
    finish = CHAT.read(None, chunk([{"delta": {}, "finish_reason": "stop"}], usage=counts).encode())
    assert (finish.kind, finish.usage_final) == (K.FINISH, True)


@pytest.mark.parametrize("details", [None, {}, 5, "x"])
def test_usage_details_may_be_anything(details: Any) -> None:
    counts = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": details}
    assert CHAT.read(None, chunk([], usage=counts).encode()).usage == Usage(1, 2)


@pytest.mark.parametrize(
    ("event", "body", "message", "kind", "code"),
    [
        (None, {"error": {"message": "m", "type": "t", "code": 503}}, "m", "t", 503),
        (
            None,
            {"error": {"object": "error", "message": "m", "type": "SERVICE_UNAVAILABLE", "code": "503"}},
            "m",
            "SERVICE_UNAVAILABLE",
            503,
        ),
        (None, {"object": "error", "message": "m", "type": "503", "code": 503}, "m", "503", 503),
        (None, {"object": "error", "message": "m", "type": "503"}, "m", "503", 503),
        (None, {"error": "m"}, "m", "", None),
        (None, {"error": "m", "error_type": "overloaded"}, "m", "overloaded", None),
        (None, {"error": {"message": "m", "code": "context_length_exceeded"}}, "m", "context_length_exceeded", None),
        (None, {"detail": "m"}, "m", "", None),
        ("error", {"message": "m", "code": 500}, "m", "", 500),
        ("error", {"error": {"message": "m"}}, "m", "", None),
    ],
)
def test_errors_nested_flat_bare_and_named(
    event: str | None, body: Any, message: str, kind: str, code: int | None
) -> None:
    name = event.encode() if event else None
    meaning = CHAT.read(name, json.dumps(body).encode())
    assert meaning.kind is K.ERROR
    assert meaning.fault is not None
    assert (meaning.fault.message, meaning.fault.type, meaning.fault.code) == (message, kind, code)


def test_an_error_event_of_plain_text_keeps_its_text() -> None:
    meaning = CHAT.read(b"error", b"upstream died")
    assert meaning.fault is not None
    assert meaning.fault.message == "upstream died"


def test_error_null_is_no_error() -> None:
    assert CHAT.read(None, chunk([{"delta": {"content": "x"}}], error=None).encode()).kind is K.CONTENT


def test_timings_of_vllm_and_llamacpp_name_their_field() -> None:
    vllm = CHAT.read(None, chunk([], usage={"completion_tokens": 1}, metrics={"queue_time_ms": 3}).encode())
    assert vllm.kind is K.USAGE
    assert vllm.timings == {"queue_time_ms": 3, "_field": "metrics"}
    llama = CHAT.read(None, chunk([{"delta": {}, "finish_reason": "stop"}], timings={"prompt_ms": 2.5}).encode())
    assert llama.kind is K.FINISH
    assert llama.timings == {"prompt_ms": 2.5, "_field": "timings"}
    token = CHAT.read(None, chunk([{"delta": {"content": "x"}}], timings={"prompt_ms": 2.5}).encode())
    assert token.kind is K.CONTENT


def test_prompt_progress_is_progress_not_a_role_frame() -> None:
    body = chunk([{"delta": {"role": "assistant", "content": None}}], prompt_progress={"total": 9, "processed": 3})
    assert CHAT.read(None, body.encode()).kind is K.PROGRESS


def test_an_abort_that_says_why_is_an_error() -> None:
    reason = {"type": "abort", "status_code": 503, "message": "The request queue is full."}
    meaning = CHAT.read(None, chunk([{"delta": {}, "finish_reason": reason}]).encode())
    assert meaning.finish_reason == "abort"
    assert meaning.fault is not None
    assert (meaning.fault.message, meaning.fault.code) == ("The request queue is full.", 503)


def test_several_choices_are_read_together() -> None:
    both = [{"index": 0, "delta": {"role": "assistant"}}, {"index": 1, "delta": {"content": "ab"}}]
    meaning = CHAT.read(None, chunk(both).encode())
    assert (meaning.kind, meaning.text, meaning.has_content) == (K.CONTENT, 2, True)


def test_a_token_that_ends_inside_a_character_is_still_a_token() -> None:
    body = delta(content="@").encode().replace(b"@", b"ab\xe6\xbc")
    meaning = CHAT.read(None, body)
    assert (meaning.kind, meaning.text) == (K.CONTENT, 3)


@pytest.mark.parametrize(
    "junk", [b"", b"x", b"[]", b"1", b'"a"', b"{", b'{"choices": 3}', b'{"choices": [null]}', b"\xff"]
)
@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, RESPONSES, MESSAGES], ids=lambda d: d.name)
def test_nonsense_is_no_token(dialect: Any, junk: bytes) -> None:
    assert dialect.read(None, junk).kind > K.REFUSAL
    assert dialect.read_body(junk).kind > K.REFUSAL


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "usage",
                    "error",
                    "type",
                    "tool_calls",
                    "function",
                    "finish_reason",
                    "message",
                    "completion_tokens",
                    "response",
                    "output",
                    "id",
                    "object",
                    "detail",
                    "audio",
                    "code",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda d: d.name)
@given(value=json_values, event=st.sampled_from([None, b"error", b"message", b"response.failed"]))
def test_no_json_of_any_shape_raises(dialect: Any, value: Any, event: bytes | None) -> None:
    body = json.dumps(value).encode()
    dialect.read(event, body)
    dialect.read_body(body)
    dialect.plain_text(event, body)


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_plain_text_is_the_text_that_the_meaning_counts(name: str, data: st.DataObject) -> None:
    dialect, events = STREAMS[name]
    event, body = data.draw(events)
    if body is None:
        return
    encoded = event.encode() if event else None
    raw = body.encode("utf-8", "surrogatepass")
    text = dialect.plain_text(encoded, raw)
    if text:
        meaning = dialect.read(encoded, raw)
        assert meaning.kind <= K.REFUSAL
        assert len(text) == meaning.text


@pytest.mark.parametrize(
    ("body", "kind", "finish", "completion"),
    [
        (
            {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}},
            K.CONTENT,
            "stop",
            1,
        ),
        (
            {
                "choices": [
                    {
                        "message": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
                        "finish_reason": "tool_calls",
                    }
                ]
            },
            K.TOOL,
            "tool_calls",
            None,
        ),
        (
            {"choices": [{"text": "hi", "finish_reason": "length"}], "usage": {"completion_tokens": 2}},
            K.CONTENT,
            "length",
            2,
        ),
        ({"object": "list", "data": [], "usage": {"prompt_tokens": 3}}, K.USAGE, "", None),
    ],
)
def test_whole_bodies(body: Any, kind: K, finish: str, completion: int | None) -> None:
    meaning = CHAT.read_body(json.dumps(body).encode())
    assert (meaning.kind, meaning.finish_reason, meaning.done) == (kind, finish, True)
    assert (meaning.usage.completion if meaning.usage else None) == completion


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "openai.chat"),
        ("/v1/completions", "openai.completions"),
        ("/v1/responses?x=1", "openai.responses"),
        ("/v1/messages/", "anthropic.messages"),
        ("/somewhere/else", "openai.chat"),
    ],
)
def test_dialect_for_a_path(path: str, name: str) -> None:
    assert dialect_for(path).name == name
