"""The search for a load: its interval holds the truth as often as it says, and it claims no more than n allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze.rate_search import LOOKS, Found, Outcome, RateSearch, Standing, miss_limits, outcome_of

SERVICE_S = 0.05


def waits_ms(rate: float, seconds: float, rng: np.random.Generator) -> np.ndarray:
    """A simulated engine of known capacity in virtual time: one server, Poisson arrivals, exponential work (20/s).

    By Lindley's recursion: the wait is the sum of (work - gap) above its running minimum. A fifth more is a warm-up.
    """
    n = max(1, int(rng.poisson(1.2 * rate * seconds)))
    gaps = rng.exponential(1 / rate, n)
    work = rng.exponential(SERVICE_S, n)
    steps = np.concatenate([[0.0], work[:-1] - gaps[1:]])
    total = np.cumsum(steps)
    waits = total - np.minimum(np.minimum.accumulate(total), 0)
    return (waits + work)[np.cumsum(gaps) > 0.2 * seconds] * 1000


def true_boundary(p: float, bound_s: float) -> float:
    """The rate at which a share `p` of M/M/1's sojourns is within the bound: P(T > t) = exp(-(mu - lambda) t)."""
    return 1 / SERVICE_S + math.log(1 - p) / bound_s


def search(p: float, bound_ms: float, *, seed: int, budget_s: float, **more: float) -> tuple[Found, RateSearch]:
    rng = np.random.default_rng([seed, 11])
    machine = RateSearch([p], budget_s=budget_s, **more)  # type: ignore[arg-type]
    while (trial := machine.next()) is not None:
        machine.take(trial, [outcome_of(waits_ms(trial.value, trial.seconds, rng), bound_ms, p)], trial.seconds * 1.2)
    return machine.found(), machine


def test_the_engine_of_these_tests_has_the_boundary_that_its_formula_says():
    for p, bound_s in ((0.9, 0.4), (0.95, 0.5), (0.99, 0.5)):
        waits = waits_ms(true_boundary(p, bound_s), 200_000, np.random.default_rng(3))
        assert (waits <= bound_s * 1000).mean() == pytest.approx(p, abs=0.003)


@pytest.mark.parametrize(("p", "bound_ms", "budget_s"), [(0.9, 400, 900), (0.95, 500, 1800), (0.5, 200, 300)])
def test_the_interval_holds_the_true_boundary(p: float, bound_ms: float, budget_s: float):
    truth = true_boundary(p, bound_ms / 1000)
    found = [search(p, bound_ms, seed=seed, budget_s=budget_s)[0] for seed in range(100)]
    holds = sum((one.low or 0) <= truth <= (one.high or math.inf) for one in found)
    assert holds >= 95
    # It is of use as well: an interval with two ends in most runs, and a guess near the truth.
    assert sum(one.low is not None and one.high is not None for one in found) >= 60
    guesses = [one.value for one in found if one.value is not None]
    assert np.median(guesses) == pytest.approx(truth, rel=0.1)
    for one in found:
        assert one.value is None or (one.low or 0) <= one.value <= (one.high or math.inf)


def test_more_time_gives_a_narrower_interval():
    widths = []
    for budget in (300, 3000):
        found = [search(0.9, 400, seed=seed, budget_s=budget)[0] for seed in range(20)]
        widths.append(np.median([(one.high or 64) / (one.low or 1) for one in found]))
    assert widths[1] < 0.8 * widths[0]


def test_too_few_requests_prove_nothing():
    # p99 needs 600 requests without a miss even where they are independent: 30 s at 10/s are not enough.
    found, machine = search(0.99, 5000, seed=1, budget_s=30, most=4)
    assert found.low is None
    assert machine.needed == math.ceil(math.log(0.05 / LOOKS) / math.log(0.99))
    assert found.requests < machine.needed


def test_a_server_that_meets_everything_is_told_so():
    found, _ = search(0.9, 60_000, seed=1, budget_s=900, most=8.0)
    assert (found.low, found.high) == (8.0, None)
    assert "the highest load that may be tried" in found.why


def test_a_server_that_meets_nothing_is_told_so():
    found, _ = search(0.9, 0.001, seed=1, budget_s=900)
    assert found.low is None
    assert found.high is not None
    assert found.high <= 1


def test_workers_are_whole_numbers():
    machine = RateSearch([0.9], whole=True, budget_s=10_000)
    tried = []
    rng = np.random.default_rng(0)
    while (trial := machine.next()) is not None:
        tried.append(trial.value)
        n = round(20 * trial.seconds)
        machine.take(trial, [outcome_of(rng.exponential(10 * trial.value, n), 230, 0.9)], trial.seconds)
    # An exponential of mean 10 v is within 230 in nine of ten cases up to v = 9.99.
    found = machine.found()
    assert all(value == round(value) for value in tried)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 10 <= found.high
    assert found.high - found.low <= 5


@given(st.integers(1, 2000), st.floats(0, 1), st.floats(0.001, 0.2))
def test_limits_hold_the_share_and_close_in(n: int, share: float, alpha: float):
    misses = round(share * n)
    low, high = miss_limits(n, misses, alpha)
    assert 0 <= low <= misses / n <= high <= 1
    wider = miss_limits(n / 4, misses / 4, alpha)
    assert wider[0] <= low + 1e-9
    assert wider[1] >= high - 1e-9


def test_limits_are_exact():
    # Without a miss the upper limit solves (1 - x)^n = alpha.
    assert miss_limits(100, 0, 0.05)[1] == pytest.approx(1 - 0.05 ** (1 / 100))
    assert miss_limits(100, 100, 0.05) == (pytest.approx(0.05 ** (1 / 100)), 1.0)
    assert miss_limits(0, 0, 0.05) == (0.0, 1.0)


def test_bursts_count_as_less_than_their_misses():
    rng = np.random.default_rng(2)
    alone = np.where(rng.random(4000) < 0.05, 1000.0, 10.0)
    burst = np.full(4000, 10.0)
    for at in rng.integers(0, 3950, 5):
        burst[at : at + 40] = 1000.0
    calm, bursty = outcome_of(alone, 500, 0.95), outcome_of(burst, 500, 0.95)
    assert calm.effect < 3
    assert bursty.effect > 10
    assert bursty.burst > 10
    machine = RateSearch([0.9])
    trial = machine.next()
    assert trial is not None
    assert machine.take(trial, [calm], 1.0) is Standing.MET


def test_failed_requests_are_misses():
    waits = np.array([1.0, np.inf, 2.0, np.inf])
    assert outcome_of(waits, 100, 0.9) == Outcome(n=4, misses=2, effect=1.0, burst=1.0)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.floats(0, 1)), min_size=1, max_size=LOOKS + 4),
    st.sampled_from([(0.9,), (0.99,), (0.5, 0.95)]),
)
def test_whatever_it_is_told_it_ends_and_contradicts_nothing(told: list[tuple[int, float]], shares: tuple[float, ...]):
    machine = RateSearch(shares, budget_s=1e5)
    for n, share in told:
        trial = machine.next()
        if trial is None:
            assert machine.why
            break
        assert 0 < trial.value < math.inf
        assert trial.seconds > 0
        machine.take(trial, [Outcome(n=n, misses=round(share * n)) for _ in shares], trial.seconds)
    found = machine.found()
    assert machine.looks <= LOOKS
    if found.low is not None and found.high is not None:
        assert found.low < found.high
    if found.value is not None:
        assert (found.low or 0) <= found.value <= (found.high or math.inf)
