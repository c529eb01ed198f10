"""The record and its invariants."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import SCHEMA, RequestRecord, broken_invariants
from tailrace.model.stage import STAGES, SourceKind, source


def record(**changes):
    fields = {
        "request_id": "r",
        "start_unix_ns": 1,
        "queue_ns": 30,
        "queue_gateway_ns": 10,
        "queue_engine_ns": 20,
        "decode_ns": 70,
        "e2e_ns": 100,
        "stage_sources": {"queue": "measured", "decode": "measured"},
        "outcome": OutcomeKind.COMPLETED,
    }
    return RequestRecord(**{**fields, **changes})


def test_a_sound_record_breaks_nothing():
    assert broken_invariants(record()) == []
    assert record().stages() == {"queue": 30, "decode": 70}
    assert record().stage_ns("queue.engine") == 20
    assert record().stage_ns("prefill") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"e2e_ns": 99}, "stages add up to 100 ns, end to end is 99 ns"),
        ({"unattributed_ns": 1, "stage_sources": {"queue": "m", "decode": "m", "unattributed": "m"}}, "add up to 101"),
        ({"queue_ns": -1, "queue_gateway_ns": None, "queue_engine_ns": None, "e2e_ns": 69}, "stage queue is negative"),
        ({"queue_engine_ns": 21}, "parts of queue are 31 ns, the stage is 30 ns"),
        ({"stage_sources": {"queue": "measured"}}, "stage decode has no source"),
        ({"reason": Reason.STREAM_CUT}, "outcome completed with reason"),
        ({"outcome": OutcomeKind.FAILED}, "outcome failed with reason"),
    ],
)
def test_each_broken_rule_is_named(changes, said):
    assert any(said in line for line in broken_invariants(record(**changes)))


@given(st.dictionaries(st.sampled_from(STAGES), st.integers(0, 10**12), min_size=1))
def test_any_split_into_stages_that_adds_up_is_sound(stages):
    fields = {f"{stage}_ns": value for stage, value in stages.items()}
    made = RequestRecord(
        request_id="r",
        start_unix_ns=1,
        e2e_ns=sum(stages.values()),
        outcome=OutcomeKind.COMPLETED,
        stage_sources={str(stage): "measured" for stage in stages},
        **fields,
    )
    assert broken_invariants(made) == []
    assert list(made.stages()) == [str(stage) for stage in STAGES if stage in stages]


def test_json_leaves_out_what_was_not_seen_and_reads_back():
    text = msgspec.json.encode(record())
    assert b"ttft" not in text
    assert msgspec.json.decode(text, type=RequestRecord) == record()
    assert record().schema == SCHEMA


def test_an_older_reader_takes_added_fields():
    text = msgspec.json.encode(record())[:-1] + b',"a_field_of_tomorrow":1}'
    assert msgspec.json.decode(text, type=RequestRecord) == record()


def test_sources_are_spelled_with_their_detail():
    assert source(SourceKind.MEASURED) == "measured"
    assert source(SourceKind.REPORTED, "metrics.queue_time_ms") == "reported(metrics.queue_time_ms)"
