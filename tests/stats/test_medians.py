"""Medians and quantiles are numpy's to the bit, however many values are alike; what is absent is 0 where asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tailrace.stats.quantiles import median, or_zero, quantile

_SHARES = (0.0, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101, 4096])
def test_a_quantile_and_a_median_are_numpys_to_the_bit(size: int) -> None:
    draw = np.random.default_rng(size)
    for values in (draw.lognormal(0, 3, size), draw.integers(0, 5, size).astype(float), draw.normal(1e9, 1e-3, size)):
        assert [quantile(values, p) for p in _SHARES] == [float(np.quantile(values, p)) for p in _SHARES]
        assert median(values) == float(np.median(values))


def test_nothing_and_what_is_not_known_have_no_quantile() -> None:
    for values in (np.empty(0), np.array([1.0, math.nan, 3.0]), np.array([math.nan])):
        assert math.isnan(median(values))
        assert math.isnan(quantile(values, 0.5))
        assert math.isnan(quantile(values, 0.99))


def test_what_is_absent_is_zero_and_nothing_else_changes() -> None:
    values = np.array([1.5, math.nan, -2.0])
    assert or_zero(values).tolist() == [1.5, 0.0, -2.0]
    assert math.isnan(values[1])
