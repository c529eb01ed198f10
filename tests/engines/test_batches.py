"""Batch sizes from an engine's own statistics."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.batches import BatchCounts, BatchSpan
from tailrace.engines.registry import adapter
from tests.measure.shared import sample_text

sizes = st.dictionaries(st.integers(1, 64), st.integers(0, 100), max_size=6)


@pytest.mark.needs("shared")
def test_captured_statistics_of_triton() -> None:
    body = json.dumps(json.loads(sample_text("triton/statistics.json"))["echo_batch"]).encode()
    counts = adapter("triton").read_statistics(body)["echo_batch"]
    assert counts.executions == {1: 3, 7: 1, 8: 5}
    assert sum(size * ran for size, ran in counts.executions.items()) == 50, "its inference_count"
    span = counts.since(BatchCounts())
    assert span is not None
    assert (span.seen_by_a_request, span.exact) == (7, False), "not 5.6, the mean over executions"
    assert span.queue_mean_ns == pytest.approx(1128153246 / 50)


def test_nothing_executed_and_a_restart_tell_nothing() -> None:
    counts = BatchCounts({4: 10}, 5, 10)
    assert counts.since(counts) is None
    assert BatchCounts({4: 2}, 0, 1).since(counts) is None


@given(sizes, sizes)
def test_a_span_is_what_came_between(before: dict[int, int], more: dict[int, int]) -> None:
    after = {size: before.get(size, 0) + more.get(size, 0) for size in before | more}
    span = BatchCounts(after).since(BatchCounts(before))
    ran = {size: count for size, count in more.items() if count}
    if not ran:
        assert span is None
        return
    assert span == BatchSpan(ran)
    assert min(ran) <= span.seen_by_a_request <= max(ran)
    assert span.exact == (len(ran) == 1)
