from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.cache_key import owner_of, question

CHAT = "/v1/chat/completions"
OWNER = b"o" * 16


def ask(path: str = CHAT, owner: bytes = OWNER, *, semantic: bool = False, scope=(), **body):
    whole = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, **body}
    return question(json.dumps(whole).encode(), path=path, owner=owner, scope=scope, semantic=semantic)


def test_greedy_and_seeded_requests_repeat_and_others_do_not():
    assert ask() is not None
    assert ask(temperature=0.7, seed=7) is not None
    assert ask(temperature=0.7) is None
    assert ask(temperature=None) is None
    assert ask(temperature=True) is None
    assert ask(temperature=0.7, seed=True) is None


def test_embeddings_always_repeat():
    assert question(b'{"model":"e","input":["a"]}', path="/v1/embeddings", owner=OWNER) is not None


def test_what_keeps_a_state_is_never_given_again():
    assert ask("/v1/responses", input="x") is None
    assert ask("/v1/responses", input="x", store=False) is not None
    assert ask("/v1/responses", input="x", store=False, previous_response_id="r1") is None
    assert ask(store=True) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 5000])
def test_what_cannot_be_read_is_no_question(body):
    assert question(body, path=CHAT, owner=OWNER) is None


@pytest.mark.parametrize(
    "more",
    [
        {"user": "u1"},
        {"metadata": {"user_id": "x"}},
        {"priority": 3},
        {"temperature": 0.0},
        {"stream": False},
        {"top_p": None},
    ],
)
def test_keys_that_cannot_change_the_answer_do_not_matter(more):
    assert ask(**more).key == ask().key


@pytest.mark.parametrize(
    "more",
    [
        {"model": "n"},
        {"max_tokens": 5},
        {"messages": [{"role": "user", "content": "hi "}]},
        {"seed": 1},
        {"tools": []},
        {"cache_salt": "a"},
        {"something_new": 1},
        {"stream": True},
        {"tools": [{"default": None}]},
    ],
)
def test_anything_else_does(more):
    assert ask(**more).key != ask().key


def test_a_stream_that_asks_for_its_usage_is_another_one():
    assert ask(stream=True).key != ask(stream=True, stream_options={"include_usage": True}).key


def test_path_owner_and_scope_tell_questions_apart():
    keys = {
        ask().key,
        ask("/v1/completions").key,
        ask(owner=b"p" * 16).key,
        ask(scope=(b"2023-06-01",)).key,
        ask(scope=(b"2023-06-01", b"")).key,
    }
    assert len(keys) == 5


def test_owners_are_told_apart_by_every_part_and_by_the_secret():
    keys = {
        owner_of(b"s", "", ()),
        owner_of(b"s", "a", ()),
        owner_of(b"s", "", (b"a",)),
        owner_of(b"s", "", (b"a", b"")),
        owner_of(b"s", "", (b"", b"a")),
        owner_of(b"t", "a", ()),
    }
    assert len(keys) == 6
    assert all(b"secret-key" not in owner_of(b"s", "", (b"secret-key",)) for _ in "x")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=6), st.randoms(use_true_random=False))
def test_order_and_white_space_never_matter(body, random):
    body["temperature"] = 0
    items = list(body.items())
    random.shuffle(items)
    a = question(json.dumps(body).encode(), path=CHAT, owner=OWNER)
    b = question(
        json.dumps(dict(items), indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass"), path=CHAT, owner=OWNER
    )
    if a is not None and b is not None:  # a lone surrogate can be written in one of the two spellings only
        assert a.key == b.key
    else:
        assert "\\ud" in json.dumps(body)


def test_the_semantic_partition_leaves_out_the_last_text_only():
    a = ask(semantic=True, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "one"}])
    b = ask(semantic=True, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "two"}])
    c = ask(semantic=True, messages=[{"role": "system", "content": "t"}, {"role": "user", "content": "one"}])
    assert a.partition == b.partition != c.partition
    assert (a.text, b.text) == ("one", "two")
    assert a.key != b.key
    assert ask(semantic=True, owner=b"p" * 16).partition != ask(semantic=True).partition


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
        [],
    ],
)
def test_what_is_no_text_of_the_user_is_not_compared_by_meaning(messages):
    found = ask(semantic=True, messages=messages)
    assert (found.partition, found.text) == (b"", "")


@pytest.mark.parametrize(
    "heavy",
    [b"[" + b"1," * 1_900_000 + b"1]", b"[" + b"{}," * 30_000 + b"1]", b"[" + b"[1,2]," * 8_000 + b"1]"],
)
def test_what_would_take_the_loop_long_to_read_is_no_question(heavy: bytes) -> None:
    assert question(b'{"temperature":0,"x":' + heavy + b"}", path=CHAT, owner=b"") is None


def test_a_long_text_is_a_question() -> None:
    body = b'{"temperature":0,"messages":[{"role":"user","content":"' + b"well, then " * 90_000 + b'"}]}'
    assert question(body, path=CHAT, owner=b"") is not None
