"""Tests of significance: two proportions, permutation of blocks, Benjamini-Hochberg, Holm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tailrace.stats.quantiles import Floats

__all__ = [
    "benjamini_hochberg",
    "binomial_tail",
    "fisher_p_value",
    "holm",
    "permutation_p_value",
    "two_proportion_p_value",
]


def two_proportion_p_value(failures_a: int, n_a: int, failures_b: int, n_b: int) -> float:
    """One-sided p-value of "B fails more often than A" (pooled z test; exact hypergeometric tail for small counts).

    The z approximation needs about five failures in the pool; below that Fisher's exact tail is used, so 3 failures
    of 500 against 0 is not called significant for want of a normal distribution.
    """
    if not n_a or not n_b:
        return 1.0
    pooled = (failures_a + failures_b) / (n_a + n_b)
    if pooled in (0.0, 1.0):
        return 1.0
    if failures_a + failures_b < 30:
        return _fisher_upper(failures_a, n_a, failures_b, n_b)
    z = (failures_b / n_b - failures_a / n_a) / math.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def binomial_tail(count: int, n: int, share: float) -> float:
    """P(X >= count) for X ~ binomial(n, share), exact, without scipy: an event loop may ask for it.

    The terms are summed from `count` upwards until they do not matter any more; above the mean that is a few dozen.
    Below the mean nobody asks: 1 there.
    """
    if count <= n * share:
        return 1.0
    if count > n:
        return 0.0
    log = math.log
    term = math.exp(
        math.lgamma(n + 1)
        - math.lgamma(count + 1)
        - math.lgamma(n - count + 1)
        + count * log(share)
        + (n - count) * math.log1p(-share)
    )
    total, k, odds = 0.0, count, share / (1.0 - share)
    while k <= n and term > 1e-18 * total:
        total += term
        term *= (n - k) / (k + 1) * odds
        k += 1
    return min(1.0, total)


def poisson_tail(count: int, mean: float) -> float:
    """P(X >= count) for X ~ Poisson(mean), exact, without scipy. As `binomial_tail`: 1 at and below the mean."""
    if count <= mean:
        return 1.0
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean > 0.0 else 0.0
    total, k = 0.0, count
    while term > 1e-18 * total:
        total += term
        k += 1
        term *= mean / k
    return min(1.0, total)


def fisher_p_value(hits_a: int, n_a: int, hits_b: int, n_b: int) -> float:
    """Two-sided p-value of equal proportions: twice the smaller tail of Fisher's exact test."""
    if not n_a or not n_b:
        return 1.0
    return min(1.0, 2.0 * min(_fisher_upper(hits_a, n_a, hits_b, n_b), _fisher_upper(hits_b, n_b, hits_a, n_a)))


def _fisher_upper(failures_a: int, n_a: int, failures_b: int, n_b: int) -> float:
    """P(X >= failures_b) for X hypergeometric: the failures of B when labels are arbitrary."""
    failures, total = failures_a + failures_b, n_a + n_b

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    base = log_choose(total, failures)
    return min(
        1.0,
        sum(
            math.exp(log_choose(n_b, k) + log_choose(n_a, failures - k) - base)
            for k in range(failures_b, min(failures, n_b) + 1)
            if failures - k <= n_a
        ),
    )


def permutation_p_value(
    blocks_a: Sequence[Floats], blocks_b: Sequence[Floats], p: float, rng: np.random.Generator, *, resamples: int = 2000
) -> float:
    """Two-sided p-value of q_p(B) - q_p(A) under shuffled arm labels of whole time blocks.

    (1 + #{|stat*| >= |stat|}) / (resamples + 1). Blocks, not requests, are shuffled because requests of one burst
    share a queue.
    """
    blocks = [np.asarray(block, dtype=np.float64) for block in (*blocks_a, *blocks_b)]
    if not blocks_a or not blocks_b or not any(block.size for block in blocks):
        return 1.0
    values = np.concatenate(blocks)
    owner = np.repeat(np.arange(len(blocks)), [block.size for block in blocks])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]

    def difference(in_b: np.ndarray) -> float:
        mask = in_b[owner]
        b, a = values[mask], values[~mask]
        if not a.size or not b.size:
            return 0.0
        return float(b[min(b.size - 1, int(p * b.size))] - a[min(a.size - 1, int(p * a.size))])

    label = np.zeros(len(blocks), dtype=bool)
    label[len(blocks_a) :] = True
    observed = abs(difference(label))
    hits = sum(abs(difference(rng.permutation(label))) >= observed - 1e-12 for _ in range(resamples))
    return (1 + hits) / (resamples + 1)


def benjamini_hochberg(p_values: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Which hypotheses are rejected at false discovery rate `rate`: all up to the largest i with p_(i) <= rate*i/m."""
    m = len(p_values)
    order = sorted(range(m), key=lambda i: p_values[i])
    last = -1
    for rank, i in enumerate(order, start=1):
        if p_values[i] <= rate * rank / m:
            last = rank
    rejected = [False] * m
    for rank, i in enumerate(order, start=1):
        rejected[i] = rank <= last
    return rejected


def holm(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which hypotheses are rejected so that the chance of any false one is at most `level`.

    In the order of the p-values, each while p_(i) <= level / (m - i + 1); the first that fails ends it (Holm,
    "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 6, 1979).
    """
    m = len(p_values)
    rejected = [False] * m
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        if p_values[i] > level / (m - rank):
            break
        rejected[i] = True
    return rejected
