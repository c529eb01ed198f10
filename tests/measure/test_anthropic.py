from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.measure.dialect import Usage
from tailrace.measure.dialects import MESSAGES
from tailrace.measure.meter import StreamMeter
from tailrace.model.timeline import EventKind as K
from tests.measure.transcripts import wire


def typed(kind: str, **fields: Any) -> tuple[str, str]:
    return kind, json.dumps({"type": kind, **fields})


def read(kind: str, **fields: Any) -> Any:
    name, data = typed(kind, **fields)
    return MESSAGES.read(name.encode(), data.encode())


@pytest.mark.parametrize(
    ("delta", "kind", "length"),
    [
        ({"type": "text_delta", "text": "ab"}, K.CONTENT, 2),
        ({"type": "thinking_delta", "thinking": "abc"}, K.REASONING, 3),
        ({"type": "input_json_delta", "partial_json": '{"a"'}, K.TOOL, 4),
        ({"type": "input_json_delta", "partial_json": ""}, K.EMPTY, 0),
        ({"type": "signature_delta", "signature": "xxx"}, K.EMPTY, 0),
    ],
)
def test_deltas(delta: dict[str, str], kind: K, length: int) -> None:
    meaning = read("content_block_delta", index=0, delta=delta)
    assert (meaning.kind, meaning.text) == (kind, length)


def test_blocks_begin_silently_unless_they_say_something() -> None:
    assert read("content_block_start", content_block={"type": "text", "text": ""}).kind is K.EMPTY
    assert read("content_block_start", content_block={"type": "tool_use", "name": "f", "input": {}}).kind is K.TOOL
    assert read("content_block_start", content_block={"type": "redacted_thinking", "data": "xx"}).kind is K.REASONING


def test_ping_is_a_comment_and_stop_the_end() -> None:
    assert read("ping").kind is K.COMMENT
    assert read("message_stop").done


def test_whole_life_through_the_meter() -> None:
    events = [
        typed(
            "message_start",
            message={"id": "msg_1", "usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 1}},
        ),
        typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        typed("ping"),
        typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "He"}),
        typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "llo"}),
        typed("content_block_stop", index=0),
        typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 12}),
        typed("message_stop"),
    ]
    meter = StreamMeter(MESSAGES, origin_ns=0)
    for at, event in enumerate(events, 1):
        meter.feed(wire(event), at * 10)
    meter.end(90, clean=True)
    got = meter.summary()
    assert (got.ttft_ns, got.token_events, got.comments) == (40, 2, 1)
    assert (got.prompt_tokens, got.cached_tokens) == (10, 6), "cached tokens are part of the prompt"
    assert (got.output_tokens, got.output_tokens_source) == (12, "usage")
    assert (got.finish_reason, got.done, got.response_id, got.finished) == ("end_turn", True, "msg_1", True)


def test_the_placeholder_count_at_the_start_is_no_tally() -> None:
    begun = read("message_start", message={"usage": {"input_tokens": 4, "output_tokens": 1}})
    assert begun.usage == Usage(4, None)


def test_errors() -> None:
    meaning = read("error", error={"type": "overloaded_error", "message": "Overloaded"})
    assert (meaning.kind, meaning.fault.type, meaning.fault.message) == (K.ERROR, "overloaded_error", "Overloaded")
    body = MESSAGES.read_body(b'{"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}')
    assert body.fault is not None
    assert body.fault.type == "invalid_request_error"


def test_whole_body() -> None:
    body = {
        "id": "msg_1",
        "type": "message",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi!"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 3, "output_tokens": 9},
    }
    meaning = MESSAGES.read_body(json.dumps(body).encode())
    assert (meaning.kind, meaning.text, meaning.finish_reason) == (K.CONTENT, 5, "max_tokens")
    assert meaning.usage == Usage(3, 9)
    body["content"] = [{"type": "tool_use", "name": "f", "input": {}}]
    assert MESSAGES.read_body(json.dumps(body).encode()).kind is K.TOOL
