from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.work import BodyError, Work, read_work, with_fields

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KNOWN = st.sampled_from(
    ["model", "stream", "max_tokens", "messages", "prompt", "stream_options", "temperature", "n", "tools", "x"]
)


def _work(**body: Any) -> Work:
    return read_work(json.dumps(body).encode())


def test_the_fields_of_a_chat_request() -> None:
    work = _work(
        model="m",
        stream=True,
        messages=[{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": None}],
        max_completion_tokens=9,
        max_tokens=5,
        n=2,
        temperature=0,
        stream_options={"include_usage": True},
        response_format={"type": "json_object"},
    )
    assert (work.model, work.stream, work.max_tokens, work.n) == ("m", True, 9, 2)
    assert work.prompt_tokens == 100
    assert work.sampled is False
    assert work.grammar is True
    assert work.usage_asked is True
    assert work.has_stream_options is True


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "x" * 40}, 10),
        ({"prompt": ["x" * 20, "y" * 20]}, 10),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"input": "x" * 8}, 2),
        ({"system": [{"type": "text", "text": "x" * 8}], "messages": [{"role": "user", "content": "y" * 8}]}, 4),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 8}, {"type": "image_url"}]}]}, 2),
        ({"messages": [{"role": "user", "content": "ä" * 8}]}, 4),
        ({"messages": []}, 0),
        ({"text_input": "x" * 8}, 2),
        ({"text": "x" * 8}, 2),
    ],
)
def test_the_prompts_size_is_estimated_from_its_text(body: dict[str, Any], tokens: int) -> None:
    assert _work(**body).prompt_tokens == tokens


def test_a_picture_does_not_make_a_prompt_long() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert _work(messages=[{"role": "user", "content": [image]}]).prompt_tokens == 0


def test_absent_is_not_zero() -> None:
    work = _work(model="m")
    assert (work.max_tokens, work.sampled, work.grammar, work.usage_asked) == (None, None, False, False)
    assert _work(response_format={"type": "text"}).grammar is False
    assert _work(guided_json={"a": 1}).grammar is True


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"1", b"null", b"\xff", b'{"model": "\xff"}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        read_work(body)


def test_a_wrong_type_is_the_engines_business() -> None:
    work = _work(model=5, stream=True, max_tokens="many", messages="x")
    assert (work.model, work.stream, work.max_tokens) == ("", True, None)


@given(st.dictionaries(KNOWN | st.text(max_size=5), JSON, max_size=8))
def test_any_json_object_is_read_and_extended_without_changing_the_rest(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    work = read_work(raw)
    out = json.loads(with_fields(raw, work, {"stream_options": {"include_usage": True}, "return_progress": True}))
    own = body.get("stream_options")
    wanted = {**body, "return_progress": True}
    wanted["stream_options"] = {**(own if isinstance(own, dict) else {}), "include_usage": True}
    assert out == wanted


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(BodyError):
        read_work(data)


def test_the_bytes_of_the_rest_are_kept() -> None:
    raw = b' {"model" : "m", "seed":1e3,\n"messages":[]}'
    out = with_fields(raw, read_work(raw), {"stream_options": {"include_usage": True}})
    assert out == b' {"stream_options":{"include_usage":true},"model" : "m", "seed":1e3,\n"messages":[]}'
    assert with_fields(raw, read_work(raw), {}) is raw


def test_a_name_of_a_megabyte_is_cut_before_it_is_kept() -> None:
    for body in ({"model": "m" * 10**6}, {"model": "m" * 10**6, "n": "wrong"}):
        assert read_work(json.dumps(body).encode()).model == "m" * 256
