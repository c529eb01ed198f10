from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.prediction_error import NO_ERROR, ErrorSummary, PredictionError, together

positive = st.floats(0.01, 1e9)


@given(st.lists(st.tuples(positive, positive, st.booleans()), max_size=60), st.integers(1, 20))
def test_it_is_the_median_of_the_last_answers(answers, window):
    error = PredictionError(window)
    for predicted, actual, inside in answers:
        error.add(predicted, actual, inside=inside)
    summary = error.summary()
    last = answers[-window:]
    assert summary.n == len(last)
    assert error.seen == len(answers)
    if not last:
        assert summary == NO_ERROR
        return
    signed = [(predicted - actual) / actual for predicted, actual, _ in last]
    assert summary.median == pytest.approx(median(map(abs, signed)))
    assert summary.bias == pytest.approx(median(signed))
    assert summary.coverage == pytest.approx(sum(inside for *_, inside in last) / len(last))


def test_what_did_not_take_any_time_is_no_answer():
    error = PredictionError()
    error.add(5, 0, inside=False)
    assert error.summary() == NO_ERROR


def test_the_errors_of_two_processes_are_weighted_by_their_answers():
    one, other = ErrorSummary(0.1, 0.8, 0.0, 300), ErrorSummary(0.4, 0.6, -0.2, 100)
    both = together(one, other)
    assert (both.median, both.coverage, both.bias) == (
        pytest.approx(0.175),
        pytest.approx(0.75),
        pytest.approx(-0.05),
    )
    assert both.n == 400
    assert together(one, NO_ERROR) == together(NO_ERROR, one) == one
