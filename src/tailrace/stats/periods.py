"""Is there a period in moments, and at what value do waits cluster: two signs of a timer."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from tailrace.stats.quantiles import Floats, wilson_interval
from tailrace.stats.tests import poisson_tail

__all__ = ["Period", "Spike", "period_of", "round_value", "spike_of"]

FEWEST: Final = 6
"""Moments, and waits times five, below which no period and no spike is looked for."""
_CYCLES: Final = 4
_STRENGTH: Final = 0.6
_LEVEL: Final = 0.02
_FASTEST: Final = 2.5
_LIMIT: Final = 4096
_OVERSAMPLED: Final = 4
_WIDTH: Final = 0.04
_LEAST_MS: Final = 0.5
_SHARE: Final = 0.10
_TIMES: Final = 3.0
_ROUND: Final = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 8.0, 10.0)
_NEAR: Final = 0.06


class Period(NamedTuple):
    """Moments that come in a period."""

    seconds: float
    strength: float
    """Length of the mean vector of the phases: 1 for a clock, near 0 for chance."""
    p_value: float
    """Rayleigh's, for the strongest of all frequencies that were looked at."""
    n: int


class Spike(NamedTuple):
    """A value at which waits cluster (ms)."""

    value: float
    share: float
    """Of all waits, those within 4 % above the cluster's lower edge."""
    low: float
    high: float
    """95 % interval (Wilson) of the share."""
    expected: float
    """The share that the neighbourhood of the value would give it."""
    p_value: float
    """Poisson, for the strongest of all values that were looked at."""
    nominal: float | None
    """The round number at or just below it, which is how people set timers; `None` where none is near."""
    n: int


def period_of(at_s: Floats) -> Period | None:
    """The period of moments (s, any order), or `None`.

    Rayleigh's test (Mardia and Jupp, "Directional Statistics", 2000) over all frequencies from 4 cycles in the span up
    to 2.5 periods a moment (some may be missing), by a Fourier transform of the binned moments. A regular series is as
    strong at every fraction of its period: the longest of the strong ones is the period.
    """
    at = np.sort(at_s)[:_LIMIT]
    n = int(at.size)
    span = float(at[-1] - at[0]) if n else 0.0
    if n < FEWEST or span <= 0.0:
        return None
    fastest = _FASTEST * n / span
    bin_s = 1.0 / (8.0 * fastest)
    size = 1 << math.ceil(math.log2(_OVERSAMPLED * span / bin_s + 1))
    series = np.bincount(((at - at[0]) / bin_s).astype(np.int64), minlength=size).astype(np.float64)[:size]
    power = np.abs(np.fft.rfft(series)) / n
    frequency = np.fft.rfftfreq(size, bin_s)
    looked = (frequency >= _CYCLES / span) & (frequency <= fastest)
    if not looked.any():
        return None
    strongest = float(power[looked].max())
    tried = max(1.0, (fastest - _CYCLES / span) * span)
    chance = -math.expm1(tried * math.log1p(-min(math.exp(-n * strongest**2), 1.0 - 1e-12)))
    if strongest < _STRENGTH or chance > _LEVEL:
        return None
    # Bins blur fast phases: a fraction of the period is a little weaker than the period itself.
    first = int(np.flatnonzero(looked & (power >= 0.85 * strongest))[0])
    peak = first
    while peak + 1 < power.size and looked[peak + 1] and power[peak + 1] > power[peak]:
        peak += 1
    return Period(1.0 / float(frequency[peak]), float(power[peak]), chance, n)


def round_value(ms: float) -> float | None:
    """The round number (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 8 times a power of ten, in ms) at or up to 6 % below `ms`."""
    if ms <= 0.0:
        return None
    scale = 10.0 ** math.floor(math.log10(ms))
    found = [nice * scale for nice in _ROUND if 0.995 * nice * scale <= ms <= (1.0 + _NEAR) * nice * scale]
    return max(found) if found else None


def spike_of(waits_ms: Floats) -> Spike | None:
    """The value at which waits cluster, or `None`: a narrow window that holds a tenth of the waits and three times what
    its neighbourhood would give it, beyond chance.
    """
    waits = np.sort(waits_ms[np.isfinite(waits_ms) & (waits_ms >= _LEAST_MS)])
    n = int(waits.size)
    if n < 5 * FEWEST:
        return None
    edges = waits[:: max(1, n // _LIMIT)]
    count = np.searchsorted(waits, edges * (1.0 + _WIDTH), side="right") - np.searchsorted(waits, edges, side="left")
    # As wide again on each side, a quarter away: what a smooth distribution would put into the window.
    below = np.searchsorted(waits, edges * 0.85, side="left") - np.searchsorted(waits, edges * 0.65, side="left")
    above = np.searchsorted(waits, edges * 1.40, side="right") - np.searchsorted(waits, edges * 1.20, side="right")
    expected = np.maximum(np.maximum(below, above) * (_WIDTH / 0.20), 0.5)
    excess = np.where((count >= _SHARE * n) & (count >= _TIMES * expected), count - expected, 0.0)
    place = int(np.argmax(excess))
    if excess[place] <= 0.0:
        return None
    hits, usual = int(count[place]), float(expected[place])
    chance = min(1.0, poisson_tail(hits, usual) * edges.size)
    if chance > _LEVEL:
        return None
    inside = waits[(waits >= edges[place]) & (waits <= edges[place] * (1.0 + _WIDTH))]
    value = float(np.median(inside))
    low, high = wilson_interval(hits, n) or (0.0, 1.0)
    return Spike(value, hits / n, low, high, usual / n, chance, round_value(value), n)
