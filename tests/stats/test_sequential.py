"""Sequential boundaries hold over all looks, and what they are made of is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tailrace.stats.clustered import batch_variance, design_effect
from tailrace.stats.sequential import binomial_z, boundary, epoch_alpha, evidence, student_t, student_z


@given(st.floats(1.0, 1e6), st.floats(1e-9, 0.1))
def test_reaching_the_boundary_is_reaching_the_evidence(n: float, alpha: float) -> None:
    assert evidence(boundary(n, alpha), n) * alpha == pytest.approx(1.0, rel=1e-6)


def test_random_walks_cross_the_boundary_no_more_often_than_it_allows() -> None:
    rng = np.random.default_rng(1)
    alpha, walks, steps = 0.05, 4000, 2000
    bounds = np.array([boundary(n, alpha) for n in range(1, steps + 1)])
    z = rng.normal(size=(walks, steps)).cumsum(axis=1) / np.sqrt(np.arange(1, steps + 1))
    ever = float((z > bounds).any(axis=1).mean())
    fixed = float((z > stats.norm.isf(alpha)).any(axis=1).mean())
    assert 0.005 < ever <= alpha * 1.1
    assert fixed > 0.4  # what peeking at a fixed bound would have done


def test_the_boundary_is_infinite_without_observations_and_flat_later() -> None:
    assert boundary(0.0, 0.01) == math.inf
    assert boundary(60.0, 1e-4) < 1.15 * boundary(200.0, 1e-4)
    assert boundary(60_000.0, 1e-4) < 1.15 * boundary(200.0, 1e-4)


def test_epochs_spend_no_more_than_alpha_together() -> None:
    spent = sum(epoch_alpha(0.01, epoch) for epoch in range(1, 100_000))
    assert spent < 0.01
    assert spent == pytest.approx(0.01, rel=1e-3)
    assert epoch_alpha(0.01, 1) == pytest.approx(0.0061, rel=0.01)


@given(st.floats(-30.0, 30.0), st.floats(1.0, 500.0))
def test_student_z_has_the_same_tail(t: float, freedom: float) -> None:
    z = student_z(t, freedom)
    assert abs(z) <= abs(t) + 1e-6
    assert stats.norm.sf(abs(z)) == pytest.approx(float(stats.t.sf(abs(t), freedom)), rel=1e-3)
    assert z * t >= 0.0
    if 0.5 < z < 8.0:
        assert student_t(z, freedom) == pytest.approx(t, rel=1e-3)


@given(st.integers(1, 200), st.floats(0.01, 0.9), st.data())
def test_binomial_z_is_the_exact_tail(total: int, share: float, data: st.DataObject) -> None:
    events = data.draw(st.integers(0, total))
    upper = float(stats.binom.sf(events - 1, total, share))
    z = binomial_z(events, total, share)
    if events <= total * share or upper >= 0.5:
        assert z == 0.0
    else:
        assert stats.norm.sf(min(z, 36.0)) == pytest.approx(upper, rel=1e-3) or z == 37.0


def test_batches_of_an_autoregression_are_not_taken_for_independent() -> None:
    rng = np.random.default_rng(3)
    n, phi, found, naive = 120, 0.8, [], []
    for _ in range(300):
        noise = rng.normal(size=n)
        x = np.zeros(n)
        x[0] = noise[0] / math.sqrt(1 - phi * phi)
        for at in range(1, n):
            x[at] = phi * x[at - 1] + noise[at]
        found.append(batch_variance(x))
        naive.append(float(((x - x.mean()) ** 2).sum()) * n / (n - 1))
    truth = n / (1 - phi) ** 2  # long-run variance of a sum, to first order
    assert 0.6 * truth < np.median(found) < 1.8 * truth
    assert np.median(naive) < 0.2 * truth


def test_independent_batches_are_hardly_inflated() -> None:
    rng = np.random.default_rng(4)
    found = [batch_variance(rng.normal(size=60)) / 60 for _ in range(300)]
    assert 0.9 < np.median(found) < 1.6


def test_a_design_effect_is_never_below_one() -> None:
    assert design_effect(0.5, 1.0) == 1.0
    assert design_effect(3.0, 1.0) == 3.0
    assert design_effect(1.0, 0.0) == 1.0
    assert batch_variance(np.array([1.0])) == 0.0
