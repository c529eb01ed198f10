"""The steady state of a stream changes neither what is measured nor what the client gets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.answer import Answer
from tailrace.gateway.engine_head import EngineHead
from tailrace.gateway.flow import Flow
from tailrace.measure.dialects import dialect_for
from tailrace.measure.meter import StreamMeter

SSE = [(b"Content-Type", b"text/event-stream")]


class Client:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.got.append(data)


def event(text: str, *, reasoning: bool = False, finish: str | None = None) -> bytes:
    delta = {"reasoning_content" if reasoning else "content": text}
    value = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: %b\n\n" % json.dumps(value, ensure_ascii=False).encode()


SHORT = [" a", "hello ", "", "\u00e9", "\u4f60\u597d", "\U0001f600", '"', "\\", "\n", "\x7f"]
texts = st.one_of(
    st.sampled_from([*SHORT, "x" * 300, "x" * 5000]),
    st.text(max_size=6),
)
events = st.one_of(
    st.builds(event, texts),
    st.builds(event, texts),
    st.builds(event, texts, reasoning=st.booleans()),
    st.just(b": keep-alive\n\n"),
    st.just(event("", finish="stop")),
    st.just(b"data: [DONE]\n\n"),
    st.just(b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n'),
)
gaps = st.sampled_from([1_000_000, 20_000_000, 151_000_000, 700_000_000])


def meter_for() -> StreamMeter:
    return StreamMeter(dialect_for("/v1/chat/completions"), origin_ns=0, timeline_limit=256)


@given(st.lists(st.tuples(events, gaps), max_size=60), st.integers(1, 12))
def test_a_stream_is_measured_alike_and_passed_on_whole(script: list[tuple[bytes, int]], look_every: int) -> None:
    client, plain, relayed = Client(), meter_for(), meter_for()
    answer = Answer(client, head_only=False, version="1.1")
    answer.begin(EngineHead(200, SSE), SSE, sse=True)
    answer.release()
    client.got.clear()
    transit = SimpleNamespace(overhead_ns=0)
    flow = Flow(cast("Any", transit), relayed, answer)
    active, now, taken = False, 0, 0
    for place, (data, gap) in enumerate(script * 4):
        now += gap
        plain.feed(data, now)
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        if active and flow.take(chunk, now):
            taken += 1
        else:
            if active:
                flow.leave()
            relayed.feed(data, now)
            answer.body(data)
            active = flow.begin()
        if not place % look_every:
            flow.settle()
            assert relayed.last_token_ns == plain.last_token_ns
            assert relayed.token_events == plain.token_events
    if active:
        flow.leave()
    plain.end(now, clean=True)
    relayed.end(now, clean=True)
    assert relayed.summary() == plain.summary()
    assert b"".join(client.got) == b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data, _ in script * 4)
    if taken:
        assert transit.overhead_ns != 0


def test_a_plain_stream_is_in_its_steady_state_nearly_all_the_time() -> None:
    client, meter = Client(), meter_for()
    answer = Answer(client, head_only=False, version="1.1")
    answer.begin(EngineHead(200, SSE), SSE, sse=True)
    answer.release()
    flow = Flow(cast("Any", SimpleNamespace(overhead_ns=0)), meter, answer)
    active, taken = False, 0
    for place in range(100):
        data = event(f" word{place}")
        now = place * 20_000_000
        if active and flow.take(b"%x\r\n%b\r\n" % (len(data), data), now):
            taken += 1
            continue
        if active:
            flow.leave()
        meter.feed(data, now)
        active = flow.begin()
    flow.leave()
    assert taken > 95
    assert meter.token_events == 100
