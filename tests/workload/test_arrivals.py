"""Arrivals: distribution, determinism, and that nothing is rescaled."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.workload.arrivals import ArrivalKind, Arrivals, offsets


def take(arrivals: Arrivals, n: int, seed: int = 0) -> np.ndarray:
    return np.array(list(islice(offsets(arrivals, np.random.default_rng(seed)), n)))


def test_constant_is_evenly_spaced_without_drift():
    at = take(Arrivals(kind=ArrivalKind.CONSTANT, rate=3), 30_001)
    assert at[0] == 0
    assert at[30_000] == 10_000 * S
    assert set(np.diff(at)) == {333_333_333, 333_333_334}


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [
        (Arrivals(kind=ArrivalKind.POISSON, rate=50), 1.0),
        (Arrivals(kind=ArrivalKind.GAMMA, rate=50, burstiness=0.25), 2.0),
        (Arrivals(kind=ArrivalKind.GAMMA, rate=50, burstiness=4), 0.5),
    ],
)
def test_random_gaps_have_the_stated_rate_and_variation(arrivals: Arrivals, variation: float):
    gaps = np.diff(take(arrivals, 40_000)) / S
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_poisson_counts_keep_their_variance():
    # A schedule rescaled to hit n / rate would have variance 0 over the whole run.
    counts = [
        np.searchsorted(take(Arrivals(kind=ArrivalKind.POISSON, rate=20), 400, seed), 10 * S) for seed in range(200)
    ]
    assert np.mean(counts) == pytest.approx(200, rel=0.02)
    assert np.var(counts) == pytest.approx(200, rel=0.35)


@given(
    kind=st.sampled_from([ArrivalKind.CONSTANT, ArrivalKind.POISSON, ArrivalKind.GAMMA]),
    rate=st.floats(0.01, 10_000),
    burstiness=st.floats(0.05, 20),
    seed=st.integers(0, 2**32),
    n=st.integers(1, 3000),
)
@settings(max_examples=60, deadline=None)
def test_the_same_seed_gives_the_same_schedule_however_much_is_taken(kind, rate, burstiness, seed, n):
    arrivals = Arrivals(kind=kind, rate=rate, burstiness=burstiness)
    whole = take(arrivals, 3000, seed)
    assert (take(arrivals, n, seed) == whole[:n]).all()
    assert (np.diff(whole) >= 0).all()
    assert whole[0] >= 0


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": ArrivalKind.POISSON},
        {"kind": ArrivalKind.POISSON, "rate": 0.0},
        {"kind": ArrivalKind.CONSTANT, "rate": float("inf")},
        {"kind": ArrivalKind.CLOSED},
        {"kind": ArrivalKind.CLOSED, "concurrency": 0},
        {"kind": ArrivalKind.GAMMA, "rate": 1.0, "burstiness": 0.0},
    ],
)
def test_a_description_that_means_nothing_is_refused(bad):
    with pytest.raises(InputError):
        Arrivals(**bad)
