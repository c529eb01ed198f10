"""Closed forms that stand in for scipy's, beside scipy's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtrc, pdtrc, stdtr, stdtrit

from tailrace.stats.student import t_cdf, t_quantile
from tailrace.stats.tests import binomial_tail, poisson_tail


@settings(deadline=None)
@given(st.floats(-50, 50), st.integers(1, 100_000))
def test_the_distribution_is_scipys(t, df):
    assert t_cdf(t, df) == pytest.approx(float(stdtr(df, t)), rel=1e-7, abs=1e-12)


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.integers(1, 100_000))
def test_the_quantile_is_scipys(p, df):
    assert t_quantile(p, df) == pytest.approx(float(stdtrit(df, p)), rel=1e-7, abs=1e-8)


@settings(deadline=None)
@given(st.integers(1, 2_000_000), st.floats(0.0001, 0.5), st.floats(1.0, 3.0))
def test_the_binomial_tail_is_scipys_above_the_mean(n, share, times):
    count = min(n, int(n * share * times) + 1)
    assert binomial_tail(count, n, share) == pytest.approx(float(bdtrc(count - 1, n, share)), rel=1e-6, abs=1e-12)


@settings(deadline=None)
@given(st.floats(0.01, 100_000), st.floats(1.0, 3.0))
def test_the_poisson_tail_is_scipys_above_the_mean(mean, times):
    count = int(mean * times) + 1
    assert poisson_tail(count, mean) == pytest.approx(float(pdtrc(count - 1, mean)), rel=1e-6, abs=1e-12)
