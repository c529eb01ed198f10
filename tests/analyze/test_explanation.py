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
