"""The cost of a prefill is found again, whatever a few requests met, and forgotten when the engine is another."""

import numpy as np
import pytest

from tailrace.measure.inference.prefill_cost import LEAST, PrefillCost

MS = 1_000_000


def cost_ms(tokens: int, speed: float = 1.0) -> float:
    return (10 + 50 * tokens / 1024 + 2 * (tokens / 1024) ** 2) / speed


def taught(rng: np.random.Generator, count: int, *, speed: float = 1.0, into: PrefillCost | None = None) -> PrefillCost:
    cost = into or PrefillCost()
    for _ in range(count):
        tokens = int(np.exp(rng.normal(6.9, 0.8)))
        took = cost_ms(tokens, speed) * (1 + rng.normal(0, 0.02))
        if rng.random() < 0.15:
            took += rng.exponential(300)  # it met somebody after all
        cost.note(tokens, round(took * MS))
    return cost


@pytest.mark.parametrize("seed", range(4))
def test_found_again_in_spite_of_outliers(seed: int):
    cost = taught(np.random.default_rng(seed), 200)
    for tokens in (300, 1000, 4000):
        assert cost.predict(tokens) == pytest.approx(cost_ms(tokens) * MS, rel=0.06)


def test_says_nothing_before_it_has_seen_enough():
    cost = PrefillCost()
    for _ in range(LEAST - 1):
        cost.note(1000, 60 * MS)
    assert not cost.known
    cost.note(1000, 60 * MS)
    assert cost.known


def test_one_size_teaches_no_curve():
    cost = PrefillCost()
    for _ in range(20):
        cost.note(1000, 60 * MS)
    assert cost.predict(1000) == pytest.approx(60 * MS, rel=0.01)
    assert cost.covers(1200)
    assert not cost.covers(5000)


def test_the_error_is_that_of_samples_left_out():
    rng = np.random.default_rng(3)
    cost = PrefillCost()
    for _ in range(250):
        tokens = int(rng.uniform(100, 4000))
        cost.note(tokens, round(cost_ms(tokens) * MS * (1 + rng.uniform(-0.2, 0.2))))
    fresh = [
        abs(cost.predict(tokens) / (cost_ms(tokens) * MS * (1 + off)) - 1)
        for tokens, off in zip(rng.uniform(100, 4000, 500).astype(int), rng.uniform(-0.2, 0.2, 500), strict=True)
    ]
    assert np.mean(np.array(fresh) <= cost.error_share) == pytest.approx(0.9, abs=0.06)


def test_a_changed_engine_is_learnt_anew():
    rng = np.random.default_rng(5)
    cost = taught(rng, 200)
    taught(rng, 60, speed=2.5, into=cost)
    assert cost.predict(1000) == pytest.approx(cost_ms(1000, 2.5) * MS, rel=0.1)


def test_a_slope_is_never_negative():
    rng = np.random.default_rng(7)
    cost = PrefillCost()
    for _ in range(100):
        cost.note(int(rng.uniform(10, 4000)), round(rng.uniform(50, 60) * MS))
    assert cost.predict(4000) >= cost.predict(10) > 0
