"""Periods of moments and clusters of waits: found where there is a timer, not where there is chance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stats.periods import period_of, round_value, spike_of


@pytest.mark.parametrize(("period", "jitter", "missing"), [(1.5, 0.05, 0.0), (10.0, 0.3, 0.2), (2.0, 0.1, 0.4)])
@pytest.mark.parametrize("seed", range(5))
def test_a_period_is_found_with_jitter_and_where_some_moments_are_missing(period, jitter, missing, seed):
    draw = np.random.default_rng(seed)
    beat = np.arange(int(120 / period))
    beat = beat[draw.random(beat.size) >= missing]
    found = period_of(3.3 + beat * period + draw.normal(0, jitter, beat.size))
    assert found is not None
    assert found.seconds == pytest.approx(period, rel=0.03)
    assert found.p_value < 0.02


def test_chance_has_no_period():
    hits = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        hits += period_of(draw.uniform(0, 60, draw.integers(6, 80))) is not None
        hits += period_of(np.cumsum(draw.exponential(1.0, 40) + 0.3)) is not None
    assert hits <= 8


def test_too_few_moments_or_no_span_have_none():
    assert period_of(np.arange(5.0)) is None
    assert period_of(np.zeros(50)) is None
    assert period_of(np.empty(0)) is None


@given(st.lists(st.floats(0, 1e9), max_size=60))
def test_any_moments_are_answered(at):
    found = period_of(np.array(at))
    assert found is None or found.seconds > 0


@pytest.mark.parametrize(("timer", "share"), [(50.0, 0.4), (100.0, 0.2), (2000.0, 0.9), (7.5, 0.3)])
def test_waits_that_end_at_a_timer_cluster_there(timer, share):
    draw = np.random.default_rng(1)
    n = 900
    held = draw.random(n) < share
    waits = np.where(held, timer + draw.exponential(0.004 * timer, n), draw.uniform(0, timer, n))
    found = spike_of(waits)
    assert found is not None
    assert found.nominal == timer
    assert found.low <= found.share <= found.high
    assert found.share > 5 * found.expected


def test_smooth_waits_do_not_cluster():
    hits = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        hits += spike_of(draw.lognormal(3, draw.uniform(0.3, 1.5), draw.integers(30, 3000))) is not None
        hits += spike_of(draw.exponential(50, 500)) is not None
    assert hits <= 4


def test_a_cluster_that_is_no_round_number_names_none():
    draw = np.random.default_rng(2)
    found = spike_of(np.concatenate([draw.uniform(0, 80, 500), draw.normal(137.0, 0.5, 400)]))
    assert found is not None
    assert found.nominal is None
    assert found.value == pytest.approx(137.0, rel=0.01)


@pytest.mark.parametrize(
    ("ms", "nominal"),
    [(50.3, 50.0), (51.9, 50.0), (15_020.0, 15_000.0), (60_010.0, 60_000.0), (137.0, None), (0, None)],
)
def test_round_values(ms, nominal):
    assert round_value(ms) == nominal


@given(st.lists(st.floats(-1e3, 1e9) | st.just(float("nan")), max_size=200))
def test_any_waits_are_answered(waits):
    found = spike_of(np.array(waits, dtype=np.float64))
    assert found is None or 0 < found.share <= 1
