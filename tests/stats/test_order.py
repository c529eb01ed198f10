"""The stable order is numpy's own, whatever stands in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.stats import order
from tailrace.stats.order import largest, stable_order

VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.5, float("nan"), float("inf"), float("-inf")]) | st.floats()


@pytest.fixture(autouse=True)
def no_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few values take the way of many."""
    monkeypatch.setattr(order, "_FEW", 1)


@given(st.lists(VALUES, max_size=60))
@settings(max_examples=300)
def test_the_order_is_that_of_the_stable_sort(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    for ties in (0.0, 0.2, 2.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(order, "_TIES", ties)
            patch.setattr(order, "_ALREADY", 0.0)
            assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@given(st.lists(st.integers(-5, 5), max_size=60))
def test_integers_are_ordered_as_well(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("kind", ["drawn", "few values", "sorted", "one tie", "absent"])
def test_many_values_of_each_kind(kind: str) -> None:
    draw = np.random.default_rng(3)
    values = draw.random(30_000)
    if kind == "few values":
        values = np.floor(values * 1000)
    elif kind == "sorted":
        values.sort()
    elif kind == "one tie":
        values[[7, 29_000]] = values[100]
    elif kind == "absent":
        values[draw.random(values.size) < 0.05] = np.nan
    assert np.array_equal(stable_order(values), np.argsort(values, kind="stable"))


@given(st.lists(VALUES, max_size=40), st.integers(0, 45))
def test_the_largest_are_the_end_of_the_stable_order(values: list[float], size: int) -> None:
    array = np.array(values, dtype=np.float64)
    size = min(size, array.size)
    assert largest(array, size).tolist() == np.argsort(array, kind="stable")[array.size - size :].tolist()
