"""Every trace format by its first line: the exact columns of the public ones, and what may be wrong in them."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, S
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.plan import Workload, generators, plan
from tailrace.workload.recorded import rows_of_records
from tailrace.workload.trace import looped, read_whole_trace
from tailrace.workload.trace_formats import parse_columns
from tailrace.workload.trace_row import TraceRow


def read(text: str, **more):
    return read_whole_trace(text.splitlines(keepends=True), **more)


def seen(text: str, **more) -> list[tuple[float, int, int]]:
    return [(row.at_ns / S, row.prompt_tokens, row.output_tokens) for row in read(text, **more).rows]


def test_azure_2024_has_a_time_zone():
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.009930+00:00,2162,5\n2024-05-12 00:00:00+00:00,2399,6\n"
        "2024-05-12 02:00:01.5+02:00,76,15\n"
    )
    assert seen(text) == [(0, 2399, 6), (0.00993, 2162, 5), (1.5, 76, 15)]
    assert read(text).format == "Azure LLM inference"


def test_burstgpt_with_and_without_sessions():
    old = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,1087,230,1317,API log\n50,GPT-4,300,0,300,API log\n"
    )
    new = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.0,d5983bf9,2,ChatGPT,36,29,65,Conversation log\n"
    )
    trace = read(old)
    assert [(r.at_ns / S, r.prompt_tokens, r.output_tokens, r.name) for r in trace.rows] == [
        (0, 472, 18, "ChatGPT"), (40, 1087, 230, "GPT-4"),
    ]  # fmt: skip
    assert trace.format == "BurstGPT"
    assert "1 rows without input or output tokens" in trace.notes[0]
    assert seen(new) == [(0, 906, 446), (51, 36, 29)]


def test_servegen_with_lists_of_other_modalities():
    assert seen("request_id,timestamp,input_tokens,output_tokens\n0,0.25,100,7\n1,0.75,200,8\n") == [
        (0, 100, 7),
        (0.5, 200, 8),
    ]
    text = 'request_id,timestamp,text_tokens,output_tokens,image_tokens,audio_tokens\n0,1.0,40,9,"[1200, 300]",[]\n'
    assert seen(text) == [(0, 1540, 9)]
    assert read(text).format == "ServeGen"


def test_qwen_has_seconds_and_small_blocks():
    line = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 2.5, "input_length": 20, "output_length": 3,
            "type": "text", "turn": 1, "hash_ids": [4, 5]}  # fmt: skip
    text = json.dumps(line) + "\n" + json.dumps(line | {"timestamp": 4.0}) + "\n"
    rows = read(text).rows
    assert [(r.at_ns / S, r.blocks, r.block_tokens, r.name) for r in rows] == [
        (0, (4, 5), 16, "text"), (1.5, (4, 5), 16, "text"),
    ]  # fmt: skip
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.TRACE), trace=rows)
    first = next(plan(workload, generators(0)))
    assert [piece.tokens for piece in first.prefix] == [16, 4]


def test_columns_can_be_named():
    text = "when_ms;x\n"
    with pytest.raises(InputError, match="--trace-columns"):
        read(text)
    text = "arrived_ms,in_tok,out_tok,note\n1000,5,6,a\n3500,7,8,b\n"
    assert seen(text, columns=parse_columns("time=arrived_ms,prompt=IN_TOK,output=out_tok")) == [(0, 5, 6), (2.5, 7, 8)]
    with pytest.raises(InputError, match="no column named nothing in"):
        read(text, columns=parse_columns("time=nothing"))
    with pytest.raises(InputError, match="Write time="):
        parse_columns("when=arrived")


# -- nginx


COMBINED = (
    '10.0.0.1 - - [29/Nov/2026:13:55:{s:02d} +0000] "POST /v1/chat/completions HTTP/1.1" {code} {n} "-" "x/1"{more}\n'
)


def line(s: int = 0, code: int = 200, n: int = 22_400, more: str = "") -> str:
    return COMBINED.format(s=s, code=code, n=n, more=more)


def test_an_access_log_gives_times_and_estimates_and_says_so():
    trace = read(line(1) + line(2, code=429) + line(3, more=" request_length=4600 request_time=2.500"))
    assert [(r.at_ns, r.prompt_tokens, r.output_tokens) for r in trace.rows] == [
        (0, 1000, 100),  # (4600 - 600) / 4 and (22400 - 400) / 220; it began 2.5 s before it was logged
        (500 * MS, 256, 100),
    ]
    assert trace.format == "nginx access log"
    assert "lengths are estimated from bytes" in trace.notes[0]
    spread = read("".join(line(s) for s in range(5)), rng=np.random.default_rng(0))
    assert any("ticks of 1 s" in note for note in spread.notes)
    assert all(i * S <= row.at_ns < (i + 1) * S for i, row in enumerate(spread.rows))


def test_other_requests_of_an_access_log_are_no_errors():
    get = '10.0.0.1 - - [29/Nov/2026:13:55:00 +0000] "GET /metrics HTTP/1.1" 200 1 "-" "x"\n'
    assert len(read(get * 50 + line()).rows) == 1
    with pytest.raises(InputError, match="no row with input and output tokens"):
        read(get)


def test_an_access_log_in_json():
    entry = {"time_iso8601": "2026-11-29T13:55:00+00:00", "request": "POST /v1/completions HTTP/1.1", "status": 200,
             "body_bytes_sent": 22400, "request_length": "4600", "request_time": "0.250"}  # fmt: skip
    later = entry | {"time_iso8601": "2026-11-29T13:55:01+00:00"}
    trace = read(json.dumps(entry) + "\n" + json.dumps(later) + "\n")
    assert [(r.at_ns, r.prompt_tokens, r.output_tokens) for r in trace.rows] == [(0, 1000, 100), (S, 1000, 100)]


# -- what is wrong


def test_a_few_bad_rows_are_counted_and_many_are_refused():
    good = "".join(f"{i},5,6\n" for i in range(300))
    trace = read("time,prompt_tokens,output_tokens\n" + good + "x,5,6\n7,5\n")
    assert len(trace.rows) == 300
    assert trace.notes == ["2 rows cannot be read and are left out (line 302, 303)"]
    with pytest.raises(InputError, match="nor 19 more of 320") as caught:
        read("time,prompt_tokens,output_tokens\n" + good + "x,5,6\n" * 20)
    assert caught.value.place == "trace:302"


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_text_is_read_or_refused(lines: list[str]):
    try:
        trace = read_whole_trace(lines)
    except InputError as error:
        assert error.place.startswith("trace")  # noqa: PT017  (nothing else may be raised)
    else:
        assert trace.rows


@given(
    st.sampled_from(
        [
            "Timestamp,Model,Request tokens,Response tokens",
            '{"timestamp": 1, "input_length": 3, "output_length": 4}',
            line(),
        ]
    ),
    st.lists(st.text(max_size=40), max_size=5),
)
def test_what_begins_like_a_trace_and_goes_on_as_anything_is_read_or_refused(first: str, rest: list[str]):
    try:
        trace = read_whole_trace([first, *rest])
    except InputError as error:
        assert error.message  # noqa: PT017  (nothing else may be raised)
    else:
        assert trace.rows


# -- window, speed, rounds


ROWS = "time,prompt_tokens,output_tokens\n" + "".join(f"{i},{100 + i},6\n" for i in range(10))


def test_a_window_is_of_the_traces_own_time_and_played_from_its_begin():
    assert seen(ROWS, window_ns=(3 * S, 6 * S)) == [(0, 103, 6), (1, 104, 6), (2, 105, 6)]
    assert seen(ROWS, window_ns=(3 * S, 6 * S), speed=2.0) == [(0, 103, 6), (0.5, 104, 6), (1, 105, 6)]
    assert seen(ROWS, window_ns=(2_500 * MS, 4 * S)) == [(0.5, 103, 6)]
    with pytest.raises(InputError, match="it is 9 s long"):
        read(ROWS, window_ns=(60 * S, None))


def test_a_trace_plays_again_with_prefixes_of_its_own():
    rows = [TraceRow(0, 600, 5, (0, 7)), TraceRow(2 * S, 600, 5, (0, 3))]
    again = looped(rows, 1, 4 * S)
    assert [row.at_ns for row in again] == [4 * S, 6 * S]
    assert again[0].blocks[0] == again[1].blocks[0]
    assert not {block for row in again for block in row.blocks} & {0, 3, 7}
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.TRACE), trace=rows, trace_span_ns=4 * S)
    planned = list(islice(plan(workload, generators(0)), 5))
    assert [one.at_ns for one in planned] == [0, 2 * S, 4 * S, 6 * S, 8 * S]
    assert [one.number for one in planned] == [0, 1, 2, 3, 4]
    once = Workload(arrivals=Arrivals(kind=ArrivalKind.TRACE), trace=rows)
    assert len(list(plan(once, generators(0)))) == 2


# -- our own records


def test_records_become_a_trace_with_their_lanes():
    def record(i: int, **more) -> RequestRecord:
        given = {"request_id": f"r{i}", "outcome": OutcomeKind.COMPLETED, "e2e_ns": S, "start_unix_ns": 10 * S + i * S,
                 "prompt_tokens": 100, "output_tokens": 7, "lane": "chat"}  # fmt: skip
        return RequestRecord(**given | more)

    left = {"outcome": OutcomeKind.CANCELLED, "reason": Reason.CLIENT_DISCONNECT}
    records = [
        record(0),
        record(1, output_tokens=3, max_tokens=50, **left),  # how long it would have been is not known: what it allowed
        record(2, prompt_tokens=None),
    ]
    rows, notes = rows_of_records(records)
    assert [(r.at_ns / S, r.prompt_tokens, r.output_tokens, r.name) for r in rows] == [
        (10, 100, 7, "chat"), (11, 100, 50, "chat"),
    ]  # fmt: skip
    assert "1 records do not say" in notes[0]
    offsets = [record(i, run_offset_ns=(i - 1) * S) for i in range(3)]
    rows, notes = rows_of_records(offsets)
    assert [r.at_ns for r in rows] == [0, S]
    assert "1 requests of the warm-up" in notes[0]


@pytest.mark.needs("shared")
def test_a_window_of_a_public_trace():
    shared = Path(os.environ.get("TAILRACE_SHARED", Path(__file__).parents[2].parent / "shared"))
    with (shared / "data/traces/mooncake_conversation_trace.jsonl").open() as lines:
        trace = read_whole_trace(lines, rng=np.random.default_rng(0), window_ns=(600 * S, 900 * S), speed=10.0)
    assert trace.format == "Mooncake"
    assert any("ticks of 3 s" in note for note in trace.notes)
    assert 500 < len(trace.rows) < 2000
    assert trace.rows[-1].at_ns < 30 * S
    assert all(row.blocks for row in trace.rows)
