"""Medians and quantiles of groups that stand together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stats.runs import medians_of_runs, quantiles_of_runs


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), max_size=20))
def test_each_group_has_the_median_of_its_own_values(groups):
    values = np.array([value for group in groups for value in group], dtype=np.float64)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64)
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    assert np.allclose(medians_of_runs(values, owner, begins), [np.median(group) for group in groups])


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.99, 1.0]),
)
def test_each_group_has_the_quantile_of_its_own_values_to_the_last_bit(groups, p):
    values = np.array([value for group in groups for value in group], dtype=np.float64)
    ends = np.cumsum([len(group) for group in groups])
    begins = ends - [len(group) for group in groups]
    found = quantiles_of_runs(values, begins, ends, p)
    assert found.tolist() == [float(np.quantile(group, p)) for group in groups]


def test_only_the_groups_that_are_asked_for_are_put_in_order():
    values = np.array([3.0, 1.0, 2.0, 9.0, 7.0, 8.0])
    assert quantiles_of_runs(values, np.array([3]), np.array([6]), 0.5).tolist() == [8.0]
    assert values[:3].tolist() == [3.0, 1.0, 2.0]
