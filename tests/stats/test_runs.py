"""Medians of groups that stand together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stats.runs import medians_of_runs


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), max_size=20))
def test_each_group_has_the_median_of_its_own_values(groups):
    values = np.array([value for group in groups for value in group], dtype=np.float64)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64)
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    assert np.allclose(medians_of_runs(values, owner, begins), [np.median(group) for group in groups])
