from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.lane import RequestFacts
from tailrace.govern.length_model import CLASSES, ENOUGH, PRIOR_TOKENS, WINDOW, LengthModel


def facts(model: str = "m", max_tokens: int | None = None, prompt_tokens: int = 100) -> RequestFacts:
    return RequestFacts(request_id="r", model=model, max_tokens=max_tokens, prompt_tokens=prompt_tokens)


def learn(lengths: LengthModel, tokens: list[int], lane: str = "chat", model: str = "m", limit: int | None = None):
    for one in tokens:
        lengths.observe(lane, model, 100, limit, one)


def test_cold_it_says_the_prior_bounded_by_what_was_asked_for():
    lengths = LengthModel()
    said = lengths.predict(facts(), "chat")
    assert (said.tokens, said.n) == (PRIOR_TOKENS, 0)
    said = lengths.predict(facts(max_tokens=40), "chat")
    assert (said.tokens, said.high, said.n) == (40, 40, 0)
    assert lengths.predict(facts(max_tokens=4000), "chat").high == 4000


def test_it_learns_the_median_and_the_range_of_a_class():
    lengths = LengthModel()
    learn(lengths, list(range(1, 201)))
    said = lengths.predict(facts(), "chat")
    assert abs(said.tokens - 100) <= 2
    assert abs(said.low - 20) <= 3
    assert abs(said.high - 180) <= 3
    assert said.n == 200


def test_a_narrow_class_speaks_for_itself_and_a_new_one_falls_back_outward():
    lengths = LengthModel()
    learn(lengths, [50] * ENOUGH, model="small", limit=100)
    learn(lengths, [500] * 40, model="large", limit=1000)
    assert lengths.predict(facts("small", 100), "chat").tokens == 50
    assert lengths.predict(facts("large", 1000), "chat").tokens == 500
    # Its own bucket is new: the model's answers in this lane decide; a new model: the lane's; a new lane: everybody's.
    assert lengths.predict(facts("small", 4000), "chat").tokens == 50
    assert lengths.predict(facts("other"), "chat").tokens == 500
    assert lengths.predict(facts("small"), "batch").tokens == 500


def test_no_prediction_is_above_what_was_asked_for():
    lengths = LengthModel()
    learn(lengths, [500] * 50, limit=1000)
    said = lengths.predict(facts(max_tokens=600), "chat")
    assert (said.tokens, said.high) == (500, 500)
    said = lengths.predict(facts(max_tokens=20), "chat")
    assert (said.low, said.tokens, said.high) == (20, 20, 20)


def test_old_answers_are_forgotten():
    lengths = LengthModel()
    learn(lengths, [1000] * WINDOW)
    learn(lengths, [10] * WINDOW * 4)
    assert lengths.predict(facts(), "chat").tokens == 10


def test_its_error_is_that_of_predictions_made_before_the_answer_was_known():
    lengths = LengthModel()
    rng = random.Random(3)
    learn(lengths, [max(1, round(rng.lognormvariate(4.6, 0.5))) for _ in range(4000)])
    error = lengths.error("chat")
    assert error.n == 512
    # Of a log-normal with sigma 0.5 the median |error| of the true median as prediction is about 0.33.
    assert error.median is not None
    assert 0.25 < error.median < 0.42
    assert error.coverage is not None
    assert 0.74 < error.coverage < 0.86
    assert lengths.error("nobody").median is None


def test_a_flood_of_model_names_is_bounded_and_still_teaches_the_lane():
    lengths = LengthModel()
    for i in range(3 * CLASSES):
        lengths.observe("chat", f"name-{i}", 10, None, 77)
    assert len(lengths._classes) <= CLASSES + 2
    assert lengths.predict(facts("unseen"), "chat").tokens == 77


def test_a_lane_that_is_gone_is_forgotten():
    lengths = LengthModel()
    learn(lengths, [70] * 50, lane="old")
    learn(lengths, [30] * 50, lane="new")
    lengths.keep({"new"})
    assert lengths.error("old").n == 0
    assert lengths.predict(facts(), "new").tokens == 30


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from(["x", "y", ""]),
            st.one_of(st.none(), st.integers(1, 5000)),
            st.integers(0, 100_000),
        ),
        max_size=150,
    ),
    st.one_of(st.none(), st.integers(1, 5000)),
)
def test_any_history_gives_an_ordered_prediction_within_the_bound(history, bound):
    lengths = LengthModel()
    for lane, model, asked, tokens in history:
        lengths.observe(lane, model, 10, asked, tokens)
    said = lengths.predict(facts("x", bound), "a")
    assert 1 <= said.low <= said.tokens <= said.high
    assert bound is None or said.high <= bound
    assert 0 <= said.n <= WINDOW
