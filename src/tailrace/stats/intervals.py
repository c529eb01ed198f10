"""Lengths of intervals that may overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["union_length"]


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (begin, end), in their unit; an interval that ends before it begins has none."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
