"""The sorted line against a plain sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern import work_line
from tailrace.govern.work_line import WorkLine


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=300), st.integers(2, 6))
def test_it_is_a_sorted_list_that_knows_what_is_ahead(steps, full):
    line = WorkLine(full=full)
    model: dict[tuple[float, int, str, float], float] = {}
    for number, (adds, size) in enumerate(steps):
        if adds or not model:
            key = (float(size), number, str(number), float(size + 1))
            model[key] = key[3]
            line.add(key)
        else:
            key = sorted(model)[size % len(model)]
            del model[key]
            line.remove(key)
        assert line.head() == min(model, default=None)
        probe = (float(size), number, "", 0.0)
        count, work = line.ahead(probe)
        before = [key for key in model if key < probe]
        assert count == len(before)
        # Within one bucket work is counted by the bucket's mean.
        largest = max(model.values(), default=0.0)
        assert abs(work - sum(model[key] for key in before)) <= full * largest + 1e-6


def test_what_is_ahead_is_close_where_sizes_are_alike():
    line = WorkLine()
    for number in range(10_000):
        line.add((float(number % 500), number, str(number), float(number % 500)))
    count, work = line.ahead((250.0, -1, "", 0.0))
    assert count == 5_000
    exact = 20 * sum(range(250))
    assert abs(work - exact) / exact < 0.02


def test_what_is_not_there_cannot_be_removed():
    line = WorkLine()
    line.add((1.0, 1, "a", 1.0))
    with pytest.raises(KeyError):
        line.remove((2.0, 1, "b", 1.0))
    with pytest.raises(KeyError):
        line.remove((0.5, 1, "b", 1.0))
    assert line.ahead((9.0, 9, "", 0.0)) == (1, 1.0)
    assert work_line.FULL > 1
