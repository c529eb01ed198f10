"""Whether ends come at one age: a timer ends requests at its own number, whatever each of them was doing."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["AgeCluster", "age_cluster"]

Floats = NDArray[np.float64]
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


def age_cluster(ages: Floats, *, least: int = LEAST, share: float = SHARE) -> AgeCluster | None:
    """The densest cluster, if it holds at least `least` ages and `share` of them; ages in ms, NaN left out.

    Ages that spread (a crash ends whatever runs) have none.
    """
    known = np.sort(ages[~np.isnan(ages)])
    if known.size < least:
        return None
    last = np.searchsorted(known, known + np.maximum(WIDTH_MS, WIDTH * known), side="right")
    count = last - np.arange(known.size)
    at = int(np.argmax(count))
    if count[at] < max(least, share * known.size):
        return None
    inside = known[at : last[at]]
    return AgeCluster(float(np.median(inside)), float(inside[0]), float(inside[-1]), int(count[at]), int(known.size))
