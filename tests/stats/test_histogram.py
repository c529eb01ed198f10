import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stats.histogram import ExponentialHistogram

positive = st.floats(min_value=1e-6, max_value=1e6)


@pytest.mark.parametrize(
    ("value", "index", "low", "high"),
    [
        (0.5, -16, 0.4788, 0.5),
        (0.08, -58, 0.07762, 0.08105),
        (0.15, -43, 0.14865, 0.15523),
        (2.0, 16, 1.9152, 2.0),
        (0.0123, -101, 0.012049, 0.012582),
    ],
)
def test_worked_values_of_schema_4(value, index, low, high):
    histogram = ExponentialHistogram(schema=4)
    assert histogram.index(value) == index
    assert histogram.bounds(index) == pytest.approx((low, high), rel=1e-4)


def test_gives_back_the_documented_value():
    histogram = ExponentialHistogram()
    assert histogram.representative(-101) == pytest.approx(0.012309, rel=1e-4)
    assert histogram.gamma == pytest.approx(1.0443, rel=1e-4)


@pytest.mark.parametrize("exponent", range(-20, 21))
def test_powers_of_two_are_upper_bounds(exponent):
    # log2 may round an exact bound one ulp up; it must not move to the next bin.
    histogram = ExponentialHistogram()
    assert histogram.index(2.0**exponent) == exponent * 16


@given(st.lists(positive, min_size=1, max_size=200), st.floats(min_value=0, max_value=1))
def test_quantile_is_within_the_relative_error(values, p):
    histogram = ExponentialHistogram()
    histogram.extend(values)
    exact = sorted(values)[max(1, math.ceil(p * len(values) - 1e-9)) - 1]
    answer = histogram.quantile(p)
    assert answer is not None
    error = (histogram.gamma - 1) / (histogram.gamma + 1)
    assert abs(answer - exact) <= exact * (error + 1e-6)


@given(st.lists(st.floats(min_value=0, max_value=1e6), max_size=60), st.integers(min_value=0, max_value=60))
def test_merging_is_adding_everything_to_one(values, cut):
    whole, left, right = ExponentialHistogram(), ExponentialHistogram(), ExponentialHistogram()
    whole.extend(values)
    left.extend(values[:cut])
    right.extend(values[cut:])
    left.merge(right)
    assert left.counts == whole.counts
    assert (left.zero, left.count, left.maximum, left.minimum) == (
        whole.zero,
        whole.count,
        whole.maximum,
        whole.minimum,
    )
    assert left.total == pytest.approx(whole.total)


def test_zero_and_negative_have_their_own_counter():
    histogram = ExponentialHistogram()
    histogram.extend([0.0, 0.0, -1.0, 4.0])
    assert histogram.zero == 3
    assert histogram.quantile(0.5) == 0.0
    assert histogram.quantile(0.0) == -1.0
    assert histogram.quantile(1.0) == pytest.approx(4.0, rel=0.022)


def test_refuses_what_is_no_measurement():
    histogram = ExponentialHistogram()
    with pytest.raises(ValueError, match="finite"):
        histogram.add(math.nan)
    with pytest.raises(ValueError, match="schema"):
        histogram.merge(ExponentialHistogram(schema=3))
    assert histogram.quantile(0.5) is None
    assert histogram.mean is None
