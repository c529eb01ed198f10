"""Bodies of each API, shortened: valid afterwards, within the limit by the same count, and nothing else touched."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.prompt_text import open_prompt
from tailrace.gateway.shaper import Shaped, Shaper
from tailrace.gateway.token_keys import TokenLimitsConfig, TokensConfig
from tailrace.gateway.tokenizer import Tokenizers
from tailrace.gateway.work import read_work
from tailrace.govern.text_size import TextSize
from tailrace.govern.token_estimate import TokenEstimates
from tailrace.govern.token_limits import OutputCaps, Over

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def shape(endpoint: str, body: dict[str, Any], limit: int, *, calibrated: bool = False, **more: Any) -> Shaped:
    estimates = TokenEstimates()
    if calibrated:
        for n in range(60):
            estimates.learn("m", TextSize(narrow=100 * n + 50, messages=n % 7 + 1), 25 * n + 40 + 6 * (n % 7))
    limits = TokenLimitsConfig(max_prompt=limit, over=Over.TRUNCATE)
    shaper = Shaper(
        TokensConfig(**more), {"default": limits}, [], tokenizers=Tokenizers(), estimates=estimates, caps=OutputCaps()
    )
    raw = json.dumps(body).encode()
    work = read_work(raw)
    tokens = shaper.estimate(work)
    if tokens is not None:
        work = msgspec.structs.replace(work, prompt_tokens=tokens)
    out = shaper.shape(endpoint, raw, work, lambda _: "default")
    if out.truncated_from is not None:
        # The promise: the same count, of what goes on, is within the limit.
        again = read_work(out.body)
        count = shaper.estimate(again) or again.prompt_tokens
        assert count is not None
        assert count <= limit
        assert count == out.work.prompt_tokens
        # What fits is left alone, so doing it twice changes nothing.
        second = shaper.shape(endpoint, out.body, out.work, lambda _: "default")
        assert (second.body, second.truncated_from, second.refusal) == (out.body, None, None)
    return out


_sentence = st.sampled_from(["Alpha beta.", "gamma\n\n", "世界。", "delta", "Omega!", "\n", "🙂"])
_text = st.lists(_sentence, min_size=1, max_size=90).map(" ".join)
_content = _text | st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, _text)
    | st.just({"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}),
    min_size=1,
    max_size=3,
)


@st.composite
def chats(draw) -> list[dict[str, Any]]:
    """Conversations as agents have them: any system texts, calls of tools with their results, a last user message."""
    out: list[dict[str, Any]] = [{"role": "system", "content": draw(_text)}] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 6))):
        out.append({"role": "user", "content": draw(_content)})
        for call in range(draw(st.integers(0, 2))):
            name = f"call_{turn}_{call}"
            out.append(
                {"role": "assistant", "content": None, "tool_calls": [{"id": name, "function": {"arguments": "{}"}}]}
            )
            out.append({"role": "tool", "tool_call_id": name, "content": draw(_text)})
        out.append({"role": "assistant", "content": draw(_text)})
    if draw(st.booleans()):
        out.append({"role": "user", "content": draw(_text)})
    return out


def _sound_chat(messages: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    called: set[str] = set()
    for message in messages:
        called |= {call["id"] for call in message.get("tool_calls") or ()}
        assert message["role"] != "tool" or message["tool_call_id"] in called
    answered = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    assert called == answered
    roles = [message["role"] for message in messages if message["role"] != "system"]
    old = [message["role"] for message in before if message["role"] != "system"]
    assert set(itertools.pairwise(roles)) <= set(itertools.pairwise(old))
    assert roles[0] == old[0]
    assert roles[-1] == old[-1]


@given(chats(), st.integers(30, 400), st.booleans())
def test_a_shortened_chat_is_a_chat(messages: list[dict[str, Any]], limit: int, calibrated: bool) -> None:
    body = {"model": "m", "messages": messages, "temperature": 0.5, "seed": 7, "logit_bias": {"7": 1e-3}}
    out = shape(CHAT, body, limit, calibrated=calibrated)
    if out.refusal is not None:
        assert out.refusal.status == 400
        return
    new = json.loads(out.body)
    assert {**new, "messages": 0} == {**body, "messages": 0}
    _sound_chat(new["messages"], messages)
    for message in new["messages"]:
        assert message.get("content") != ""
    if messages[0]["role"] == "system":
        assert new["messages"][0]["role"] == "system"


@given(chats(), st.integers(40, 300))
def test_anthropics_form(messages: list[dict[str, Any]], limit: int) -> None:
    system, form = None, []
    for message in messages:
        if message["role"] == "system":
            system = message["content"]
        elif message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            form.append({"role": "user", "content": [result]})
        elif message.get("tool_calls"):
            use = {"type": "tool_use", "id": message["tool_calls"][0]["id"], "name": "f", "input": {"a": 1}}
            form.append({"role": "assistant", "content": [use]})
        else:
            form.append(message)
    body = {"model": "m", "max_tokens": 9, "messages": form, **({} if system is None else {"system": system})}
    out = shape(MESSAGES, body, limit)
    if out.refusal is not None:
        return
    new = json.loads(out.body)
    parts = [p for m in new["messages"] if isinstance(m["content"], list) for p in m["content"]]
    used = {p["id"] for p in parts if p.get("type") == "tool_use"}
    assert used == {p["tool_use_id"] for p in parts if p.get("type") == "tool_result"}
    assert new["messages"][0]["role"] == form[0]["role"]
    assert ("system" in new) == (system is not None)


def test_the_responses_api_with_calls_and_instructions() -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "input_text", "text": "First. " * 40}]}]
    for i in range(20):
        items += [
            {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{i}", "output": "result " * 30},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so " * 30}]},
            {"role": "user", "content": f"question {i}"},
        ]
    body = {"model": "m", "instructions": "Be brief.", "input": items, "text": {"format": {"type": "text"}}}
    out = shape(RESPONSES, body, 400)
    assert out.truncated_from is not None
    new = json.loads(out.body)
    calls = {item["call_id"] for item in new["input"] if item.get("type") == "function_call"}
    assert calls == {item["call_id"] for item in new["input"] if item.get("type") == "function_call_output"}
    assert new["instructions"] == "Be brief."
    assert new["text"] == body["text"]
    assert new["input"][-1]["content"].endswith("question 19")


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        ("/v1/completions", "prompt"),
        (RESPONSES, "input"),
        ("/generate", "text"),
        ("/generate", "inputs"),
        ("/generate_stream", "inputs"),
        ("/v2/models/{model}/generate", "text_input"),
    ],
)
def test_a_prompt_of_one_text(endpoint: str, field: str) -> None:
    text = "Once upon a time. " + "\n\n".join(f"Then came day {i}." for i in range(500)) + " What came last?"
    out = shape(endpoint, {"model": "m", field: text, "stream": False}, 200)
    assert out.truncated_from is not None
    new = json.loads(out.body)
    assert new[field].startswith("Once upon a time.")
    assert new[field].endswith("What came last?")
    assert "left out" in new[field]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": list(range(5000))}),
        ("/v1/completions", {"prompt": ["x " * 2000, "y " * 2000]}),
        ("/v1/embeddings", {"input": "x " * 4000}),
        (CHAT, {"messages": "x" * 9000}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{"description": "y" * 9000}]}),
    ],
)
def test_what_cannot_be_shortened_is_refused_and_says_so(endpoint: str, body: dict[str, Any]) -> None:
    out = shape(endpoint, body, 500)
    assert out.refusal is not None
    assert "cannot be shortened" in out.refusal.message


def test_pictures_are_left_out_of_the_count_or_count_as_configured() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000}}
    body = {"model": "m", "messages": [{"role": "user", "content": [image, {"type": "text", "text": "what?"}]}]}
    assert shape(CHAT, body, 100).refusal is None
    refused = shape(CHAT, body, 100, image_tokens=576).refusal
    assert refused is not None
    long = {"model": "m", "messages": [{"role": "user", "content": [image, {"type": "text", "text": "word " * 900}]}]}
    out = shape(CHAT, long, 700, image_tokens=576)
    assert out.truncated_from == 576 + 1125
    assert json.loads(out.body)["messages"][0]["content"][0] == image


@pytest.mark.parametrize(("truncation", "refused"), [("disabled", True), ("auto", False), (None, False)])
def test_a_client_that_insists_is_refused(truncation: str | None, refused: bool) -> None:
    out = shape(RESPONSES, {"model": "m", "input": "word " * 900, "truncation": truncation}, 300)
    assert (out.refusal is not None) is refused


def test_passages_sent_as_parts_are_one_text() -> None:
    passages = [
        {"type": "text", "text": f"Passage {i} tells of rivers and of hills, at some length. " * 8} for i in range(40)
    ]
    passages[23]["text"] += "The walrus is called Olga. "
    image = {"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}
    question = {"type": "text", "text": "What is the walrus called?"}
    body = {"model": "m", "messages": [{"role": "user", "content": [*passages, image, question]}]}
    out = shape(CHAT, body, 900)
    (text, *rest) = json.loads(out.body)["messages"][0]["content"]
    assert rest == [image, question], "what was not cut keeps its parts"
    assert text["text"].startswith("Passage 0 ")
    assert "Olga" in text["text"]
    kept = shape(CHAT, body, 9000)
    assert kept.truncated_from is None


@pytest.mark.parametrize("messages", [1, 20_001])
def test_what_is_absurdly_long_is_refused_at_once(messages: int) -> None:
    text = "word " * (1_000_000 // messages)
    body = {"model": "m", "messages": [{"role": "user", "content": text}] * messages}
    out = shape(CHAT, body, 100)
    assert out.refusal is not None


def test_a_prefilled_answer_and_its_question_stay() -> None:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{i} " + "word " * 40} for i in range(40)]
    out = shape(CHAT, {"model": "m", "messages": messages}, 300)
    new = json.loads(out.body)["messages"]
    assert [m["role"] for m in new[-2:]] == ["user", "assistant"]
    assert new[-1] == messages[-1]


_KEYS = st.sampled_from(["role", "content", "text", "type", "tool_calls", "input", "output"])
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(_ANY, st.sampled_from([CHAT, MESSAGES, RESPONSES, "/v1/completions", "/generate"]))
def test_nothing_that_clients_send_makes_it_raise(value: Any, endpoint: str) -> None:
    for name in ("messages", "input", "prompt", "text"):
        prompt = open_prompt(endpoint, json.dumps({name: value, "system": value}).encode())
        if prompt is not None:
            assert json.loads(prompt.rewritten([list(turn.texts) for turn in prompt.turns]))[name] is not None
