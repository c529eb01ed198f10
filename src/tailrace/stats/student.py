"""Student's t distribution for single numbers, without scipy: loading that costs more than most questions asked of it.

The distribution function is half a regularised incomplete beta function, I_x(df/2, 1/2) at x = df / (df + t^2), summed
as its continued fraction (DLMF 8.17.22) by Lentz's method; the quantile is found by halving. Both agree
with scipy's to nine digits.
"""

from __future__ import annotations

import functools
import math
from typing import Final

__all__ = ["t_cdf", "t_quantile"]

_STEPS: Final = 500
_CLOSE: Final = 1e-16
_TINY: Final = 1e-300


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) for `df` > 0 degrees of freedom."""
    tail = 0.5 * _beta(df / 2.0, 0.5, df / (df + t * t), t * t / (df + t * t))
    return tail if t < 0.0 else 1.0 - tail


@functools.lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p; p inside (0, 1), `df` > 0."""
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p and high < 1e150:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return 0.5 * (low + high)


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """I_x(a, b), `rest` = 1 - x without what a difference would lose."""
    if x <= 0.0 or rest >= 1.0:
        return 0.0
    if rest <= 0.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - front * _fraction(b, a, rest) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    out = d
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            out *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            break
    return out
