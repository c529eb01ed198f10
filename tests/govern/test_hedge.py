"""A second attempt is made for the slowest few, and never for more than its share."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.hedge import FADE_NS, LEAST, HedgePolicy, Hedger, Waits
from tailrace.model.thresholds import MS, S


@given(st.lists(st.integers(MS // 8, 100 * S), min_size=LEAST, max_size=300), st.floats(0.01, 0.99))
def test_a_quantile_is_known_to_a_bucket(values: list[int], share: float) -> None:
    waits = Waits()
    for value in values:
        waits.add(value, 0)
    found = waits.quantile(share)
    below = sum(value <= found for value in values)
    assert below >= share * len(values) - 1e-6
    assert sum(value <= found * 0.9 for value in values) <= share * len(values) + 1


def test_too_few_waits_say_nothing() -> None:
    hedger = Hedger(HedgePolicy())
    for _ in range(LEAST - 1):
        hedger.answered("default", 100 * MS, 0)
    assert hedger.sent("default", 0) is None
    hedger.answered("default", 100 * MS, 0)
    assert hedger.sent("default", 0) is not None
    assert hedger.sent("other", 0) is None


def test_it_is_hedged_after_the_quantile_and_within_the_budget() -> None:
    hedger, random = Hedger(HedgePolicy(quantile=0.9, budget=0.05)), Random(5)
    due = 0
    for number in range(3000):
        now = number * 20 * MS
        at = hedger.sent("default", now)
        wait = round(random.expovariate(1.0) * 200 * MS)
        if at is not None and now + wait > at:
            due += 1
            hedger.go(at)
        hedger.answered("default", wait, now + wait)
    assert due / 3000 == pytest.approx(0.1, abs=0.04)
    assert hedger.made <= 0.05 * 3000 + 8
    assert hedger.made + hedger.denied == due


def test_never_sooner_than_the_least() -> None:
    hedger = Hedger(HedgePolicy(least_ns=50 * MS))
    for _ in range(LEAST):
        hedger.answered("default", MS, 0)
    assert hedger.sent("default", S) == S + 50 * MS


def test_what_was_seen_fades() -> None:
    waits = Waits()
    for _ in range(1000):
        waits.add(10 * S, S)
    for number in range(1000):
        waits.add(100 * MS, S + (number // 100) * FADE_NS)
    assert waits.quantile(0.9) < S
