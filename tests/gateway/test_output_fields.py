"""Bounds of output where each API keeps them; a client cannot get round one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.output_fields import HAS_OUTPUT, asked_output, unambiguous, with_output
from tailrace.gateway.work import read_work
from tailrace.measure.dialect import MAX_COUNT

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TRITON = "/v2/models/{model}/generate"


@pytest.mark.parametrize(
    ("endpoint", "body", "changed"),
    [
        (CHAT, {"max_tokens": 500}, {"max_tokens": 64}),
        (CHAT, {"max_completion_tokens": 500}, {"max_completion_tokens": 64}),
        (CHAT, {"max_completion_tokens": 10, "max_tokens": 500}, {"max_tokens": 64}),
        (CHAT, {}, {"max_tokens": 64}),
        (CHAT, {"max_tokens": None}, {"max_tokens": 64}),
        (CHAT, {"max_tokens": -1}, {"max_tokens": 64}),
        (CHAT, {"max_tokens": 500, "min_tokens": 100}, {"max_tokens": 64, "min_tokens": 64}),
        (CHAT, {"n_predict": 500}, {"n_predict": 64, "max_tokens": 64}),
        (CHAT, {"n_predict": 5}, {"max_tokens": 64}),
        (TEXT, {}, {"max_tokens": 64}),
        ("/v1/responses", {}, {"max_output_tokens": 64}),
        ("/v1/responses", {"max_output_tokens": 65}, {"max_output_tokens": 64}),
        ("/v1/messages", {"max_tokens": 4096}, {"max_tokens": 64}),
        ("/generate", {"text": "x"}, {"sampling_params": {"max_new_tokens": 64}}),
        (
            "/generate",
            {"text": "x", "sampling_params": {"max_new_tokens": 99, "min_new_tokens": 70, "top_p": 0.5}},
            {"sampling_params": {"max_new_tokens": 64, "min_new_tokens": 64, "top_p": 0.5}},
        ),
        ("/generate", {"inputs": "x"}, {"parameters": {"max_new_tokens": 64}}),
        ("/generate_stream", {"inputs": "x"}, {"parameters": {"max_new_tokens": 64}}),
        (TRITON, {"text_input": "x"}, {"parameters": {"max_tokens": 64}}),
        (TRITON, {"text_input": "x", "max_tokens": 900}, {"max_tokens": 64}),
        (
            TRITON,
            {"text_input": "x", "parameters": {"max_tokens": 900, "stream": True}},
            {"parameters": {"max_tokens": 64, "stream": True}},
        ),
    ],
)
def test_each_apis_field(endpoint: str, body: dict[str, Any], changed: dict[str, Any]) -> None:
    out = with_output(endpoint, json.dumps(body).encode(), 64)
    assert out is not None
    assert json.loads(out) == {**body, **changed}


def test_a_batch_of_parameters_is_bounded_one_by_one() -> None:
    out = with_output("/generate", b'{"text":["a","b"],"sampling_params":[{"max_new_tokens":9,"top_p":1},{}]}', 4)
    assert out is not None
    assert json.loads(out)["sampling_params"] == [{"max_new_tokens": 4, "top_p": 1}, {"max_new_tokens": 4}]


@pytest.mark.parametrize(
    "sneaky",
    [b'{"max_tokens":5,"max_tokens":5000}', b'{"max\\u005ftokens":5000}', b'{"max_tokens":5,"max\\u005ftokens":5000}'],
)
def test_no_spelling_gets_round_a_cap(sneaky: bytes) -> None:
    out = with_output(CHAT, sneaky, 64)
    assert out is not None
    assert out.count(b"tokens") == 1
    assert json.loads(out) == {"max_tokens": 64}


@given(
    st.sampled_from(sorted(HAS_OUTPUT)),
    st.dictionaries(
        st.sampled_from(["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "min_tokens"]),
        st.none() | st.integers(-2, 10_000) | st.text(max_size=3),
    ),
    st.integers(1, 2000),
)
def test_afterwards_nothing_is_above_the_cap(endpoint: str, body: dict[str, Any], each: int) -> None:
    out = with_output(endpoint, json.dumps(body).encode(), each)
    assert out is not None
    whole = json.loads(out)
    mine = {CHAT: 3, TEXT: 2}.get(endpoint)
    if mine is not None:
        # The engine reads one of these, and none may say more.
        names = ("max_tokens", "max_completion_tokens", "n_predict")[:mine]
        assert any(isinstance(whole.get(name), int) for name in names)
        for name in ("max_tokens", *(("max_completion_tokens",) if endpoint == CHAT else ()), "n_predict"):
            assert not isinstance(whole.get(name), int) or whole[name] <= each
    assert with_output(endpoint, out, each) == out


def test_where_it_is_read() -> None:
    assert read_work(b'{"text":"x","sampling_params":{"max_new_tokens":9,"n":3,"temperature":0}}').max_tokens == 9
    work = read_work(b'{"text":"x","sampling_params":{"max_new_tokens":9,"n":3,"temperature":0}}')
    assert (work.n, work.sampled) == (3, False)
    assert read_work(b'{"inputs":"xxxxxxxx","parameters":{"max_new_tokens":7}}').max_tokens == 7
    assert read_work(b'{"inputs":"xxxxxxxx"}').prompt_tokens == 2
    assert read_work(b'{"text":"x","sampling_params":[{"max_new_tokens":9},{}]}').max_tokens == 9


@pytest.mark.parametrize(
    ("endpoint", "body", "asked"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": None}, None),
        (CHAT, {"max_tokens": 9, "n_predict": 5000}, 5000),
        (CHAT, {"max_tokens": 9, "n_predict": -1}, MAX_COUNT),
        (CHAT, {"max_tokens": 9, "max_completion_tokens": "5000"}, 5000),
        (CHAT, {"max_tokens": 9, "max_completion_tokens": 5000.0}, 5000),
        (CHAT, {"max_tokens": 9, "max_completion_tokens": [5000]}, MAX_COUNT),
        (CHAT, {"max_completion_tokens": 9, "max_tokens": 5000}, 5000),
        (TEXT, {"max_completion_tokens": 9, "max_tokens": 5000}, 5000),
        (TEXT, {"max_completion_tokens": 5000, "max_tokens": 9}, 9),
        ("/v1/messages", {"max_completion_tokens": 9, "max_tokens": 5000}, 5000),
        ("/v1/responses", {"max_tokens": 9, "max_output_tokens": 5000}, 5000),
        ("/generate", {"max_tokens": 9, "sampling_params": {"max_new_tokens": 5000}}, 5000),
        ("/generate", {"sampling_params": [{"max_new_tokens": 9}, {"max_new_tokens": 5000}]}, 5000),
        (TRITON, {"max_tokens": 9, "parameters": {"max_tokens": 5000}}, 5000),
    ],
)
def test_a_field_that_another_reader_takes_hides_nothing(
    endpoint: str, body: dict[str, Any], asked: int | None
) -> None:
    assert asked_output(endpoint, json.dumps(body).encode()) == asked


@pytest.mark.parametrize(
    ("endpoint", "body", "once"),
    [
        (CHAT, b'{"max_tokens":5000,"max_tokens":9}', {"max_tokens": 9}),
        (CHAT, b'{"max_token\\u0073":5000,"max_tokens":9}', {"max_tokens": 9}),
        (
            "/generate",
            b'{"sampling_params":{"max_new_tokens":5000,"max_new_tokens":9}}',
            {"sampling_params": {"max_new_tokens": 9}},
        ),
    ],
)
def test_a_bound_is_said_once(endpoint: str, body: bytes, once: dict[str, Any]) -> None:
    out = unambiguous(endpoint, body)
    assert json.loads(out) == once
    assert out.count(b"tokens") == 1


def test_a_body_that_says_it_once_keeps_its_bytes() -> None:
    body = b'{ "messages": [{"content": "caf\\u00e9 max_tokens"}],  "max_tokens": 9 }'
    assert unambiguous(CHAT, body) is body


@pytest.mark.parametrize(
    ("body", "completions"),
    [
        (b'{"n":"8","max_tokens":9}', 8),
        (b'{"n":8.0,"best_of":"9"}', 9),
        (b'{"n":8,"instructions":5}', 8),
        (b'{"prompt":["a","b","c"],"n":2}', 6),
        (b'{"prompt":[[1],[2],[3]]}', 3),
        (b'{"prompt":[1,2,3]}', 1),
        (b'{"text":["a","b"],"sampling_params":{"n":"3","max_new_tokens":"5"}}', 6),
        (b'{"text":"a","sampling_params":[{"n":1},{"n":4}]}', 4),
        (b'{"n":8,"use_beam_search":1}', 8),
    ],
)
def test_every_completion_counts_however_it_is_asked_for(body: bytes, completions: int) -> None:
    assert read_work(body).completions == completions
