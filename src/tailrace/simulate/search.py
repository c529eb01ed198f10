"""Searches over simulated runs: the highest load that holds, and the best of many settings.

Both take a function that runs one simulation. Where it uses the same seeds for every try (common random numbers), tries
differ by what was changed and not by luck, and few of them suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

Point = tuple[int, ...]
"""One value on each axis of a search."""


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found."""

    point: Point
    value: float
    tried: dict[Point, float]
    """Every point that was run, with its value."""


def highest(holds: Callable[[float], bool], low: float, high: float, *, tolerance: float = 0.02) -> float:
    """The highest rate that holds, found by bisection to within `tolerance` (a share of it).

    `holds(rate)` is taken to be true below some rate and false above it. `low` must hold; a `high` that holds is
    doubled until it does not.

    Raises:
        ValueError: `low` is not below `high`, or does not hold.
    """
    if not 0 < low < high:
        raise ValueError(f"rates from {low:g} to {high:g} are no range")
    if not holds(low):
        raise ValueError(f"not even {low:g} holds: begin lower")
    while holds(high):
        low, high = high, high * 2
    while high - low > tolerance * low:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def best_of_grid(
    evaluate: Callable[[Point], float], axes: Sequence[Sequence[int]], *, starts: Sequence[Point] = (), rounds: int = 4
) -> Best:
    """The best point of a grid by coordinate search: every value of one axis, then of the next, until none is better.

    It begins at each of `starts` (default: the middle of every axis) and keeps the best end; no point runs twice. Of
    equals the first found stays.

    Raises:
        ValueError: an axis without values, or a start off the grid.
    """
    if not axes or not all(axes):
        raise ValueError("every axis needs a value")
    tried: dict[Point, float] = {}

    def value(point: Point) -> float:
        if point not in tried:
            tried[point] = evaluate(point)
        return tried[point]

    best: Point | None = None
    for start in starts or (tuple(axis[len(axis) // 2] for axis in axes),):
        if len(start) != len(axes) or any(at not in axis for at, axis in zip(start, axes, strict=True)):
            raise ValueError(f"{start} is not on the grid")
        end = _ascend(value, axes, start, rounds)
        if best is None or value(end) > value(best):
            best = end
    assert best is not None, "there is a start"
    return Best(point=best, value=tried[best], tried=tried)


def _ascend(value: Callable[[Point], float], axes: Sequence[Sequence[int]], start: Point, rounds: int) -> Point:
    at = start
    for _ in range(rounds):
        before = at
        for i, axis in enumerate(axes):
            for here in axis:
                other = (*at[:i], here, *at[i + 1 :])
                if value(other) > value(at):
                    at = other
        if at == before:
            break
    return at
