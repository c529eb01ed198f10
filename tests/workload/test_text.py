"""Prompt text: its length, its uniqueness, and the calibration by what the server counts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.workload.text import DEFAULT_CHARS_PER_TOKEN, Calibration, PromptWriter

WRITER = PromptWriter(seed=3, nonce="run")


@given(index=st.integers(0, 10**9), tokens=st.integers(1, 200_000))
@settings(max_examples=60, deadline=None)
def test_a_prompt_has_exactly_the_characters_asked_for(index: int, tokens: int):
    text = WRITER.write(index, tokens)
    assert len(text) == round(tokens * DEFAULT_CHARS_PER_TOKEN)
    assert text.isascii()
    assert json.dumps(text) == f'"{text}"'


@pytest.mark.parametrize("tokens", [20, 300, 12_000])
def test_a_word_is_about_a_token(tokens: int):
    assert len(WRITER.write(5, tokens).split()) == pytest.approx(tokens, rel=0.1, abs=4)


def test_the_same_request_has_the_same_text():
    assert PromptWriter(seed=3, nonce="run").write(7, 400) == WRITER.write(7, 400)


def test_prefixes_differ_between_requests_and_between_runs():
    other = PromptWriter(seed=3, nonce="another run")
    heads = {w.write(i, 400)[:40] for w in (WRITER, other) for i in range(500)}
    assert len(heads) == 1000


@given(tokens=st.integers(1, 3000), shared=st.integers(1, 1500), index=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_shared_prefix_is_shared_and_the_length_stays(tokens: int, shared: int, index: int):
    writer = PromptWriter(seed=3, nonce="run", shared_prefix=shared)
    one, two = writer.write(index, tokens), writer.write(9999, tokens)
    length = min(len(one), round(shared * DEFAULT_CHARS_PER_TOKEN)) - 1
    assert len(one) == round(tokens * DEFAULT_CHARS_PER_TOKEN)
    assert one[:length] == two[:length]


@given(
    chars_per_token=st.floats(1.5, 9),
    overhead=st.integers(0, 40),
    lengths=st.lists(st.integers(200, 20_000), min_size=2, max_size=6, unique=True),
)
def test_calibration_finds_slope_and_overhead(chars_per_token: float, overhead: int, lengths: list[int]):
    calibration = Calibration()
    for chars in (*lengths, 200, 20_000):
        calibration.observe(chars, round(chars / chars_per_token) + overhead)
    slope, found = calibration.estimate()
    assert slope == pytest.approx(chars_per_token, rel=0.03)
    assert found == pytest.approx(overhead, abs=3)


def test_calibration_from_one_length_is_the_ratio():
    calibration = Calibration()
    calibration.observe(400, 100)
    calibration.observe(400, 100)
    assert calibration.estimate() == (4.0, 0.0)


def test_no_observation_means_the_default():
    assert Calibration().estimate() == (DEFAULT_CHARS_PER_TOKEN, 0.0)


def test_a_prompt_as_long_as_its_first_words_has_its_length_too():
    """The words with which a prompt begins are 15 to 30 characters: just there their end meets the text's."""
    writer = PromptWriter(seed=3, nonce="run", chars_per_token=1.0)
    assert {len(writer.write(index, length)) - length for index in range(300) for length in range(12, 34)} == {0}
