from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.gaps import EXACT_LIMIT, GapDigest, per_token_gaps, token_gaps
from tailrace.model.timeline import EventKind, Timeline

C, E = int(EventKind.CONTENT), int(EventKind.EMPTY)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.floats(0, 1))
def test_few_gaps_are_exact(values: list[int], q: float) -> None:
    digest = GapDigest()
    for low in range(0, len(values), 7):
        digest.extend(values[low : low + 7])
    assert digest.method == "exact"
    assert (digest.count, digest.max) == (len(values), max(values))
    assert digest.quantile(q) == pytest.approx(float(np.quantile(values, q)), abs=1, rel=1e-9)


@pytest.mark.parametrize("scale", [1, 900, 20_000_000, 3 * 10**11])
def test_many_gaps_are_within_the_stated_error_and_count_and_maximum_stay_exact(scale: int) -> None:
    values = np.random.default_rng(3).lognormal(0, 1.2, 3 * EXACT_LIMIT) * scale
    numbers = [int(value) for value in values]
    digest = GapDigest()
    for low in range(0, len(numbers), 1000):
        digest.extend(numbers[low : low + 1000])
    assert digest.method == "histogram"
    assert (digest.count, digest.max) == (len(numbers), max(numbers))
    ordered = sorted(numbers)
    for q in (0, 0.01, 0.5, 0.95, 0.999, 1):
        truth = ordered[int(q * (len(ordered) - 1))]
        assert digest.quantile(q) == pytest.approx(truth, rel=0.008, abs=1)


def test_the_switch_loses_nothing() -> None:
    digest = GapDigest()
    digest.extend(list(range(EXACT_LIMIT)))
    assert digest.method == "exact"
    digest.extend([7])
    assert digest.method == "histogram"
    assert digest.count == EXACT_LIMIT + 1


def test_no_gap_has_no_quantile() -> None:
    assert GapDigest().quantile(0.5) is None
    assert GapDigest().max is None
    assert GapDigest().method == ""


def test_a_gap_is_spread_over_the_tokens_it_brought() -> None:
    line = Timeline(at_ns=[0, 40, 100], kind=[C, C, C], tokens=[1, 4, 2])
    assert token_gaps(line) == [40, 60]
    assert per_token_gaps(line) == [10.0] * 4 + [30.0] * 2


def test_a_token_without_text_counts_to_the_next_text() -> None:
    line = Timeline(at_ns=[0, 10, 20], kind=[C, E, C], tokens=[1, 1, 1])
    assert token_gaps(line) == [20]
    assert per_token_gaps(line) == [10.0, 10.0]


def test_unknown_counts_give_no_itl_unless_the_total_proves_one_each() -> None:
    line = Timeline(at_ns=[0, 10, 30], kind=[C, C, C], tokens=[-1, -1, -1])
    assert per_token_gaps(line) == []
    assert per_token_gaps(line, 4) == []
    assert per_token_gaps(line, 3) == [10.0, 20.0]


def test_a_merged_entry_has_no_gap_before_it() -> None:
    line = Timeline(at_ns=[0, 10, 90], kind=[C, C, C], tokens=[-1] * 3, thinned=5, merged=[0, 0, 5])
    assert token_gaps(line) == [10]
