"""Clients as people use them, unmodified, through the gateway on a real engine."""

import json
import time

import pytest

from tests.children import health_code, run_tailrace
from tests.real.conftest import MODEL
from tests.real.stream_client import SAME_WORK, body, stream

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread", timeout=120),
]

CHAT = [{"role": "user", "content": "Say something about rivers."}]


@pytest.fixture(scope="module")
def sdk(stack):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.needs("openai")
def test_openai_sdk_streaming(sdk, stack):
    stream = sdk.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=12, stream=True, extra_body=SAME_WORK)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].choices[0].finish_reason == "length"  # no usage was asked for: none of ours may leak
    assert all(chunk.usage is None for chunk in chunks)
    record = stack.wait_for_records(1, of=lambda one: one.get("output_tokens") == 12)[-1]
    assert record["outcome"] == "completed"
    assert record["output_tokens_source"] == "usage"


@pytest.mark.needs("openai")
def test_openai_sdk_whole_answer(sdk):
    raw = sdk.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=8, extra_body=SAME_WORK)
    answer = raw.parse()
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].message.content
    assert raw.headers["x-request-id"]
    assert "ingress" in raw.headers["server-timing"]


@pytest.mark.needs("openai")
def test_openai_sdk_tools(sdk):
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    answer = sdk.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=16, tools=[tool], tool_choice="auto", extra_body=SAME_WORK
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


@pytest.mark.needs("openai")
def test_openai_sdk_errors_are_the_engines_own(sdk, stack):
    import openai

    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 6000}], max_tokens=4)
    assert "context" in str(refused.value)
    record = stack.wait_for_records(1, of=lambda one: one.get("reason") == "input_too_long")[-1]
    assert (record["outcome"], record["http_status"]) == ("rejected", 400)
    with pytest.raises(openai.NotFoundError):
        sdk.get("/nothing", cast_to=object)


@pytest.mark.needs("openai")
def test_openai_sdk_timeout_is_a_cancellation(sdk, stack):
    import openai

    with pytest.raises(openai.APITimeoutError):
        sdk.with_options(timeout=0.3).chat.completions.create(
            model=MODEL, messages=CHAT, max_tokens=300, extra_body=SAME_WORK
        )
    record = stack.wait_for_records(1, of=lambda one: one["outcome"] == "cancelled")[-1]
    assert record["reason"] == "client_disconnect"


def test_leaving_in_decode_frees_the_slot(stack, busy_slots):
    deadline = time.monotonic() + 30
    while busy_slots():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    seen = stream(stack.url, body("Tell a story about a fox.", 400), leave_after=3)
    left = time.monotonic()
    while busy_slots():
        assert time.monotonic() - left < 1, "the engine went on for a client that had left"
        time.sleep(0.01)
    (record,) = stack.wait_for_records(1, of=lambda one: one["request_id"] == seen["id"])
    assert (record["outcome"], record["reason"]) == ("cancelled", "client_disconnect")
    assert record["died_in"] == "decode"


def test_bench_needs_no_tokenizer(stack, tmp_path):
    out = tmp_path / "real.run"
    done = run_tailrace(
        "bench", stack.url, "--requests", "24", "--concurrency", "8", "--prompt-tokens", "20", "--output-tokens", "12",
        "--out", str(out), "--json", timeout=90,
    )  # fmt: skip
    assert done.returncode == health_code(out), done.stderr
    said = json.loads(done.stdout)
    assert said["n"] == 24
    assert said["errors"] == {}
    metrics = said["metrics"]
    for name in ("ttft_ms", "tpot_ms", "chunk_gap_ms", "e2e_ms"):
        assert metrics[name]["n"] > 0
        assert metrics[name]["p50"] > 0
    assert metrics["ttft_ms"]["p50"] < metrics["e2e_ms"]["p50"]
    assert said["tokens_per_s"] > 0
    assert out.exists()
