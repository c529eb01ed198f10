from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.cache_account import account_from_cache
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import broken_invariants


def test_a_hit_is_read_and_written_and_has_no_engine_stage():
    found = account_from_cache("hit", received=100, parsed=130, began=130, blocked=[], end=150)
    assert found.values == {"ingress": 30, "response": 20}


def test_a_shared_answer_is_waited_for_and_then_comes_as_the_other_s():
    found = account_from_cache("shared", received=100, parsed=110, began=160, blocked=[(170, 180)], end=200)
    assert found.values == {"ingress": 10, "queue.gateway": 50, "queue": 50, "decode": 30, "response": 10}
    assert found.sources["decode"] == "measured(another request's answer)"


def test_a_hit_by_meaning_waited_for_its_vector():
    found = account_from_cache("semantic", received=100, parsed=110, began=160, blocked=[], end=165)
    assert found.values == {"ingress": 10, "queue.gateway": 50, "queue": 50, "response": 5}
    assert found.sources["queue"] == "measured(embedding of the question)"


def test_one_that_was_still_waiting_when_it_ended():
    found = account_from_cache("shared", received=100, parsed=110, began=None, blocked=[], end=200)
    assert found.values == {"ingress": 10, "queue.gateway": 90, "queue": 90}


stamps = st.integers(0, 1000)


@given(
    st.sampled_from(["hit", "shared", "semantic"]),
    stamps,
    st.none() | stamps,
    st.none() | stamps,
    st.lists(st.tuples(stamps, stamps), max_size=4),
    stamps,
)
def test_the_stages_add_up_whatever_the_stamps_are(cache, received, parsed, began, blocked, end):
    ledger = RequestLedger(request_id="r", start_unix_ns=0, received=received, parsed=parsed, admitted=began)
    ledger.cache = cache
    ledger.blocked = [(start, stop) for start, stop in blocked if stop > start]
    summary = StreamSummary(origin_at=received, first_token_at=began, last_token_at=end, output_tokens=3)
    record = ledger.close(end, OutcomeKind.COMPLETED, summary=summary)
    assert broken_invariants(record) == []
    assert record.prefill_ns is None
    assert record.from_cache
