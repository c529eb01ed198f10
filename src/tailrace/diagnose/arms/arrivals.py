"""How unevenly requests come, by the numbers that people state of it."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["VARIATION", "cv_stated"]

VARIATION: Final = r"\bcv\b|coefficient of variation|burstiness|dispersion"
"""Words over a number that tells it."""


def cv_stated(words: str, value: float) -> float | None:
    """The coefficient of variation of the times between arrivals (1 is Poisson) that a number under `words` states;
    `None` where it cannot be one.

    `burstiness`, as load generators have it (vLLM's, ours), is the shape of a gamma distribution: CV = 1/sqrt(shape),
    so the larger it is, the more even. An index of dispersion is the variance of counts over their mean, which is CV²
    for a renewal process over long windows (Cox and Lewis, The statistical analysis of series of events, 1966).
    """
    if value < 0:
        return None
    low = words.lower()
    if "burstiness" in low:
        return 1.0 / math.sqrt(value) if value > 0 else None
    return math.sqrt(value) if "dispersion" in low else value
