"""The text of answers, and the dialects of embeddings and of shapes that nobody knows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.answer_text import body_text, stream_text
from tailrace.measure.dialects import ANY, EMBEDDINGS, dialect_for
from tailrace.model.timeline import EventKind


def stream(*events: dict | str) -> bytes:
    return b"".join(b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + b"\n\n" for e in events)


def chunk(**delta) -> dict:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


STREAMS = {
    "chat": stream(chunk(role="assistant", content=""), chunk(content="Hi"), chunk(content=" you"), "[DONE]"),
    "reasoning is left out": stream(chunk(reasoning_content="hm"), chunk(content="Hi you")),
    "parts": stream(chunk(content=[{"type": "thinking", "text": "hm"}, {"type": "text", "text": "Hi you"}])),
    "completions": stream({"choices": [{"text": "Hi "}]}, {"choices": [{"text": "you"}]}),
    "responses": stream({"type": "response.created"}, {"type": "response.reasoning_text.delta", "delta": "hm"},
                        {"type": "response.output_text.delta", "delta": "Hi you"}),
    "messages": stream({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
                       {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi you"}}),
    "transcription": stream({"type": "transcript.text.delta", "delta": "Hi you"},
                            {"type": "transcript.text.done", "text": "Hi you"}),
    "tgi": stream({"token": {"text": "Hi", "special": False}}, {"token": {"text": " you", "special": False}},
                  {"token": {"text": "</s>", "special": True}, "generated_text": "Hi you"}),
    "cut": stream(chunk(content="Hi you")) + b'data: {"choices": [{"del',
    "nonsense between": b"data: nonsense\n\n: ping\n\n" + stream(chunk(content="Hi you")),
}  # fmt: skip
BODIES = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "Hi you"}}, {"message": {"content": "no"}}]},
    "completions": {"choices": [{"text": "Hi you"}]},
    "responses": {"output": [{"type": "reasoning"}, {"content": [{"type": "output_text", "text": "Hi you"}]}]},
    "messages": {"content": [{"type": "text", "text": "Hi you"}]},
    "transcription": {"text": "Hi you"},
    "tgi": {"generated_text": "Hi you"},
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_text_of_a_stream(name: str):
    assert stream_text(STREAMS[name]) == "Hi you"


@pytest.mark.parametrize("name", BODIES)
def test_the_text_of_a_body(name: str):
    assert body_text(json.dumps(BODIES[name]).encode()) == "Hi you"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data: bytes):
    assert isinstance(stream_text(data), str)
    assert isinstance(body_text(data), str)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["choices", "delta", "content", "text", "type", "token", "output"]), inner,
                        max_size=4), max_leaves=12))  # fmt: skip
def test_any_json_is_read_without_an_error(value: object):
    data = json.dumps(value).encode()
    assert isinstance(body_text(data), str)
    assert isinstance(stream_text(b"data: " + data + b"\n\n"), str)


def test_embeddings_are_whole_without_any_token():
    assert dialect_for("/v1/embeddings?x=1") is EMBEDDINGS
    body = {"object": "list", "data": [{"embedding": [0.1] * 8}] * 3, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    meaning = EMBEDDINGS.read_body(json.dumps(body).encode())
    assert (meaning.kind, meaning.done, meaning.text) == (EventKind.USAGE, True, 0)
    assert meaning.usage is not None
    assert (meaning.usage.prompt, meaning.usage.completion) == (7, None)
    del body["usage"]
    assert EMBEDDINGS.read_body(json.dumps(body).encode()).done
    fault = EMBEDDINGS.read_body(b'{"error": {"message": "no"}}').fault
    assert fault is not None
    assert fault.message == "no"
    assert EMBEDDINGS.read_body(b"<html>").kind is EventKind.OTHER
    assert EMBEDDINGS.read_body(b"[" * 5000).kind is EventKind.OTHER


def test_unknown_shapes_are_timed_and_errors_in_them_seen():
    assert ANY.read(None, b"<word>").kind is EventKind.CONTENT
    assert ANY.read(None, b"").kind is EventKind.EMPTY
    assert ANY.read(None, b"[DONE]").done
    assert ANY.read(None, b'{"error": "out of memory"}').kind is EventKind.ERROR
    assert ANY.read(None, b'{"error": null, "t": 1}').kind is EventKind.CONTENT
    assert ANY.read_body(b"anything").done
    assert ANY.read_body(b'{"error": "no"}').kind is EventKind.ERROR
