"""Streams to feed a meter: events in every dialect, as bytes, and hypothesis strategies that make them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tailrace.measure.dialect import Dialect
from tailrace.measure.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, TRANSCRIPTION
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord

EOLS = ("\n", "\r\n", "\r")
Event = tuple[str | None, str | None]
"""(event name, data); no data makes a comment."""


def wire(event: Event, eol: str = "\n") -> bytes:
    name, data = event
    if data is None:
        return f": {name or 'ping'}{eol}{eol}".encode()
    head = f"event: {name}{eol}" if name else ""
    lines = "".join(f"data: {line}{eol}" for line in data.split("\n"))
    return f"{head}{lines}{eol}".encode("utf-8", "surrogatepass")


def chunk(choices: list[Any] | None = None, **more: Any) -> str:
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    if choices is not None:
        body["choices"] = choices
    return json.dumps(body | more, ensure_ascii=False, separators=(",", ":"))


def delta(finish: str | None = None, **fields: Any) -> str:
    return chunk([{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}])


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


DONE: Event = (None, "[DONE]")

ODD: dict[str, list[Event]] = {}
"""Dialect -> its events other than plain text, filled below."""


def odd_events(name: str, events: list[Event]) -> st.SearchStrategy[Event]:
    ODD[name] = events
    return st.sampled_from(events)


texts = st.one_of(
    st.sampled_from(
        [" word", "a", "", '"', "\\", "\n", "\t", "é", "漢字", "😀", " data: x", "[DONE]", "content", "\u2028"]
    ),
    st.text(max_size=12),
)


def _chat_events() -> st.SearchStrategy[Event]:
    plain = texts.map(lambda text: (None, delta(content=text)))
    spaced = texts.map(lambda text: (None, json.dumps({"choices": [{"delta": {"content": text}}], "id": "x"})))
    reasoning = st.tuples(st.sampled_from(["reasoning", "reasoning_content", "thinking"]), texts).map(
        lambda pair: (None, delta(**{pair[0]: pair[1]}))
    )
    tools = texts.map(
        lambda text: (None, delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": text}}]))
    )
    counted = st.tuples(texts, st.integers(0, 50)).map(
        lambda pair: (None, chunk([{"index": 0, "delta": {"content": pair[0]}}], usage=usage(3, pair[1])))
    )
    odd = odd_events(
        "chat",
        [
            (None, delta(role="assistant", content="")),
            (None, delta(role="assistant", content=None)),
            (None, delta("stop")),
            (None, delta("length", content=" end")),
            (None, delta(refusal="no")),
            (None, delta(function_call={"name": "f", "arguments": "{"})),
            (None, delta(content=[{"type": "text", "text": "part"}])),
            (None, chunk([], usage=usage(3, 9))),
            (None, chunk([], usage=None)),
            (None, json.dumps({"error": {"message": "boom", "code": 500}})),
            ("error", '{"message": "named"}'),
            ("error", "in plain words"),
            ("message", delta(content=" named")),
            (None, "not json"),
            (None, '{"choices": [{"delta":\n{"content": "two lines"}}]}'),
            (None, ""),
            (None, None),
            DONE,
        ],
    )
    return st.one_of(plain, plain, spaced, reasoning, tools, counted, odd)


def _completion_events() -> st.SearchStrategy[Event]:
    plain = texts.map(lambda text: (None, chunk([{"index": 0, "text": text, "finish_reason": None}])))
    odd = odd_events(
        "completions", [(None, chunk([{"index": 0, "text": "", "finish_reason": "stop"}])), DONE, (None, None)]
    )
    return st.one_of(plain, plain, odd)


def _responses_events() -> st.SearchStrategy[Event]:
    def typed(kind: str, **fields: Any) -> Event:
        return kind, json.dumps({"type": kind, **fields}, ensure_ascii=False)

    plain = texts.map(lambda text: typed("response.output_text.delta", delta=text, sequence_number=4))
    reasoning = texts.map(lambda text: typed("response.reasoning_summary_text.delta", delta=text))
    counts = {"input_tokens": 5, "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2}}
    odd = odd_events(
        "responses",
        [
            typed("response.created", response={"id": "resp_1", "status": "in_progress"}),
            typed("response.output_item.added", item={"type": "function_call", "name": "f", "arguments": ""}),
            typed("response.completed", response={"id": "resp_1", "status": "completed", "usage": counts}),
            typed("response.failed", response={"status": "failed", "error": {"code": "server_error", "message": "x"}}),
            typed("error", message="bad", code="rate_limit_exceeded"),
            (None, None),
        ],
    )
    return st.one_of(plain, plain, reasoning, odd)


def _messages_events() -> st.SearchStrategy[Event]:
    def typed(kind: str, **fields: Any) -> Event:
        return kind, json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"))

    plain = texts.map(lambda text: typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text}))
    thinking = texts.map(
        lambda text: typed("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": text})
    )
    odd = odd_events(
        "messages",
        [
            typed("message_start", message={"id": "msg_1", "usage": {"input_tokens": 4, "output_tokens": 1}}),
            typed("content_block_start", index=0, content_block={"type": "tool_use", "name": "f", "input": {}}),
            typed("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"a'}),
            typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
            typed("ping"),
            typed("error", error={"type": "overloaded_error", "message": "Overloaded"}),
            typed("message_stop"),
        ],
    )
    return st.one_of(plain, plain, thinking, odd)


def _transcription_events() -> st.SearchStrategy[Event]:
    def typed(kind: str, **fields: Any) -> Event:
        return None, json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"))

    plain = texts.map(lambda text: typed("transcript.text.delta", delta=text))
    probable = texts.map(
        lambda text: typed("transcript.text.delta", delta=text, logprobs=[{"token": text, "logprob": -0.1}])
    )
    chunks = texts.map(lambda text: (None, delta(content=text)))
    counts = {"type": "tokens", "input_tokens": 14, "output_tokens": 5}
    odd = odd_events(
        "transcription",
        [
            typed("transcript.text.segment", id="s", start=0.0, end=1.5, speaker="A", text="so it goes"),
            typed("transcript.text.done", text="so it goes", usage=counts),
            typed("transcript.text.done", text="so", usage={"type": "duration", "seconds": 2}),
            (None, '{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}'),
            (None, '{"object":"transcription.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}'),
            (None, '{"error":{"message":"transcript.text. broke","code":500}}'),
            ("error", '{"message":"bad"}'),
            (None, "[DONE]"),
            (None, None),
        ],
    )
    return st.one_of(plain, plain, probable, chunks, odd)


STREAMS: dict[str, tuple[Dialect, st.SearchStrategy[Event]]] = {
    "chat": (CHAT, _chat_events()),
    "completions": (COMPLETIONS, _completion_events()),
    "responses": (RESPONSES, _responses_events()),
    "messages": (MESSAGES, _messages_events()),
    "transcription": (TRANSCRIPTION, _transcription_events()),
}


def feed_by_the_book(meter: StreamMeter, body: bytes, now: int) -> None:
    """Feed through the framer and a full parse of each event, past every short cut: what the others must equal."""
    meter._lessons = 0
    for byte in body:
        meter._feed_pieces(bytes([byte]), now)


def record_of(meter: StreamMeter, now: int, *, clean: bool = True) -> RequestRecord:
    """A probe's record of the stream, with its whole timeline."""
    meter.end(now, clean=clean)
    ledger = RequestLedger(
        request_id="r1",
        vantage="client",
        start_unix_ns=0,
        received=meter.origin_ns,
        sent=meter.origin_ns + 1,
        upstream_end=now,
    )
    summary = meter.summary()
    whole = summary.finished
    return ledger.close(
        now,
        OutcomeKind.COMPLETED if whole else OutcomeKind.FAILED,
        Reason.NONE if whole else Reason.STREAM_CUT,
        summary=summary,
        sample_rate=1.0,
    )
