import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.stats.quantiles import (
    binomial_quantile,
    effective_interval,
    needed,
    order_statistic_ranks,
    quantile,
    quantile_interval,
    supported,
    weighted_quantile,
    wilson_interval,
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


def test_wilsons_interval_by_hand():
    # 8 of 10 at z = 1.96: centre (0.8 + 0.19208) / 1.38416, half 1.96 / 1.38416 * sqrt(0.016 + 0.009604).
    assert wilson_interval(8, 10, z=1.96) == pytest.approx((0.49016, 0.94331), abs=2e-5)
    assert wilson_interval(0, 0) is None


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilsons_interval_contains_the_share_and_stays_a_share(hits, n):
    hits = min(hits, n)
    low, high = wilson_interval(hits, n)
    assert 0.0 <= low <= hits / n + 1e-12
    assert hits / n - 1e-12 <= high <= 1.0
    assert low < high


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=800), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=80)
def test_at_its_full_size_a_sample_has_the_interval_of_independent_values(values, p):
    ordered = np.sort(np.array(values))
    assert effective_interval(ordered, p, len(values)) == quantile_interval(ordered, p)
    narrow = effective_interval(ordered, p, len(values))
    wide = effective_interval(ordered, p, max(2.0, len(values) / 4))
    # Fewer independent values never know more.
    for near, far, sign in ((narrow[0], wide[0], 1), (narrow[1], wide[1], -1)):
        assert far is None or near is None or sign * (near - far) >= 0 or len(values) < 60


def test_one_value_has_no_interval():
    assert effective_interval(np.array([5.0]), 0.5, 1.0) == (None, None)
    assert effective_interval(np.arange(100.0), 0.5, 1.9) == (None, None)
