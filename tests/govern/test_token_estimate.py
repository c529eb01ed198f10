"""The estimate of prompt tokens: what it starts from, what it learns, what it does not fall for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.text_size import TextSize, measure
from tailrace.govern.token_estimate import MAX_MODELS, TokenEstimates, TokenRates


@given(st.text())
def test_both_classes_together_are_all_bytes(text: str) -> None:
    narrow, wide = measure(text)
    assert narrow + wide == len(text.encode())
    assert wide % 3 == 0


def test_scripts_by_class() -> None:
    assert measure("The “quick” fox …") == (len("The “quick” fox …".encode()), 0)
    assert measure("Привет") == (12, 0)
    assert measure("世界こんにちは안녕") == (0, 27)
    assert measure("สวัสดี") == (0, 18)


def test_it_begins_with_a_quarter_of_the_bytes() -> None:
    rates = TokenRates()
    assert rates.tokens(TextSize(narrow=400, messages=3)) == 100
    assert rates.error.n == 0
    assert "unknown" in str(rates.error)
    assert TokenEstimates().estimate("m", TextSize(narrow=400)) is None


def _traffic(seed: int, n: int, *, outliers: float = 0.0) -> list[tuple[TextSize, int]]:
    """A model of 4.6 bytes a token, a wide character 0.93 tokens, a template of 25 + 5 a message; 10 % noise."""
    chance = random.Random(seed)
    out = []
    for _ in range(n):
        messages = chance.randint(1, 20)
        narrow = int(messages * chance.lognormvariate(4, 1.5))
        wide = 3 * chance.randint(0, 2000) if chance.random() < 0.3 else 0
        noise = chance.uniform(0.9, 1.1)
        tokens = 25 + 5 * messages + noise * (narrow / 4.6 + wide * 0.31)
        if chance.random() < outliers:
            tokens *= 4
        out.append((TextSize(narrow, wide, messages), round(tokens)))
    return out


@pytest.mark.parametrize("outliers", [0.0, 0.05])
def test_it_finds_template_and_both_ratios(outliers: float) -> None:
    rates = TokenRates()
    for size, counted in _traffic(3, 600, outliers=outliers):
        rates.learn(size, counted)
    prompt, message, narrow, wide = rates.rates
    assert prompt == pytest.approx(25, abs=4)
    assert message == pytest.approx(5, abs=0.6)
    assert 1 / narrow == pytest.approx(4.6, rel=0.05)
    assert wide == pytest.approx(0.31, rel=0.05)
    assert rates.error.p50 is not None
    assert rates.error.p50 < 0.06


def test_the_stated_error_holds_for_the_next_requests() -> None:
    rates = TokenRates()
    traffic = _traffic(5, 900)
    for size, counted in traffic[:600]:
        rates.learn(size, counted)
    p95 = rates.error.p95
    assert p95 is not None
    within = sum(abs(rates.tokens(size) / counted - 1) <= p95 for size, counted in traffic[600:])
    assert 0.9 <= within / 300 <= 1.0


def test_another_model_behind_the_name_is_learnt() -> None:
    rates = TokenRates()
    for _ in range(600):
        rates.learn(TextSize(narrow=4000), 1000)
    for _ in range(600):
        rates.learn(TextSize(narrow=4000), 1600)
    assert rates.tokens(TextSize(narrow=4000)) == pytest.approx(1600, rel=0.05)


def test_what_never_came_stays_as_it_was_believed() -> None:
    rates = TokenRates()
    for _ in range(400):
        rates.learn(TextSize(narrow=4000, messages=1), 800)
    assert rates.rates[3] == pytest.approx(0.25)


def test_pictures_and_impossible_counts_teach_nothing() -> None:
    rates = TokenRates()
    rates.learn(TextSize(narrow=40, messages=1, unseen=1), 2000)
    rates.learn(TextSize(messages=1), 20)
    rates.learn(TextSize(narrow=40, ids=10), 10)
    rates.learn(TextSize(narrow=400_000, messages=1), 7)
    rates.learn(TextSize(narrow=40), 5000)
    assert rates.n == 0


def test_a_tokenizers_counts_are_left_alone() -> None:
    rates = TokenRates(exact_text=True)
    for n in range(1, 300):
        rates.learn(TextSize(narrow=n * 10, messages=2), n * 10 + 33)
    assert rates.rates[2:] == (1.0, 1.0)
    assert rates.tokens(TextSize(narrow=500, messages=2)) == pytest.approx(533, abs=2)


@given(
    st.lists(
        st.tuples(
            st.builds(TextSize, *[st.integers(0, 10**7)] * 2, st.integers(0, 2000), st.integers(0, 10**5)),
            st.integers(0, 10**7),
        ),
        max_size=60,
    )
)
def test_nothing_that_engines_say_makes_it_senseless(seen: list[tuple[TextSize, int]]) -> None:
    rates = TokenRates()
    for size, counted in seen:
        rates.learn(size, counted)
    prompt, message, narrow, wide = rates.rates
    assert 0 <= prompt <= 2000
    assert 0 <= message <= 40
    assert 0.02 <= narrow <= 1
    assert 0.02 <= wide <= 1.5
    error = rates.error
    assert error.n == rates.n
    assert error.p50 is None or 0 <= error.p50 <= (error.p95 or 0.0)


def test_names_that_clients_choose_take_bounded_memory() -> None:
    estimates = TokenEstimates()
    for i in range(MAX_MODELS + 50):
        estimates.learn(f"m{i}", TextSize(narrow=400), 50)
    assert len(estimates.view()) == MAX_MODELS + 1
    assert estimates.estimate("never seen", TextSize(narrow=4000)) is not None
    assert {source for _, source, _ in estimates.errors()} == {"estimate"}
