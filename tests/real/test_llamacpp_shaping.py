"""Prompts that a real engine refuses, shortened by the gateway in front of it and answered."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children import Child, tailrace_command
from tests.real.conftest import MODEL, get

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread", timeout=180),
]

# The engine's slots hold 2,048 tokens each.
LIMIT = 900
CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends:
  - {{url: "{url}"}}
lanes:
  - name: default
    tokens: {{max_prompt: {limit}, allow_truncation: true, max_output: 8, default_output: 4}}
budgets: {{queue: 60s, first_token: 60s, idle: 60s, total: 120s, unstreamed_total: 120s}}
records: {{dir: "{folder}", sample: 1.0}}
"""
PASSAGES = [
    f"Report {i}. The survey of the valley found {i * 7 % 13} springs, {i * 5 % 11} old barns and a road that the rain "
    "had washed away. Nobody could say who had built the wall along the ridge, or when, and the farmers did not care."
    for i in range(120)
]


@pytest.fixture(scope="module")
def gateway(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    folder: Path = tmp_path_factory.mktemp("shaping")
    (folder / "tailrace.yaml").write_text(CONFIG.format(url=engine, folder=folder / "data", limit=LIMIT))
    child = Child(tailrace_command("serve", "-c", str(folder / "tailrace.yaml"), "--json"))
    try:
        yield child.wait_ready(30)
    finally:
        child.stop()


def ask(url: str, messages: list[dict[str, str]], **more: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    body = {"model": MODEL, "messages": messages, "temperature": 0, **more}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {k.lower(): v for k, v in error.headers.items()}, json.loads(error.read())


def question(passages: list[str]) -> list[dict[str, str]]:
    text = "\n\n".join([*passages, "How many springs did the survey of report 77 find?"])
    return [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": text}]


def test_what_the_engine_refuses_is_shortened_and_answered(engine: str, gateway: Child) -> None:
    long = question(PASSAGES)
    status, _, refused = ask(engine, long, max_tokens=4)
    assert status == 400
    assert refused["error"]["type"] == "exceed_context_size_error"
    # What it has counted teaches the gateway how many bytes of this text make a token.
    for i in range(12):
        status, head, _ = ask(gateway.url, question(PASSAGES[i : i + i % 4 + 1]))
        assert status == 200
        assert "x-tailrace-truncated" not in head
    status, head, answer = ask(gateway.url, long)
    assert status == 200
    assert answer["choices"][0]["message"]["content"]
    counted = answer["usage"]["prompt_tokens"]
    assert LIMIT / 2 < counted <= LIMIT
    before, _, after = head["x-tailrace-truncated"].partition("->")
    assert int(before) > 3000
    assert int(after.partition(";")[0]) <= LIMIT
    assert head["x-tailrace-capped"] == "unset->4"
    assert answer["usage"]["completion_tokens"] <= 4
    models = get(f"{gateway.admin}/healthz")["tokens"]["models"]
    assert models[MODEL]["n"] >= 12
    assert models[MODEL]["error_p50"] < 0.25


def test_a_conversation_that_has_grown_too_long_goes_on(gateway: Child) -> None:
    messages = [{"role": "system", "content": "You are brief."}]
    for i, passage in enumerate(PASSAGES[:40]):
        messages += [{"role": "user", "content": passage}, {"role": "assistant", "content": f"Noted, number {i}."}]
    messages.append({"role": "user", "content": "Which reports have you read?"})
    status, head, answer = ask(gateway.url, messages)
    assert status == 200
    assert answer["usage"]["prompt_tokens"] <= LIMIT
    assert "x-tailrace-truncated" in head


def test_outputs_are_capped_at_a_real_engine(gateway: Child) -> None:
    asked = {"max_tokens": 200, "ignore_eos": True}
    status, head, answer = ask(gateway.url, question(PASSAGES[:1]), **asked)
    assert status == 200
    assert head["x-tailrace-capped"] == "200->8"
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (8, "length")
