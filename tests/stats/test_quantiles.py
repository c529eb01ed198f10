import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.stats.quantiles import (
    binomial_quantile,
    needed,
    order_statistic_ranks,
    quantile,
    quantile_interval,
    supported,
    weighted_quantile,
)

RANKS = {
    0.99: {
        500: (490, 500),
        1000: (983, 997),
        2000: (1971, 1989),
        5000: (4936, 4964),
        10000: (9880, 9920),
        20000: (19772, 19828),
    },
    0.95: {
        500: (465, 485),
        1000: (936, 964),
        2000: (1880, 1920),
        5000: (4719, 4781),
        10000: (9457, 9543),
        20000: (18939, 19061),
    },
    0.50: {
        500: (228, 273),
        1000: (469, 532),
        2000: (956, 1045),
        5000: (2431, 2570),
        10000: (4902, 5099),
        20000: (9861, 10140),
    },
}


@pytest.mark.parametrize(("p", "n", "ranks"), [(p, n, r) for p, row in RANKS.items() for n, r in row.items()])
def test_order_statistic_ranks(p, n, ranks):
    assert order_statistic_ranks(n, p) == ranks


@pytest.mark.parametrize(("p", "n"), [(0.95, 72), (0.99, 368), (0.999, 3688)])
def test_smallest_n_with_a_finite_interval(p, n):
    assert None not in order_statistic_ranks(n, p)
    assert order_statistic_ranks(n - 1, p)[1] is None


def test_unbounded_is_none_and_never_the_maximum():
    low, high = quantile_interval(np.arange(200.0), 0.99)
    assert low is not None
    assert high is None


@settings(deadline=None)  # the first call imports scipy
@given(st.floats(min_value=0.01, max_value=0.99), st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_binomial_quantile_is_scipys(q, n, p):
    from scipy.stats import binom

    ours, theirs = binomial_quantile(q, n, p), int(binom.ppf(q, n, p))
    # At a tie (q is a value of the distribution function) the last digit decides, and the two round differently.
    tie = abs(binom.cdf(min(ours, theirs), n, p) - q) < 1e-11
    assert ours == theirs or (tie and abs(ours - theirs) == 1)


def test_a_tie_is_a_tie():
    assert binomial_quantile(0.5, 7, 0.5) == 3


@pytest.mark.parametrize(
    ("p", "n", "answer"),
    [(0.99, 500, True), (0.99, 499, False), (0.95, 100, True), (0.95, 99, False), (0.999, 5000, True), (0.5, 10, True)],
)
def test_support_rule(p, n, answer):
    assert supported(p, n) is answer
    assert (needed(p) <= n) is answer


def test_quantile_is_numpys_linear():
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert np.isnan(quantile([], 0.5))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.01, 1))
def test_equal_weights_give_the_lower_quantile(values, p):
    ordered = np.sort(values)
    weights = np.full(len(values), 1.0 / len(values))
    rank = max(1, int(np.ceil(p * len(values) - 1e-9)))
    assert weighted_quantile(np.array(values), weights, p) == ordered[rank - 1]


@pytest.mark.long("400 samples of 500")
def test_interval_covers_the_truth():
    # Known: .973 coverage at n = 500 (400 simulations, lognormal, sigma 1).
    rng = np.random.default_rng(5)
    truth = float(np.exp(2.3263479))
    hits = 0
    for _ in range(400):
        low, high = quantile_interval(rng.lognormal(0, 1, 500), 0.99)
        hits += low is not None and high is not None and low <= truth <= high
    assert 0.94 <= hits / 400 <= 1.0
