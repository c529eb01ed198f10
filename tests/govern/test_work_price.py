from __future__ import annotations

import random

import pytest

from tailrace.govern.work_price import PREFILL_WEIGHT, WorkPrice, machine_work


def test_a_prompt_token_costs_the_machine_less_than_an_answers():
    assert machine_work(8000, 100) == 100 + 8000 * PREFILL_WEIGHT
    assert machine_work(0, 1) == 1


def test_it_learns_how_much_longer_a_prompt_token_holds_a_place():
    price = WorkPrice()
    rng = random.Random(1)
    for _ in range(400):
        prompt, output = rng.randrange(10, 20_000), rng.randrange(5, 400)
        noise = rng.lognormvariate(0, 0.2)
        price.observe(prompt, output, round((prompt * 100_000 + output * 20_000_000) * noise))
    assert price.ratio == pytest.approx(0.1 / 20, rel=0.2)
    assert price.work(12_000, 60) == pytest.approx(120, rel=0.2)


def test_lengths_in_one_fixed_ratio_teach_nothing_and_break_nothing():
    price = WorkPrice()
    before = price.ratio
    for _ in range(100):
        price.observe(1000, 100, 2_000_000_000)
    assert price.ratio == before
    assert price.work(0, 0) == 1


@pytest.mark.parametrize(("of_prompt", "of_output"), [(1.0, 0.0), (0.0, 1.0)])
def test_its_ratio_stays_within_reason_at_either_end(of_prompt, of_output):
    price = WorkPrice()
    rng = random.Random(2)
    for _ in range(200):
        prompt, output = rng.randrange(10, 5000), rng.randrange(5, 400)
        price.observe(prompt, output, round((prompt * of_prompt + output * of_output) * 1e6) + 1)
    assert 1 / 5000 <= price.ratio <= 1
