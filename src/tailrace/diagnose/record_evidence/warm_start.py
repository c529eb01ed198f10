"""How slow the beginning of a window is against the rest of it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.quantiles import median, quantile, supported

__all__ = ["WarmStart", "warm_start"]

Floats = NDArray[np.float64]

BEGIN_S: Final = 60.0
BEGIN_SHARE: Final = 0.25
"""The beginning is at most a minute, and at most a quarter of the window."""
SLOWER: Final = 2.0
FEW: Final = 5
ENOUGH: Final = 40


class WarmStart(NamedTuple):
    """Medians in ms; the tail with the beginning in it, and without."""

    until_s: float
    n_first: int
    n_rest: int
    first_ms: float
    rest_ms: float
    p: float
    tail_ms: float
    steady_ms: float


def warm_start(start_s: Floats, ms: Floats) -> WarmStart | None:
    """The first requests twice as slow as the others at the median, the slowest of all among them, and calm after: the
    second half of the rest is no faster than the first half. `None` where that is not so.
    """
    known = np.isfinite(start_s) & np.isfinite(ms)
    start_s, ms = start_s[known], ms[known]
    if ms.size < ENOUGH:
        return None
    at = start_s - float(start_s.min())
    until = min(BEGIN_S, BEGIN_SHARE * float(at.max()))
    first, rest = ms[at <= until], ms[at > until]
    if first.size < FEW or rest.size < ENOUGH - FEW or until <= 0:
        return None
    middle = (median(first), median(rest))
    later = ms[at > until + 0.5 * (float(at.max()) - until)]
    if middle[0] < SLOWER * middle[1] or not later.size or median(later) < 0.8 * middle[1]:
        return None
    p = next((one for one in (0.99, 0.95, 0.9) if supported(one, int(rest.size))), 0.5)
    tail, steady = quantile(ms, p), quantile(rest, p)
    if tail < 1.2 * steady:
        return None
    return WarmStart(until, int(first.size), int(rest.size), *middle, p, tail, steady)
