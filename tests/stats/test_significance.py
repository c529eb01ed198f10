import numpy as np
import pytest

from tailrace.stats.tests import benjamini_hochberg, permutation_p_value, two_proportion_p_value


def test_benjamini_hochberg_worked_example():
    assert benjamini_hochberg([0.001, 0.008, 0.039, 0.041, 0.200]) == [True, True, False, False, False]


def test_benjamini_hochberg_keeps_the_callers_order_and_rescues_smaller_ranks():
    assert benjamini_hochberg([0.2, 0.04, 0.041, 0.03, 0.001]) == [False, False, False, False, True]
    # p_(2) fails its own threshold but p_(3) passes: all up to the largest are rejected.
    assert benjamini_hochberg([0.001, 0.034, 0.03]) == [True, True, True]
    assert benjamini_hochberg([]) == []


def test_two_proportions_are_one_sided():
    assert two_proportion_p_value(10, 1000, 40, 1000) < 1e-4
    assert two_proportion_p_value(40, 1000, 10, 1000) > 0.99
    assert two_proportion_p_value(0, 1000, 0, 1000) == 1.0
    assert two_proportion_p_value(0, 0, 5, 10) == 1.0


def test_few_failures_use_the_exact_tail():
    from scipy.stats import fisher_exact

    exact = fisher_exact([[3, 497], [0, 500]], alternative="greater").pvalue
    assert two_proportion_p_value(0, 500, 3, 500) == pytest.approx(exact)
    assert two_proportion_p_value(0, 500, 3, 500) > 0.05


def blocks(rng, count, scale):
    return [rng.exponential(scale, 50) for _ in range(count)]


def test_permutation_finds_a_real_change_and_not_a_missing_one():
    rng = np.random.default_rng(3)
    assert permutation_p_value(blocks(rng, 20, 1), blocks(rng, 20, 2), 0.95, rng, resamples=400) < 0.02
    assert permutation_p_value(blocks(rng, 20, 1), blocks(rng, 20, 1), 0.95, rng, resamples=400) > 0.05
    assert permutation_p_value([], blocks(rng, 3, 1), 0.95, rng) == 1.0
