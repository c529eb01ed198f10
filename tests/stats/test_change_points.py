import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stats.change_points import MIN_SEGMENT, MIN_VALUES, PENALTY_FACTOR, change_points, drawn_in, noise


def series(rng, n, *, sd=0.12, shift=0.0, at=None):
    values = rng.normal(0.0, sd, n)
    values[(n // 2 if at is None else at) :] += math.log1p(shift)
    return values


def test_no_false_alarm_in_a_hundred_series_without_a_change():
    rng = np.random.default_rng(8)
    assert [change_points(series(rng, 288)) for _ in range(100)] == [[]] * 100


def test_fifteen_percent_are_found_near_where_they_are():
    rng = np.random.default_rng(9)
    found = [change_points(series(rng, 288, shift=0.15)) for _ in range(50)]
    near = [one for one in found if len(one) == 1 and abs(one[0] - 144) <= 15]
    assert len(near) >= 45


def test_twenty_runs_show_a_doubling_at_its_place():
    rng = np.random.default_rng(10)
    assert change_points(series(rng, MIN_VALUES, sd=0.05, shift=1.0, at=12)) == [12]


def test_an_outlier_is_no_level():
    values = series(np.random.default_rng(11), 60, sd=0.05)
    values[30] += 1.0
    assert change_points(values) == []


def test_equal_values_have_no_change_and_a_step_among_them_has_one():
    assert change_points([1.0] * 40) == []
    assert change_points([1.0] * 25 + [1.1] * 15) == [25]


def test_a_short_series_and_one_with_gaps():
    assert change_points([1.0] * 9 + [9.0] * 10) == []
    with pytest.raises(ValueError, match="missing"):
        change_points([1.0] * 30 + [math.nan])
    assert noise([3.0]) == 0.0


def test_noise_is_that_of_the_level_not_of_its_jumps():
    rng = np.random.default_rng(12)
    assert noise(series(rng, 4000, sd=0.2, shift=5.0)) == pytest.approx(0.2, rel=0.1)


@given(st.lists(st.floats(-3, 3, width=16), min_size=20, max_size=24))
def test_it_is_the_cheapest_partition_there_is(values):
    y = np.asarray(values)
    scale = noise(y)
    if scale <= 0:
        return
    y = drawn_in(y / scale)

    def price(cuts):
        edges = [0, *cuts, len(y)]
        return sum(((y[a:b] - y[a:b].mean()) ** 2).sum() for a, b in itertools.pairwise(edges)) + PENALTY_FACTOR * (
            math.log(len(y)) * len(cuts)
        )

    def fits(cuts):
        return all(b - a >= MIN_SEGMENT for a, b in itertools.pairwise([0, *cuts, len(y)]))

    every = [cuts for k in range(4) for cuts in itertools.combinations(range(1, len(y)), k) if fits(cuts)]
    found = change_points(values)
    assert fits(found)
    assert price(found) <= min(map(price, every)) + 1e-6
