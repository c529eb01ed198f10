"""One request explained: who was being served while it stood still, and what it would have been like otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.analyze.explanation import explain, worst_row
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable
from tests.diagnose.simulated import UNCHUNKED, as_client, as_gateway, served, without_state

MS = 1_000_000


def streamed(
    name: str,
    start_ms: float,
    *,
    ttft: float = 100.0,
    gaps: tuple[float, ...] = (20.0,) * 30,
    prompt: int = 200,
    prefill: float | None = 60.0,
    slow: tuple[str, ...] = (),
    **more: object,
) -> RequestRecord:
    at = np.cumsum([ttft, *gaps])
    e2e = round(float(at[-1]) * MS)
    first = round(ttft * MS)
    own = {} if prefill is None else {"prefill_ns": round(prefill * MS), "queue_ns": first - round(prefill * MS)}
    plain = {
        "request_id": name, "start_unix_ns": 10**18 + round(start_ms * MS), "e2e_ns": e2e, "lane": "chat",
        "outcome": OutcomeKind.COMPLETED, "prompt_tokens": prompt, "output_tokens": len(gaps) + 1, "ttft_ns": first,
        "e2e_last_token_ns": e2e, "decode_ns": e2e - first, "chunk_gap_max_ns": round(max(gaps, default=0.0) * MS),
        "slow": list(slow), **own,
        "timeline": Timeline(
            at_ns=[round(float(one) * MS) for one in at], kind=[EventKind.CONTENT] * at.size, tokens=[1] * at.size
        ),
    }  # fmt: skip
    return RequestRecord(**{**plain, **more})


def scene(**victim: object) -> RecordTable:
    """A stream that stands still from 300 to 1,300 ms, while a document of 8,000 tokens is being computed."""
    stalled = (20.0,) * 10 + (1000.0,) + (20.0,) * 20
    return RecordTable.from_records(
        [
            streamed("victim", 0, gaps=stalled, slow=("gap",), **victim),
            streamed("other", 50, gaps=(20.0,) * 8 + (1000.0,) + (20.0,) * 9),
            streamed("document", 250, ttft=1040.0, prefill=990.0, prompt=8000, lane="docs"),
            streamed("small", 700, ttft=650.0, prefill=30.0, prompt=100),
            streamed("normal", 5000),
            streamed("unlike", 9000, prompt=3000),
        ]
    )


def test_the_prefilling_neighbour_is_named():
    told = explain(scene(), 0)
    first = told.waits[0]
    assert (first.kind, first.begin_ms, first.length_ms) == ("gap", 300.0, 1000.0)
    assert first.neighbours[0].request_id == "document"
    assert first.neighbours[0].prompt_tokens == 8000
    assert first.neighbours[0].inside_ms == pytest.approx(990.0)
    assert (first.streams, first.stood_still) == (1, 1)
    assert "prompt of 8,000 tokens of document" in told.sentences[0]
    assert "1 of 1 other streams with it" in told.sentences[0]
    assert told.alike is not None
    assert (told.alike.request_id, told.alike.near, told.alike.seconds_away) == ("normal", True, 5.0)
    decode = next(line for line in told.stages if line.stage == "decode")
    assert decode.ms - (decode.alike_ms or 0.0) == pytest.approx(1000.0)
    assert told.missing == []


def test_a_pause_of_nobodys_prompt_is_the_engines_or_its_hosts():
    table = scene()
    told = explain(table.where(table.column("request_id") != "document"), 0)
    assert "nobody's prompt was being computed, so the engine or its host paused" in told.sentences[0]
    assert not told.waits[0].neighbours


def test_one_that_stands_still_alone_is_sent_to_its_own_hop():
    going_on = [streamed("victim", 0, gaps=(20.0,) * 10 + (1000.0,) + (20.0,) * 20, slow=("gap",))]
    going_on += [streamed(f"other{number}", -50, gaps=(20.0,) * 80) for number in range(4)]
    told = explain(RecordTable.from_records(going_on), 0)
    assert (told.waits[0].streams, told.waits[0].stood_still) == (4, 0)
    assert "the others went on, so look at its own hop and reader" in told.sentences[0]


def test_without_a_timeline_it_says_what_is_missing():
    table = scene(timeline=None)
    told = explain(table, 0)
    assert [wait.kind for wait in told.waits] == ["first token"]
    assert "timeline was not kept" in told.missing[0]
    assert "Its stream stood still for up to 1,000 ms at one time; when, nobody kept." in told.sentences
    assert not told.timeline_kept


def test_an_engine_that_does_not_report_prefills_is_laid_beside_all_the_same():
    records = [streamed("victim", 0, gaps=(20.0,) * 10 + (1000.0,) + (20.0,) * 20, prefill=None, slow=("gap",))]
    records.append(streamed("document", 250, ttft=1040.0, prompt=8000, prefill=None))
    told = explain(RecordTable.from_records(records), 0)
    assert told.waits[0].neighbours[0].source == "first token"
    assert "does not report it" in told.missing[0]


def test_one_that_never_got_a_token_waited_to_its_end():
    hung = RequestRecord(
        request_id="hung", start_unix_ns=10**18, e2e_ns=5000 * MS, outcome=OutcomeKind.TIMED_OUT,
        reason=Reason.FIRST_TOKEN_TIMEOUT, stream=True, prompt_tokens=100,
    )  # fmt: skip
    told = explain(
        RecordTable.from_records([hung, streamed("document", 250, ttft=4000.0, prefill=3900.0, prompt=8000)]), 0
    )
    assert (told.waits[0].kind, told.waits[0].length_ms) == ("first token", 5000.0)
    assert told.waits[0].neighbours[0].request_id == "document"


def test_alone_it_says_so():
    told = explain(RecordTable.from_records([streamed("only", 0)]), 0)
    assert told.alike is None
    assert told.others_under_way == 0
    assert "the requests around it" in told.missing
    assert told.sentences == ["Nothing in it waited noticeably."]


@pytest.mark.parametrize("seen_by", [as_gateway, as_client, lambda records: without_state(as_gateway(records))])
def test_the_worst_of_a_real_schedule_waits_for_a_document(seen_by):
    """The demo's engine: prompts are not chunked, so each document stops every stream."""
    records = seen_by(served(**UNCHUNKED))
    table = RecordTable.from_records(records)
    told = explain(table, worst_row(table))
    tags = {record.request_id: record.prompt_tokens for record in records}
    named = told.waits[0].neighbours
    assert named
    assert tags[named[0].request_id] >= 5000
    assert named[0].request_id in told.sentences[0]


def test_the_order_of_rows_does_not_matter():
    records = list(as_gateway(served(**UNCHUNKED)))
    table = RecordTable.from_records(records)
    row = worst_row(table)
    order = np.random.default_rng(2).permutation(len(table))
    shuffled = table.where(order)
    assert worst_row(shuffled) == int(np.flatnonzero(order == row)[0])
    assert explain(shuffled, worst_row(shuffled)) == explain(table, row)


def queued(name: str, start_ms: float, *, in_lane: float, engine: float, **more: object) -> RequestRecord:
    """One that waited `in_lane` ms at the gateway; the engine's first token came `engine` ms after it was sent."""
    plain = {
        "ttft_upstream_ns": round(engine * MS), "queue_gateway_ns": round(in_lane * MS), "slow": ("ttft",),
        "queue_ns": round(in_lane * MS), "prefill_ns": round(engine * MS),
    }  # fmt: skip
    return streamed(name, start_ms, ttft=in_lane + engine, **{**plain, **more})


def test_what_it_waited_in_its_lane_counts_and_is_told():
    """The engine's own first token is counted from when it had the request: not from when the client sent it."""
    table = RecordTable.from_records(
        [
            queued("victim", 0, in_lane=1700, engine=1200, prompt=10_000),
            queued("long ago", -2000, in_lane=1000, engine=500, prompt=10_000),
            queued("neighbour", -300, in_lane=1500, engine=600, prompt=9_000),
            streamed("normal", 5000, ttft=50),
        ]
    )
    told = explain(table, 0)
    wait = told.waits[0]
    assert (wait.begin_ms, wait.length_ms, wait.in_lane_ms) == (0.0, 2900.0, 1700.0)
    # Sent to the engine at 1,200 ms, first token at 1,800: not 1,500 ms before that.
    assert [(one.request_id, one.begin_ms, one.end_ms) for one in wait.neighbours] == [("neighbour", 1200.0, 1800.0)]
    assert "took 2,900 ms" in told.sentences[0]
    assert "1,700 ms of that it waited for its turn in lane chat" in told.sentences[0]


def test_a_neighbour_that_does_not_stream_has_its_prompt_computed_too():
    stalled = streamed("victim", 0, gaps=(20.0,) * 10 + (1000.0,) + (20.0,) * 20, slow=("gap",))
    whole = RequestRecord(
        request_id="whole", start_unix_ns=10**18 + 250 * MS, e2e_ns=3000 * MS, outcome=OutcomeKind.COMPLETED,
        stream=False, prompt_tokens=8000, output_tokens=100, queue_ns=50 * MS, prefill_ns=990 * MS,
        decode_ns=1960 * MS, lane="docs",
    )  # fmt: skip
    told = explain(RecordTable.from_records([stalled, whole]), 0)
    assert [one.request_id for one in told.waits[0].neighbours] == ["whole"]
    assert told.waits[0].neighbours[0].inside_ms == pytest.approx(990.0)


def test_a_longer_answer_is_no_slower_one():
    """Twice the tokens at the same pace: the time that they take is no finding."""
    records = [streamed("long", 0, gaps=(20.0,) * 58, slow=("e2e",)), streamed("normal", 9000, gaps=(20.0,) * 29)]
    told = explain(RecordTable.from_records(records), 0)
    assert told.sentences == ["Nothing in it waited noticeably."]
    slower = streamed("slower", 0, gaps=(40.0,) * 58, slow=("tpot",))
    told = explain(RecordTable.from_records([slower, records[1]]), 0)
    said = "decode took 1,179 ms more than 2.0 times the tokens account for (2,320 against 580 ms)"
    assert told.sentences == [f"Beside normal, a normal request much like it, {said}."]


def test_a_long_wait_that_is_usual_is_told_as_usual():
    records = [streamed("a", 0, ttft=900, prompt=9000), streamed("b", 5000, ttft=880, prompt=9000)]
    told = explain(RecordTable.from_records(records), 0)
    assert told.sentences == ["Its longest wait, 900 ms for the first token, is what a request like it takes (880 ms)."]
