"""Percentiles, their intervals, and what failures do to them: against hand-made numbers, and for any numbers."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.analyze.metric_values import (
    QUANTILES,
    adjusted,
    effective_sizes,
    pooled,
    summarise_pool,
    summarise_rates,
    summarise_values,
)
from tailrace.stats.quantiles import needed, quantile_interval, supported

VALUES = st.lists(st.floats(min_value=0.001, max_value=1e6, allow_nan=False), min_size=1, max_size=900)


def infinite_if_absent(value):
    return math.inf if value is None else value


def test_failures_are_slower_than_everything():
    """100 values 1..100 and 25 failures: the p50 of 125 lies at place 62 (0-based), the p90 at 111.6, beyond 99."""
    metric = summarise_values(np.arange(1.0, 101.0), failed=25)
    assert (metric.n, metric.failed) == (100, 25)
    assert (metric.p50, metric.p90) == (50.5, pytest.approx(90.1))
    assert metric.adjusted == {"p50": 63.0, "p90": None, "p95": None}


def test_a_percentile_between_the_slowest_answer_and_a_failure_is_infinite():
    # 10 values and 1 failure: p90 of 11 lies at place 9.0, exactly on the slowest; of 12 at 9.9, half in the failures.
    ordered = np.sort(np.arange(100.0))
    assert adjusted(ordered, 0)["p90"] == pytest.approx(89.1)
    assert adjusted(ordered, 10)["p90"] == pytest.approx(98.1)
    assert adjusted(ordered, 11)["p90"] == pytest.approx(99.0)
    assert adjusted(ordered, 12)["p90"] is None


def test_every_shown_percentile_has_its_interval_by_order_statistics():
    values = np.random.default_rng(3).exponential(100.0, 6000)
    metric = summarise_values(values)
    assert set(metric.ci) == {"p50", "p90", "p95", "p99", "p999"}
    assert metric.ci_method == "order_statistics"
    for name, p in QUANTILES.items():
        assert tuple(metric.ci[name]) == quantile_interval(values, p)
    assert metric.p99_ci == metric.ci["p99"]


@pytest.mark.parametrize(("name", "p"), QUANTILES.items())
def test_the_one_rule_for_the_smallest_n(name, p):
    least = needed(p)
    assert getattr(summarise_values(np.arange(float(least))), name) is not None
    fewer = summarise_values(np.arange(float(least - 1)))
    assert getattr(fewer, name) is None
    assert name not in fewer.ci
    # With failures there are more requests to rest on, but no more values.
    assert (name in summarise_values(np.arange(float(least - 1)), failed=1).adjusted) == supported(p, least)


@given(VALUES, st.integers(0, 400))
@settings(max_examples=150)
def test_an_adjusted_percentile_is_never_below_the_plain_one(values, lost):
    metric = summarise_values(np.array(values), failed=lost)
    for name in QUANTILES:
        plain = getattr(metric, name)
        if plain is not None:
            assert infinite_if_absent(metric.adjusted[name]) >= plain - 1e-9 * plain
            if not lost:
                assert metric.adjusted[name] == pytest.approx(plain)
    order = [infinite_if_absent(metric.adjusted[name]) for name in QUANTILES if name in metric.adjusted]
    assert order == sorted(order)


@given(VALUES)
@settings(max_examples=150)
def test_an_interval_contains_its_percentile_and_all_are_in_order(values):
    metric = summarise_values(np.array(values))
    shown = [getattr(metric, name) for name in QUANTILES if getattr(metric, name) is not None]
    assert shown == sorted(shown)
    for name, (low, high) in metric.ci.items():
        value = getattr(metric, name)
        assert low is None or low <= value + 1e-9 * value
        assert high is None or value - 1e-9 * value <= high
    assert metric.min is not None
    assert metric.max is not None
    assert all(metric.min <= value <= metric.max * (1 + 1e-12) for value in shown)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.001, 1e4), st.floats(0, 60)), min_size=2, max_size=600))
@example(entries=[(0, 1.0, 0.0), (1, 1.0, 1.1125369292536007e-308)])
@settings(max_examples=100)
def test_a_pool_is_worth_no_more_than_its_values(entries):
    rows, values, at = (np.array(column) for column in zip(*entries, strict=True))
    pool = pooled(values.astype(float), rows.astype(np.int64), at.astype(float))
    levels = [float(np.quantile(values, p)) for p in (0.5, 0.9, 0.99)]
    for size in effective_sizes(pool, levels):
        assert 0.0 <= size <= values.size
    metric = summarise_pool(pool)
    for name, (low, high) in metric.ci.items():
        value = getattr(metric, name)
        assert low is None or low <= value + 1e-9
        assert high is None or value <= high + 1e-9


def test_independent_values_keep_nearly_their_whole_number():
    rng = np.random.default_rng(0)
    n = 20_000
    pool = pooled(rng.exponential(20.0, n), np.arange(n) // 20, rng.uniform(0, 100, n))
    sizes = effective_sizes(pool, [float(np.quantile(pool.values, p)) for p in (0.5, 0.99)])
    assert min(sizes) > 0.5 * n


def test_gaps_that_are_copies_of_each_other_are_worth_their_requests():
    rng = np.random.default_rng(1)
    each = rng.exponential(20.0, 400)
    pool = pooled(np.repeat(each, 50), np.repeat(np.arange(400), 50), np.repeat(rng.uniform(0, 100, 400), 50))
    (size,) = effective_sizes(pool, [float(np.median(pool.values))])
    assert size <= 400


def test_a_stall_that_hit_every_stream_at_once_is_one_observation():
    """100 streams of 100 gaps side by side, all held up in the same two moments."""
    gaps = np.full((100, 100), 20.0)
    gaps[:, [30, 70]] = 200.0
    at = np.cumsum(gaps, axis=1) / 1e3
    rows = np.repeat(np.arange(100), 100)
    pool = pooled(gaps.ravel(), rows, at.ravel())
    metric = summarise_pool(pool)
    assert metric.p99 == 200.0
    # Each request has exactly its two: sums over requests alone would call that certain.
    assert metric.ci["p99"][0] == 20.0


def test_the_interval_of_gaps_covers_where_that_of_independent_values_does_not():
    """60 streams, each with a pace of its own: 150 worlds whose true p95 is known."""
    rng = np.random.default_rng(7)

    def world():
        pace = rng.lognormal(0.0, 0.5, 60)
        return 20.0 * pace[:, None] * rng.lognormal(0.0, 0.15, (60, 50)), np.sort(rng.uniform(0, 60, 60))

    truth = float(np.quantile(np.concatenate([world()[0].ravel() for _ in range(300)]), 0.95))
    covered = naive = 0
    rows = np.repeat(np.arange(60), 50)
    for _ in range(150):
        gaps, start = world()
        at = (start[:, None] + np.cumsum(gaps, axis=1) / 1e3).ravel()
        low, high = summarise_pool(pooled(gaps.ravel(), rows, at)).ci["p95"]
        covered += (low is None or low <= truth) and (high is None or truth <= high)
        low, high = quantile_interval(gaps.ravel(), 0.95)
        naive += (low is None or low <= truth) and (high is None or truth <= high)
    assert covered >= 0.93 * 150
    assert naive < 0.5 * 150


def test_of_a_rate_the_low_end_is_the_tail():
    rates = summarise_rates(np.arange(1.0, 1001.0))
    assert (rates.n, rates.min, rates.max) == (1000, 1.0, 1000.0)
    assert rates.p1 == pytest.approx(10.99)
    assert rates.p50 == 500.5
    assert rates.ci["p1"][0] < rates.p1 < rates.ci["p1"][1]
    few = summarise_rates(np.arange(1.0, 100.0))
    assert few.p1 is None
    assert few.p10 is not None


def test_nothing_is_said_to_be_nothing():
    assert summarise_values(np.array([np.nan]), "not asked").reason == "not asked"
    empty = pooled(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0))
    assert summarise_pool(empty, "no timeline was kept", failed=3).reason == "no timeline was kept"
    assert summarise_rates(np.empty(0)).n == 0
    # Only failures: every percentile that so many requests support is infinite.
    assert summarise_values(np.empty(0), failed=30).adjusted == {"p50": None}
