"""Tests that may be looked at after every request: a boundary that holds for all looks together.

The boundary is the normal mixture of Robbins ("Statistical methods related to the law of the iterated logarithm",
Ann. Math. Statist. 41, 1970), in the one-sided form of Howard, Ramdas, McAuliffe and Sekhon ("Time-uniform,
nonparametric, nonasymptotic confidence sequences", Ann. Statist. 49, 2021). For a sum S with variance V the mixture
over half-normal drifts is, with prior variance 1/rho,

    M = 2 * sqrt(rho / (V + rho)) * exp(S^2 / (2 (V + rho))) * Phi(S / sqrt(V + rho)),

a martingale with mean 1 where nothing has changed: the chance that it *ever* reaches 1/alpha is at most alpha, however
often somebody looks. With z = S / sqrt(V) and n = V / rho this is the bound on z below (Phi is 1 within 1e-4 there).
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["binomial_z", "boundary", "epoch_alpha", "evidence", "student_t", "student_z"]

PRIOR: Final = 15.0
"""Effective requests at which the boundary leaves its steep beginning: the factor on z^2 is (1 + PRIOR / n). It is
nearly flat from 60 requests to 60,000."""
_CERTAIN: Final = 37.0
"""A z whose tail probability is below the smallest double."""


def boundary(n: float, alpha: float) -> float:
    """The z that n effective observations must exceed, so that over all looks together at most `alpha` ever do.

    Infinite for n <= 0. `alpha` below 0.2: the approximation Phi = 1 needs a z of at least 2.
    """
    if n <= 0.0:
        return math.inf
    ratio = n / PRIOR
    return math.sqrt((1.0 + 1.0 / ratio) * (2.0 * math.log(1.0 / (2.0 * alpha)) + math.log1p(ratio)))


def evidence(z: float, n: float) -> float:
    """The odds against "nothing has changed" (an e-value) that a z of n effective observations carries; >= 0.

    Reaching 1/alpha is the same as exceeding `boundary(n, alpha)`.
    """
    if n <= 0.0 or z <= 0.0:
        return 0.0
    ratio = n / PRIOR
    exponent = z * z / 2.0 * ratio / (1.0 + ratio)
    return 2.0 * math.exp(min(exponent, 700.0)) / math.sqrt(1.0 + ratio)


def epoch_alpha(alpha: float, epoch: int) -> float:
    """What the `epoch`-th collection of evidence (from 1) may spend: alpha * 6 / (pi * epoch)^2, all together alpha.

    The first gets 61 %: a bad canary is to be seen at its smallest share; later ones have more requests.
    """
    return alpha * 6.0 / (math.pi * epoch) ** 2


def student_z(t: float, freedom: float) -> float:
    """The normal deviate with the same upper tail probability as Student's t: what few batches really say."""
    from scipy.special import ndtri, stdtr  # noqa: PLC0415  (scipy is loaded only where it is used)

    if freedom <= 0.0 or not math.isfinite(t):
        return 0.0
    upper = float(stdtr(freedom, -abs(t)))
    z = _CERTAIN if upper <= 0.0 else min(_CERTAIN, -float(ndtri(upper)))
    return math.copysign(z, t)


def student_t(z: float, freedom: float) -> float:
    """The t that `student_z` makes this z: what an error known from few batches is to be multiplied by."""
    from scipy.special import ndtr, stdtrit  # noqa: PLC0415

    if freedom <= 0.0:
        return math.inf
    return -float(stdtrit(freedom, ndtr(-z)))


def binomial_z(events: float, total: float, share: float) -> float:
    """The normal deviate of "`events` of `total` fell on this arm, which was due `share` of them", exact tail.

    Given their total, the events of two arms with one rate are binomial. Both counts may be fractions (counts
    divided by a design effect): the tail is the regularised incomplete beta function I_share(events, total - events
    + 1). 0 where the arm has no more than its due.
    """
    from scipy.special import betainc, ndtri  # noqa: PLC0415

    if total <= 0.0 or events <= total * share:
        return 0.0
    upper = float(betainc(events, total - events + 1.0, share))
    if upper >= 0.5:
        return 0.0
    return _CERTAIN if upper <= 0.0 else min(_CERTAIN, -float(ndtri(upper)))
