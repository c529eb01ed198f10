import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze.gaps import longest_wait_ms, pooled_gaps, token_stamps
from tailrace.model.timeline import EventKind, Timeline
from tests.analyze.tables import request, table


def rows(records):
    return np.arange(len(records))


def test_only_token_events_make_gaps():
    line = Timeline(
        at_ns=[5, 10, 11, 30, 40],
        kind=[EventKind.ROLE, EventKind.CONTENT, EventKind.COMMENT, EventKind.TOOL, EventKind.DONE],
        tokens=[0, 1, 0, 2, 0],
    )
    at, tokens = token_stamps(line)
    assert (at.tolist(), tokens.tolist()) == ([10, 30], [1, 2])


def test_requests_without_a_timeline_are_counted_out():
    records = [request(0, gaps_ms=[10, 20]), request(1, gaps_ms=[30], timeline=False)]
    gaps = pooled_gaps(table(records), rows(records))
    assert (gaps.ms.tolist(), gaps.row.tolist(), gaps.rows) == ([10.0, 20.0], [0, 0], 1)


def test_an_entry_that_swallowed_others_stands_for_gaps_of_their_mean():
    record = request(0, gaps_ms=[10, 40, 500])
    line = record.timeline
    thinned = Timeline(at_ns=line.at_ns, kind=line.kind, tokens=[1, 1, 4, 1], thinned=3, merged=[0, 0, 3, 0])
    gaps = pooled_gaps(table([msgspec.structs.replace(record, timeline=thinned)]), np.arange(1))
    assert gaps.ms.tolist() == [10.0, 10.0, 10.0, 10.0, 10.0, 500.0]
    assert gaps.tokens.tolist() == [1] * 6
    assert gaps.thinned == 3


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 5)), min_size=1, max_size=40))
def test_thinned_gaps_keep_their_sum_and_their_count(steps):
    at = np.cumsum([0, *(length for length, _ in steps)]).tolist()
    merged = [0, *(count for _, count in steps)]
    record = msgspec.structs.replace(
        request(0),
        timeline=Timeline(at_ns=at, kind=[0] * len(at), tokens=[1] * len(at), merged=merged, thinned=sum(merged)),
    )
    gaps = pooled_gaps(table([record]), np.arange(1))
    assert gaps.row.size == sum(merged) + len(steps)
    assert int((gaps.end_ns - gaps.begin_ns).sum()) == at[-1]
    assert (gaps.end_ns >= gaps.begin_ns).all()


def test_an_answer_that_is_not_streamed_is_one_wait():
    records = [request(0, prefill_ms=50, gaps_ms=[10]), request(1, prefill_ms=50, gaps_ms=[10], stream=False)]
    assert longest_wait_ms(table(records)).tolist() == [50.0, 60.0]
    cut = msgspec.structs.replace(records[0], ttft_ns=None)
    assert np.isnan(longest_wait_ms(table([cut]))).all()


def test_nothing_is_no_gap():
    gaps = pooled_gaps(table([request(0)]), np.arange(1))
    assert gaps.row.size == 0
    assert gaps.ms.tolist() == []
