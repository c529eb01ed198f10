"""Searches: they find what is there, run no point twice, and refuse a range that is none."""

from __future__ import annotations

import pytest

from tailrace.simulate.search import best_of_grid, highest


@pytest.mark.parametrize("edge", [8.03, 10.0, 15.9, 39.0, 400.0])
def test_the_highest_rate_is_found_within_its_tolerance(edge):
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= edge

    found = highest(holds, 8, 20, tolerance=0.01)
    assert found <= edge <= found * 1.0101
    assert len(asked) == len(set(asked)) <= 16


@pytest.mark.parametrize(("low", "high"), [(0, 5), (5, 5), (6, 5)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(ValueError, match="no range"):
        highest(lambda _: True, low, high)


def test_a_low_end_that_does_not_hold_is_refused():
    with pytest.raises(ValueError, match="begin lower"):
        highest(lambda _: False, 1, 2)


def test_the_best_point_of_a_grid_is_climbed_to_without_trying_all_of_it():
    axes = (tuple(range(20)), tuple(range(20)), tuple(range(20)))
    runs: list[tuple[int, ...]] = []

    def hill(point: tuple[int, ...]) -> float:
        runs.append(point)
        return -((point[0] - 3) ** 2) - (point[1] - 17) ** 2 - (point[2] - point[0]) ** 2

    best = best_of_grid(hill, axes, rounds=20)
    assert best.value == max(best.tried.values()) >= -1.0
    assert len(runs) == len(set(runs)) == len(best.tried) < 8000 / 10


def test_of_several_starts_the_best_end_counts():
    """One hill hides the other from coordinate search."""
    hills = {(0, 0): 5.0, (9, 9): 7.0}
    axes = (tuple(range(10)), tuple(range(10)))

    def value(point: tuple[int, ...]) -> float:
        return hills.get(point, 0.0)

    assert best_of_grid(value, axes, starts=((0, 0),)).value == 5.0
    assert best_of_grid(value, axes, starts=((0, 0), (9, 9))).point == (9, 9)


@pytest.mark.parametrize(
    ("axes", "starts", "says"),
    [((), (), "needs a value"), (((1,), ()), (), "needs a value"), (((1,),), ((2,),), "grid")],
)
def test_a_grid_that_is_none_is_refused(axes, starts, says):
    with pytest.raises(ValueError, match=says):
        best_of_grid(lambda _: 0.0, axes, starts=starts)
