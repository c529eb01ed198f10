from __future__ import annotations

import time

import msgspec
import pytest

from tailrace.measure.dialects import CHAT, MESSAGES, RESPONSES, dialect_for
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.model.timeline import EventKind
from tests.measure.transcripts import DONE, Event, chunk, delta, usage, wire

MS = 1_000_000


def meter_of(*events: tuple[int, Event], origin: int = 0, dialect: object = CHAT) -> StreamMeter:
    meter = StreamMeter(dialect, origin_ns=origin)  # type: ignore[arg-type]
    for at, event in events:
        meter.feed(wire(event), at)
    return meter


def word(text: str = " w", **more: object) -> Event:
    return None, chunk([{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more)


def test_role_frame_is_not_first_token_even_in_the_same_packet() -> None:
    meter = StreamMeter(CHAT, origin_ns=0)
    meter.feed(wire((None, delta(role="assistant", content=""))) + wire(word()), 5 * MS)
    meter.feed(wire(word()), 9 * MS)
    got = meter.summary()
    assert (got.ttft_ns, got.chunk_gap_count, got.chunk_gap_max_ns) == (5 * MS, 1, 4 * MS)


def test_first_event_is_told_apart_from_first_token() -> None:
    meter = meter_of((3, (None, None)), (4, (None, delta(role="assistant"))), (9, word()))
    got = meter.summary()
    assert (got.first_event_at, got.first_token_at, got.comments) == (4, 9, 1)


def test_comments_are_no_progress() -> None:
    meter = meter_of((10, word()), (20, (None, None)))
    assert meter.last_progress_ns == 10
    anthropic = meter_of((20, ("ping", '{"type": "ping"}')), dialect=MESSAGES)
    assert anthropic.last_progress_ns is None
    assert anthropic.comments == 1


def test_prefill_progress_frames_are_progress_but_no_token() -> None:
    frame = chunk([{"delta": {"role": "assistant", "content": None}}], prompt_progress={"total": 9, "processed": 4})
    meter = meter_of((10, (None, frame)), (30, (None, frame)), (40, word()))
    got = meter.summary()
    assert (meter.last_progress_ns, got.first_progress_at, got.first_token_at) == (40, 10, 40)
    assert got.timings is None, "progress is no timing of the request"


def test_empty_content_with_a_token_more_counts_the_token_and_keeps_the_gap() -> None:
    def counted(text: str, n: int) -> Event:
        return word(text, usage=usage(11, n))

    meter = meter_of((10, counted("a", 1)), (20, counted("", 2)), (40, counted("b", 3)))
    got = meter.summary()
    assert got.output_tokens == 3
    assert got.output_tokens_source == "chunk_usage"
    assert (got.chunk_gap_count, got.chunk_gap_max_ns) == (1, 30)
    assert got.tpot_ns == 15
    assert got.timeline is not None
    assert got.timeline.tokens == [1, 1, 1]


def test_multi_token_chunk_tells_chunk_gap_and_tpot_apart() -> None:
    meter = meter_of((0, word(usage=usage(1, 1))), (40 * MS, word(usage=usage(1, 21))))
    got = meter.summary()
    assert got.chunk_gap_p50_ns == 40 * MS
    assert got.tpot_ns == 2 * MS


@pytest.mark.parametrize(
    ("events", "tokens", "source"),
    [
        ([word(), word()], 2, "chunks"),
        ([word(usage=usage(1, 3)), word(usage=usage(1, 8))], 8, "chunk_usage"),
        ([word(usage=usage(1, 3)), (None, chunk([], usage=usage(1, 9)))], 9, "usage"),
        ([word(), (None, chunk([{"delta": {}, "finish_reason": "stop"}], usage=usage(1, 5)))], 5, "usage"),
        ([(None, delta(role="assistant"))], None, ""),
    ],
)
def test_the_best_source_of_tokens_wins_and_is_named(events: list[Event], tokens: int | None, source: str) -> None:
    got = meter_of(*enumerate(events, 1)).summary()
    assert (got.output_tokens, got.output_tokens_source) == (tokens, source)


def test_usage_after_uncounted_tokens_belongs_to_no_event() -> None:
    got = meter_of((1, word()), (2, word()), (3, (None, chunk([], usage=usage(7, 9))))).summary()
    assert got.timeline is not None
    assert got.timeline.tokens == [-1, -1, -1]
    assert got.prompt_tokens == 7


def test_several_tokens_in_one_event_have_no_tpot() -> None:
    got = meter_of((5, word(usage=usage(1, 6)))).summary()
    assert got.output_tokens == 6
    assert got.tpot_ns is None


def test_reasoning_first_gives_two_ttfts() -> None:
    got = meter_of((10, (None, delta(reasoning="hm"))), (70, word())).summary()
    assert (got.ttft_ns, got.ttft_content_ns) == (10, 70)


def test_tool_call_only_answer_has_a_ttft_and_no_content() -> None:
    call = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}])
    got = meter_of((10, (None, call)), (20, (None, delta("tool_calls")))).summary()
    assert (got.ttft_ns, got.ttft_content_ns, got.finish_reason) == (10, None, "tool_calls")


def test_done_is_not_success_after_an_error() -> None:
    got = meter_of((1, word()), (2, (None, '{"error": {"message": "x", "code": 500}}')), (3, DONE)).summary()
    assert got.done
    assert not got.finished
    assert got.fault is not None
    assert got.fault.code == 500


def test_done_without_its_blank_line_counts_at_a_clean_end_only() -> None:
    for clean in (True, False):
        meter = meter_of((1, word()))
        meter.feed(b"data: [DONE]\n", 5)
        meter.end(7, clean=clean)
        got = meter.summary()
        assert (got.done, got.done_at) == ((True, 7) if clean else (False, None))


def test_end_is_final() -> None:
    meter = meter_of((1, word()))
    meter.end(5, clean=False)
    meter.end(9, clean=True)
    assert (meter.ended_at, meter.clean) == (5, False)


def test_too_large_an_event_ends_the_measuring_not_the_feeding() -> None:
    meter = StreamMeter(CHAT, origin_ns=0, max_event_bytes=300)
    meter.feed(wire(word()), 1)
    for _ in range(5):
        meter.feed(b"data: " + b"x" * 100, 2)
    meter.feed(wire(word()), 3)
    got = meter.summary()
    assert "300 bytes" in got.protocol_fault
    assert not got.finished
    assert got.token_events == 1
    assert meter.offset == meter.block_start == 2 * len(wire(word())) + 5 * 106


@pytest.mark.parametrize("pieces", [1, 7, 400])
def test_what_came_before_too_large_an_event_is_measured_in_any_split(pieces: int) -> None:
    body = wire(word()) * 2 + wire(word("x" * 400)) + wire(word())
    meter = StreamMeter(CHAT, origin_ns=0, max_event_bytes=300)
    step = -(-len(body) // pieces)
    for low in range(0, len(body), step):
        meter.feed(body[low : low + step], 5)
    got = meter.summary()
    assert (got.token_events, got.finished) == (2, False)
    assert got.protocol_fault


def test_malformed_events_are_counted_and_do_not_hide_the_rest() -> None:
    got = meter_of((1, (None, "{oops")), (2, word()), (3, (None, "[1]"))).summary()
    assert (got.malformed, got.token_events) == (2, 1)


def test_tokens_per_second_count_from_the_origin() -> None:
    got = meter_of((1_000_000_000, word()), (3_000_000_000, word()), origin=-1_000_000_000).summary()
    assert got.tokens_per_s == 0.5


def test_slow_names_what_was_crossed() -> None:
    meter = meter_of((600 * MS, word()), (800 * MS, word()))
    assert meter.slow == ["ttft"]
    meter.end(800 * MS, clean=True)
    assert meter.slow == ["ttft", "tpot"]


def test_client_blocked_keeps_real_intervals_only() -> None:
    meter = meter_of((1, word()))
    meter.client_blocked(5, 9)
    meter.client_blocked(9, 9)
    assert meter.summary().client_blocked == [(5, 9)]


def test_in_flight_flags() -> None:
    meter = meter_of((4, word()), (9, word()))
    assert (meter.first_token_ns, meter.last_token_ns, meter.tokens, meter.events) == (4, 9, 2, 2)
    assert (meter.done, meter.finish_reason, meter.error) == (False, "", None)
    meter.feed(wire((None, delta("stop"))), 10)
    assert meter.finish_reason == "stop"


def test_response_id_is_kept_from_the_first_that_says_it() -> None:
    assert meter_of((1, word())).response_id == "chatcmpl-1"
    start = ("message_start", '{"type": "message_start", "message": {"id": "msg_9", "usage": {"input_tokens": 4}}}')
    assert meter_of((1, start), dialect=MESSAGES).response_id == "msg_9"
    made = ("response.created", '{"type": "response.created", "response": {"id": "resp_3"}}')
    assert meter_of((1, made), dialect=RESPONSES).response_id == "resp_3"


def test_whole_body_has_counts_but_no_first_token() -> None:
    answer = {"message": {"content": "hi"}, "finish_reason": "stop"}
    body = msgspec.json.encode({"id": "x", "choices": [answer], "usage": usage(3, 2)})
    got = summarise_body(dialect_for("/v1/chat/completions").read_body(body), origin_ns=5, now=50)
    assert (got.output_tokens, got.output_tokens_source, got.prompt_tokens) == (2, "usage", 3)
    assert (got.ttft_ns, got.tpot_ns, got.timeline) == (None, None, None)
    assert got.finished


def test_100_000_tokens_in_bounded_memory() -> None:
    meter = StreamMeter(CHAT, origin_ns=0, timeline_limit=1024)
    body = wire(word())
    for index in range(100_000):
        meter.feed(body, index * 20 * MS + (9_000 * MS if index >= 60_000 else 0))
    got = meter.summary()
    assert (got.token_events, got.chunk_gap_count) == (100_000, 99_999)
    assert got.chunk_gap_method == "histogram"
    assert got.chunk_gap_max_ns == 9_020 * MS
    assert got.chunk_gap_p50_ns == pytest.approx(20 * MS, rel=0.008)
    assert got.stall_count == 1
    assert got.timeline is not None
    assert len(got.timeline.at_ns) <= 1024
    assert got.timeline.at_ns[0] == 0
    assert got.timeline.at_ns[-1] == 99_999 * 20 * MS + 9_000 * MS
    assert len(msgspec.json.encode(got.timeline)) < 64 * 1024


def test_one_event_a_read_costs_little_more_than_its_json_alone() -> None:
    """The budget is absolute (bench/meter.py); here only a ratio, which a busy machine leaves alone."""
    body = wire((None, delta(content=" word")))
    payload = body[6:-2]
    decode = msgspec.json.Decoder().decode
    best_meter = best_json = float("inf")
    for _ in range(5):
        meter = StreamMeter(CHAT, origin_ns=0)
        start = time.process_time_ns()
        for index in range(20_000):
            meter.feed(body, index)
        best_meter = min(best_meter, time.process_time_ns() - start)
        start = time.process_time_ns()
        for _ in range(20_000):
            decode(payload)
        best_json = min(best_json, time.process_time_ns() - start)
    assert best_meter < 4 * best_json


def test_cuts_name_the_bytes_of_injected_frames() -> None:
    meter = StreamMeter(CHAT, origin_ns=0, cut=frozenset({EventKind.USAGE}))
    first, last = wire(word()), wire((None, chunk([], usage=usage(1, 2))))
    meter.feed(first, 1)
    meter.feed(last, 2)
    assert meter.cuts == [(len(first), len(first) + len(last))]
