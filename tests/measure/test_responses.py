from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.measure.dialect import Usage
from tailrace.measure.dialects import RESPONSES
from tailrace.model.timeline import EventKind as K

COUNTS = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
}


def read(kind: str, **fields: Any) -> Any:
    return RESPONSES.read(kind.encode(), json.dumps({"type": kind, **fields}).encode())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("response.output_text.delta", K.CONTENT),
        ("response.audio.transcript.delta", K.CONTENT),
        ("response.reasoning_text.delta", K.REASONING),
        ("response.reasoning_summary_text.delta", K.REASONING),
        ("response.refusal.delta", K.REFUSAL),
        ("response.function_call_arguments.delta", K.TOOL),
        ("response.mcp_call_arguments.delta", K.TOOL),
        ("response.custom_tool_call_input.delta", K.TOOL),
    ],
)
def test_deltas(kind: str, expected: K) -> None:
    meaning = read(kind, delta="abc")
    assert (meaning.kind, meaning.text) == (expected, 3)
    assert read(kind, delta="").kind is K.EMPTY


def test_life_of_a_response() -> None:
    begun = read("response.created", response={"id": "resp_1", "status": "in_progress"})
    assert (begun.kind, begun.response_id) == (K.ROLE, "resp_1")
    assert read("response.content_part.added", part={"type": "output_text", "text": ""}).kind is K.OTHER
    end = read("response.completed", response={"id": "resp_1", "status": "completed", "usage": COUNTS})
    assert (end.kind, end.done, end.finish_reason) == (K.FINISH, True, "stop")
    assert (end.usage, end.usage_final) == (Usage(5, 7, 4, 2), True)


def test_a_call_begins_with_its_name() -> None:
    call = read("response.output_item.added", item={"type": "function_call", "name": "fun", "arguments": ""})
    assert (call.kind, call.text) == (K.TOOL, 3)
    assert read("response.output_item.added", item={"type": "message", "content": []}).kind is K.ROLE


def test_incomplete_and_failed() -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": COUNTS}
    incomplete = read("response.incomplete", response=cut)
    assert (incomplete.finish_reason, incomplete.done, incomplete.fault) == ("max_output_tokens", True, None)
    failed = read("response.failed", response={"status": "failed", "error": {"code": "server_error", "message": "x"}})
    assert failed.kind is K.ERROR
    assert (failed.fault.message, failed.fault.type) == ("x", "server_error")
    bare = read("response.failed", response={})
    assert bare.kind is K.ERROR


def test_error_event() -> None:
    meaning = read("error", code="rate_limit_exceeded", message="slow down", param=None)
    assert meaning.kind is K.ERROR
    assert (meaning.fault.message, meaning.fault.type) == ("slow down", "rate_limit_exceeded")


def test_whole_body() -> None:
    body = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "abc"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "hello"}]},
        ],
        "usage": COUNTS,
    }
    meaning = RESPONSES.read_body(json.dumps(body).encode())
    assert (meaning.kind, meaning.text, meaning.finish_reason, meaning.done) == (K.CONTENT, 8, "stop", True)
    failed = {"object": "response", "status": "failed", "error": {"message": "x"}}
    assert RESPONSES.read_body(json.dumps(failed).encode()).kind is K.ERROR
    assert RESPONSES.read_body(b'{"error": {"message": "y", "code": 400}}').kind is K.ERROR
