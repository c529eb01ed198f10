import tracemalloc

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze.gaps import longest_wait_ms, pooled_gaps, token_stamps
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable
from tailrace.store.timelines import Packed, Timelines
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


def test_blocks_are_the_same_events_whatever_their_size_and_whatever_was_chosen():
    records = [request(n, gaps_ms=[10 + n] * (n % 7), timeline=n % 5 != 4) for n in range(60)]
    timelines = table(records).timelines
    for chosen in (np.arange(60), np.arange(0, 60, 3), np.array([50, 3, 7])):
        whole = timelines.events(chosen)
        for most in (1, 9, 10_000):
            blocks = list(timelines.blocks(chosen, most))
            for name in whole._fields:
                parts = [getattr(block, name) for block in blocks]
                assert np.concatenate(parts).tolist() == getattr(whole, name).tolist(), name
    assert list(timelines.blocks(np.empty(0, dtype=np.int64))) == []


def test_parts_are_all_gaps_in_order_and_cut_no_request_in_two():
    records = [request(n, gaps_ms=[10 + n, 5] * (n % 7)) for n in range(40)]
    gaps = pooled_gaps(table(records), rows(records))
    for most in (1, 5, 10_000):
        parts = list(gaps.parts(most))
        assert np.concatenate([part.row[part.owner] for part in parts]).tolist() == gaps.row.tolist()
        assert np.concatenate([part.ms for part in parts]).tolist() == gaps.ms.tolist()
        assert [part.at for part in parts] == np.cumsum([0, *(part.ms.size for part in parts[:-1])]).tolist()
        seen = np.concatenate([part.row for part in parts])
        assert np.unique(seen).size == seen.size
        assert sum(int(part.size.sum()) for part in parts) == gaps.row.size


def test_a_gap_of_hours_is_as_long_as_it_was():
    record = request(0, gaps_ms=[10, 7_200_000])
    gaps = pooled_gaps(table([record, request(1, gaps_ms=[3])]), np.arange(2))
    assert gaps.ms.tolist() == [10.0, 7_200_000.0, 3.0]
    assert gaps.end_ns.tolist() == (gaps.begin_ns + gaps.length_ns).tolist()


def test_a_million_gaps_are_laid_out_in_twenty_bytes_each():
    streams, events = 2_000, 500
    at = np.tile(np.arange(events) * 20_000_000, streams)
    held = Packed(
        np.arange(streams + 1) * events,
        at,
        np.zeros(at.size, np.int8),
        np.ones(at.size, np.int32),
        np.zeros(streams, np.int64),
        {},
    )
    records = RecordTable(table([request(0)] * streams).columns, Timelines(np.arange(streams), held))
    tracemalloc.start()
    gaps = pooled_gaps(records, np.arange(streams))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert gaps.row.size == streams * (events - 1)
    assert kept < 22 * gaps.row.size
    # Wide arrays of all gaps at once, and what is masked of them, were five times that.
    assert peak < 60 * gaps.row.size
