"""Peak concurrency, repeatability, and the account of a run's work, from records of known content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.analyze.bench_summary import measured, summarise
from tailrace.analyze.peak_concurrency import peak_concurrency
from tailrace.analyze.repeatability import repeatability
from tailrace.analyze.work_done import real_time_factors, work_done
from tailrace.model.outcome import Reason
from tailrace.store.table import RecordTable
from tests.analyze.tables import request


def table(*records) -> RecordTable:
    return RecordTable.from_records(list(records))


def at(i, start_ms, length_ms, **more):
    return request(i, at_ms=start_ms, prefill_ms=length_ms, **more)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_the_peak_is_the_largest_overlap(spans: list[tuple[int, int]]):
    found = peak_concurrency(table(*(at(i, start, length) for i, (start, length) in enumerate(spans))))
    brute = max(sum(s <= moment < s + n for s, n in spans) for moment, _ in spans)
    assert found.peak == brute
    assert found.n == len(spans)
    low, high = found.between()
    assert (low, high) == ((brute + 1) // 2, brute)


def test_one_worker_is_one_at_a_time_and_refused_ones_are_none():
    assert peak_concurrency(table(*(at(i, i * 10, 10) for i in range(20)))).peak == 1
    assert peak_concurrency(table(at(0, 0, 10), at(1, 2, 5, reason=Reason.QUEUE_FULL))).peak == 1
    assert peak_concurrency(table()).peak == 0


def spread(rng: np.random.Generator, n: int, sd: float, answers: str = "a", mean: float = 200.0):
    values = np.maximum(rng.normal(mean, sd, n), 1)
    return table(*(request(i, at_ms=i, prefill_ms=float(v), answer_hash=answers) for i, v in enumerate(values)))


def test_the_share_that_scheduling_adds_is_found():
    """Independent parts: 10 ms of the engine's own, and under load another sqrt(300) ms, so 3/4 of the variance."""
    rng = np.random.default_rng(5)
    found = repeatability(spread(rng, 3000, 10), spread(rng, 3000, 20), concurrency=8, rng=rng)
    ttft = found.metrics["ttft_ms"]
    assert ttft.alone.sd == pytest.approx(10, rel=0.06)
    assert ttft.together.sd == pytest.approx(20, rel=0.06)
    assert ttft.scheduling_share == pytest.approx(0.75, abs=0.03)
    assert ttft.scheduling_share_ci is not None
    low, high = ttft.scheduling_share_ci
    assert low < 0.75 < high
    assert ttft.alone.p99 is not None
    assert found.answers is not None
    assert found.answers.identical


def test_its_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(9)
    held = 0
    for _ in range(40):
        found = repeatability(spread(rng, 60, 10), spread(rng, 60, 30), concurrency=2, rng=rng)
        interval = found.metrics["ttft_ms"].scheduling_share_ci
        assert interval is not None
        held += interval[0] <= 1 - 1 / 9 <= interval[1]
    assert held >= 33  # 95 % of 40 is 38; fewer than 33 would be one in ten thousand


def test_a_spread_that_did_not_grow_has_no_share_and_few_values_have_none():
    rng = np.random.default_rng(2)
    same = repeatability(spread(rng, 200, 20), spread(rng, 200, 10), concurrency=4, rng=rng)
    assert same.metrics["ttft_ms"].scheduling_share is None
    few = repeatability(spread(rng, 5, 1), spread(rng, 5, 50), concurrency=4, rng=rng)
    assert few.metrics["ttft_ms"].scheduling_share is None
    assert few.metrics["ttft_ms"].alone.p99 is None


def test_answers_that_differ_are_told():
    rng = np.random.default_rng(2)
    mixed = RecordTable.concat([spread(rng, 6, 1, "a"), spread(rng, 2, 1, "b")])
    found = repeatability(spread(rng, 12, 1, "a"), mixed, concurrency=4, rng=rng).answers
    assert found is not None
    assert not found.identical
    assert (found.n, found.distinct_alone, found.distinct_together, found.distinct) == (20, 1, 2, 2)
    assert found.commonest == 0.9


def test_leaving_clients_are_counted_apart():
    left = [request(i, at_ms=100 * i, reason=Reason.LEFT_AS_PLANNED, prefill_ms=20) for i in range(3)]
    # Each is followed, 60 ms later, by one that waits; others come before.
    after = [request(10 + i, at_ms=100 * i + 60, prefill_ms=40) for i in range(3)]
    others = [request(20 + i, at_ms=-500 + i, prefill_ms=10) for i in range(5)]
    whole = table(*left, *after, *others)
    assert len(measured(whole)) == 8
    summary = summarise(whole)
    assert (summary.n, summary.errors) == (8, {})
    leaves = work_done(whole, {}).leaves
    assert leaves is not None
    assert (leaves.n, leaves.ttft_p50_next_ms, leaves.ttft_p50_others_ms) == (3, 40, 10)


def test_the_real_time_factor_is_the_time_by_the_length():
    whole = table(*(request(i, at_ms=1000 * i, prefill_ms=500, audio_seconds=10.0) for i in range(6)))
    assert real_time_factors(whole).tolist() == pytest.approx([0.05] * 6)
    assert summarise(whole).metrics["rtf"].mean == pytest.approx(0.05)
    audio = work_done(whole, {}).audio
    assert audio is not None
    assert (audio.n, audio.audio_seconds) == (6, 60)
    assert audio.audio_seconds_per_s == pytest.approx(60 / 5.5)
    assert "rtf" not in summarise(table(request(1))).metrics


def test_sessions_by_their_turns():
    rows = [
        request(i, at_ms=i, session_id=f"s{i // 3}", turn=i % 3, prefill_ms=10.0 + 10 * (i % 3 > 0)) for i in range(9)
    ]
    found = work_done(table(*rows, request(99)), {"turns_not_sent": 2}).sessions
    assert found is not None
    assert (found.n, found.turns, found.turns_not_sent) == (3, 9, 2)
    assert (found.ttft_p50_first_ms, found.ttft_p50_later_ms) == (10, 20)


def test_lengths_come_from_the_runs_own_counts():
    counters = {
        "counted_prompts": 4.0,
        "planned_prompt_tokens": 400.0,
        "counted_prompt_tokens": 404.0,
        "exact_prompts": 1.0,
        "counted_answers": 4.0,
        "planned_output_tokens": 40.0,
        "counted_output_tokens": 30.0,
        "early_answers": 2.0,
        "reusable_prompt_tokens": 30.0,
        "reusable_of_tokens": 100.0,
    }
    found = work_done(table(request(1)), counters)
    assert found.prompts is not None
    assert (found.prompts.share, found.prompts.exact) == (1.01, 1)
    assert found.answers is not None
    assert (found.answers.ended_early, found.answers.share) == (2, 0.75)
    assert found.prefixes is not None
    assert (found.prefixes.planned_share, found.prefixes.cached_share) == (0.3, None)
    nothing = work_done(table(request(1)), {})
    assert (nothing.prompts, nothing.answers, nothing.prefixes, nothing.sessions) == (None, None, None, None)
