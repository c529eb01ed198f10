"""Mix and within with intervals: the points are exact, the intervals hold what they should."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.stats.blocks import blocks_of, drawn, interval, p_value
from tailrace.stats.decomposition import mix_within
from tailrace.stats.mixtures import Part, Side, bucket_changes, split_mean, split_quantile


def side(values, bucket, at=None):
    values = np.asarray(values, dtype=np.float64)
    return Side(values, np.asarray(bucket), blocks_of(values, np.zeros(values.size) if at is None else at))


def rng():
    return np.random.default_rng(0)


def golden():
    a = side([*range(100, 190), *range(1000, 1091, 10)], [0] * 90 + [1] * 10)
    b = side([*range(100, 160), *range(1500, 1891, 10)], [0] * 60 + [1] * 40)
    return a, b


def test_the_points_are_those_of_the_exact_split():
    a, b = golden()
    p95, p50 = (split_quantile(a, b, 2, p, rng()) for p in (0.95, 0.5))
    assert (p95.a, p95.b, p95.mix.value, p95.within.value) == (1040.0, 1840.0, 95.0, 705.0)
    assert (p50.mix.value, p50.within.value) == (20.5, -20.5)


def test_a_mean_that_did_not_move_hides_two_opposite_changes():
    a = side([200.0] * 900 + [2000.0] * 100, [0] * 900 + [1] * 100)
    b = side([200.0] * 920 + [2450.0] * 80, [0] * 920 + [1] * 80)
    split = split_mean(a, b, 2, rng())
    assert (split.a, split.b) == (380.0, 380.0)
    assert split.mix.value == pytest.approx(-36.0)
    assert split.within.value == pytest.approx(36.0)
    assert split.mix.low <= -36.0 <= split.mix.high
    assert split.buckets[1].value == pytest.approx(36.0)
    assert split.buckets[0].value == 0.0


def test_no_bucket_in_common_is_no_split():
    a, b = side([1.0, 2.0], [0, 0]), side([1.0, 2.0], [1, 1])
    assert split_quantile(a, b, 2, 0.5, rng()) is None
    assert split_mean(a, b, 2, rng()) is None


values = st.lists(st.tuples(st.floats(0.1, 1e6), st.integers(0, 3)), min_size=2, max_size=60)


@settings(max_examples=50, deadline=None)
@given(values, values, st.sampled_from([0.5, 0.9, 0.99]))
def test_any_two_windows_add_up_and_their_intervals_hold_the_point(one, two, p):
    a, b = (side([v for v, _ in rows], [k for _, k in rows]) for rows in (one, two))
    split = split_quantile(a, b, 4, p, rng(), resamples=50)
    exact = mix_within(
        {str(k): a.values[a.bucket == k] for k in range(4)}, {str(k): b.values[b.bucket == k] for k in range(4)}, p
    )
    if exact is None:
        assert split is None
        return
    assert split.mix.value + split.within.value == pytest.approx(split.b - split.a, abs=1e-6)
    for part in (split.mix, split.within, *split.buckets.values()):
        assert part.low <= part.value <= part.high
    mean = split_mean(a, b, 4, rng(), resamples=50)
    assert mean.mix.value + mean.within.value == pytest.approx(mean.b - mean.a, rel=1e-6, abs=1e-6)
    assert sum(one.value for one in mean.buckets.values()) == pytest.approx(mean.within.value, rel=1e-6, abs=1e-6)


def test_the_interval_of_a_mix_that_changed_covers_the_truth():
    """The share of a slow kind goes from 1 % to 4 %; the true change of the p99 is read off the distributions."""
    shares = {"a": [0.99, 0.01], "b": [0.96, 0.04]}

    def window(seed, weights, n=8000):
        draw = np.random.default_rng(seed)
        kind = draw.choice(2, n, p=weights)
        return side(np.where(kind == 0, 200.0, 3000.0) * draw.lognormal(0, 0.4, n), kind)

    large = [np.quantile(window(9 + i, shares[name], 1_000_000).values, 0.99) for i, name in enumerate("ab")]
    truth = large[1] - large[0]
    covered = 0
    for seed in range(20):
        split = split_quantile(
            window(seed, shares["a"]), window(100 + seed, shares["b"]), 2, 0.99, rng(), resamples=100
        )
        covered += split.mix.low <= truth <= split.mix.high
    assert covered >= 17


def test_equal_windows_are_called_different_no_more_often_than_the_level_says():
    hits = tests = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        a, b = (side(draw.lognormal(5, 0.6, 400), np.repeat(np.arange(4), 100)) for _ in range(2))
        found = bucket_changes(a, b, dict.fromkeys(range(4), (0.5, 0.9)), rng(), resamples=200)
        tests += len(found)
        hits += sum(one.p_value < 0.05 for one in found)
    assert tests == 480
    assert hits / tests < 0.09


def test_a_slower_bucket_is_found_with_its_size():
    draw = np.random.default_rng(1)
    bucket = np.repeat(np.arange(3), 2000)
    a = side(draw.lognormal(5, 0.5, 6000), bucket)
    b = side(draw.lognormal(5, 0.5, 6000) * np.where(bucket == 1, 1.6, 1.0), bucket)
    found = {(one.bucket, one.p): one for one in bucket_changes(a, b, dict.fromkeys(range(3), (0.5, 0.99)), rng())}
    assert found[1, 0.5].change.low < 0.6 < found[1, 0.5].change.high
    assert found[1, 0.5].p_value < 1e-6
    assert min(found[k, 0.5].p_value for k in (0, 2)) > 0.01


def test_dependent_values_have_wider_intervals_than_independent_ones():
    at = np.arange(6000) / 10.0
    draw = np.random.default_rng(3)
    waves = 1.0 + 3.0 * (np.sin(at / 12.0) > 0.6)  # a queue that comes and goes, half a minute at a time
    values = draw.lognormal(5, 0.3, 6000) * waves
    bursts = blocks_of(values, at)
    alone = blocks_of(values, np.zeros(6000))
    assert bursts.length_s > 10.0
    spread = []
    for blocks in (bursts, alone):
        sums = np.bincount(blocks.of, weights=values, minlength=blocks.pieces)
        n = np.bincount(blocks.of, minlength=blocks.pieces)
        weights = drawn(blocks, rng(), 400)
        draws = (weights @ sums) / (weights @ n)
        low, high = interval(float(values.mean()), draws, blocks.widen)
        spread.append(high - low)
    assert spread[0] > 2.0 * spread[1]


def test_empty_resamples_say_nothing():
    assert interval(5.0, np.full(10, np.nan), 1.0) == (-np.inf, np.inf)
    assert p_value(1.0, np.full(10, np.nan), inflate=1.0, blocks=10) == 1.0
    assert p_value(0.0, np.zeros(10), inflate=1.0, blocks=10) == 1.0
    assert p_value(1.0, np.ones(10), inflate=1.0, blocks=10) == 0.0
    assert Part(3.0, 1.0, 5.0).certain
    assert not Part(3.0, -1.0, 5.0).certain
