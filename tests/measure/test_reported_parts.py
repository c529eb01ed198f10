"""What the head of an answer says of stages behind the gateway."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.reported_parts import MOST_PARTS, REPORTED, with_reported
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import broken_invariants
from tailrace.stages import render_server_timing

MS = 1_000_000


def test_a_part_makes_its_stage():
    said = with_reported(NO_TIMINGS, b"preprocess.retrieval;dur=12.5, preprocess.template;dur=2")
    assert said.preprocess_ns == 14_500_000
    assert said.parts_ns == {"preprocess.retrieval": 12_500_000, "preprocess.template": 2_000_000}
    assert said.sources == dict.fromkeys(("preprocess", "preprocess.retrieval", "preprocess.template"), REPORTED)


def test_a_stage_that_is_told_counts_as_told():
    said = with_reported(NO_TIMINGS, b"preprocess;dur=20, preprocess.retrieval;dur=12.5, postprocess.safety;dur=3")
    assert (said.preprocess_ns, said.postprocess_ns) == (20 * MS, 3 * MS)


def test_parts_of_parts_are_not_added_again():
    said = with_reported(NO_TIMINGS, b"preprocess.retrieval;dur=10, preprocess.retrieval.index;dur=9")
    assert said.preprocess_ns == 10 * MS


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"cdn-cache;desc=HIT, edge;dur=1, total;dur=123.4",
        b"model;dur=5, model.call;dur=3",
        b"ingress;dur=1, response;dur=2, unattributed;dur=3, upstream;dur=9",
        b"preprocess, preprocess.retrieval;desc=slow",
        b"preprocess.;dur=3, .preprocess;dur=2, preprocess..x;dur=1",
        b"\xff\xfe, =;,;",
    ],
)
def test_what_is_no_stage_behind_us_changes_nothing(header):
    assert with_reported(NO_TIMINGS, header) is NO_TIMINGS


def test_another_gateways_lane_is_queue_behind_us():
    said = with_reported(NO_TIMINGS, b"ingress;dur=0.2, queue.gateway;dur=40, upstream;dur=9")
    assert (said.queue_ns, said.parts_ns) == (40 * MS, {})


def test_the_engine_knows_its_own_stages_better_and_its_preprocessing_is_beside_ours():
    engine = EngineTimings(
        prefill_ns=50 * MS,
        preprocess_ns=1 * MS,
        sources={"prefill": "reported(metrics.prefill)", "preprocess": "measured(header time)"},
    )
    said = with_reported(engine, b"prefill;dur=70, preprocess.retrieval;dur=12")
    assert (said.prefill_ns, said.preprocess_ns) == (50 * MS, 13 * MS)
    assert said.sources["prefill"] == "reported(metrics.prefill)"
    assert said.sources["preprocess"] == "measured(header time + server-timing)"


def test_how_many_parts_are_taken_is_bounded():
    header = ", ".join(f"preprocess.p{number};dur=1" for number in range(100)).encode()
    assert len(with_reported(NO_TIMINGS, header).parts_ns) == MOST_PARTS


NAME = st.sampled_from(
    ["queue", "queue.x", "preprocess", "preprocess.a", "preprocess.a.b", "prefill", "postprocess.c", "decode", "model"]
)


@given(st.dictionaries(NAME, st.integers(0, 200 * MS)), st.booleans(), st.binary(max_size=40))
def test_whatever_is_said_the_record_adds_up(durations, streamed, rest):
    header = render_server_timing(durations).encode() + b"," + rest
    ledger = RequestLedger(request_id="r", start_unix_ns=0, received=0, parsed=1, queued=1, admitted=2, sent=3)
    ledger.upstream_end, ledger.client_last_write, ledger.stream = 100 * MS, 101 * MS, streamed
    record = ledger.close(101 * MS, OutcomeKind.COMPLETED, timings=with_reported(NO_TIMINGS, header))
    assert broken_invariants(record) == []
    for name in record.parts_ns:
        assert record.stage_sources[name].startswith("reported(server-timing")
