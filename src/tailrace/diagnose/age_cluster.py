"""Whether ends come at one age: a timer ends requests at its own number, whatever each of them was doing."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["WIDTH", "WIDTH_MS", "AgeCluster", "age_cluster", "densest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
WIDTH: Final = 0.02
"""A cluster is no wider than this share of its age ..."""
WIDTH_MS: Final = 60.0
"""... or than this: a timer's own tick, and the way back."""
SHARE: Final = 0.5
LEAST: Final = 5


class AgeCluster(NamedTuple):
    """The densest place among the ages."""

    age_ms: float
    """Median of those inside."""
    low_ms: float
    high_ms: float
    hits: int
    n: int

    @property
    def share(self) -> float:
        """Of all ages, those inside."""
        return self.hits / max(self.n, 1)

    def holds(self, ages: Floats) -> NDArray[np.bool_]:
        """Which ages lie inside."""
        mask: NDArray[np.bool_] = (ages >= self.low_ms) & (ages <= self.high_ms)
        return mask


def densest(values: Floats, *, apart: float, share: float = 0.0) -> Ints:
    """Places of the largest group of values (in any unit, no NaN) that lie no further apart than `apart`, or than
    `share` of the lowest of them, where that is more; ascending. Of equally large groups the lowest.
    """
    order = np.argsort(values, kind="stable")
    if not order.size:
        return order
    ordered = values[order]
    ends = np.searchsorted(ordered, ordered + np.maximum(apart, share * ordered), side="right")
    begin = int(np.argmax(ends - np.arange(ordered.size)))
    return order[begin : int(ends[begin])]


def age_cluster(ages: Floats, *, least: int = LEAST, share: float = SHARE) -> AgeCluster | None:
    """The densest cluster, if it holds at least `least` ages and `share` of them; ages in ms, NaN left out.

    Ages that spread (a crash ends whatever runs) have none.
    """
    known = ages[~np.isnan(ages)]
    inside = known[densest(known, apart=WIDTH_MS, share=WIDTH)]
    if inside.size < max(least, share * known.size):
        return None
    return AgeCluster(float(np.median(inside)), float(inside[0]), float(inside[-1]), int(inside.size), int(known.size))
