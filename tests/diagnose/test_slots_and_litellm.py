"""llama.cpp's slots that lose a conversation, and LiteLLM's configuration beside what a client saw."""

from __future__ import annotations

import json

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.model.finding import Level
from tests.diagnose.foreign_words import asked, everything, of, table


def slot_log(totals, *, cached=(), pace_ms: float = 1.25) -> str:
    lines = ["main: server is listening on http://127.0.0.1:8080"]
    for n, total in enumerate(totals):
        slot, task = f"id  {n % 4} | task {100 * n} |", total - (cached[n] if cached else 0)
        lines += [
            f"slot launch_slot_: {slot} processing task, is_child = 0",
            f"slot update_slots: {slot} new prompt, n_ctx_slot = 40960, n_keep = 0, task.n_tokens = {total}",
            f"slot print_timing: {slot} ",
            f"prompt eval time = {pace_ms * task:10.2f} ms / {task} tokens (1.25 ms per token, 800 tokens per second)",
            "       eval time =    4000.00 ms /   100 tokens (   40.00 ms per token,    25.00 tokens per second)",
            f"      total time = {pace_ms * task + 4000:10.2f} ms / {task + 100} tokens",
        ]
    return "\n".join(lines) + "\n"


def test_a_conversation_that_each_slot_computes_anew(tmp_path):
    found = of(asked(tmp_path, slot_log([24800, 24990, 25210])), "MIX_CACHE_MISS")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "0 of 49790 tokens" in found.statement
    assert "id_slot" in found.advice


@pytest.mark.parametrize(
    "text",
    [
        slot_log([24800, 3100, 17000]),
        slot_log([24800, 24990, 25210], cached=(0, 24700, 24900)),
        slot_log([24800, 24990]),
        slot_log([24800, 24990, 25210], pace_ms=0.001),
    ],
    ids=["other prompts", "found", "two", "costs nothing"],
)
def test_no_lost_conversation_where_none_is(tmp_path, text):
    assert of(asked(tmp_path, text), "MIX_CACHE_MISS") is None


def test_what_a_slot_had_is_cached_tokens(tmp_path):
    text = table("message | prompt tokens | cached (n_past) | prompt eval (ms)", "1 | 24800 | 0 | 31000",
                 "2 | 24990 | 0 | 31237", "3 | 25210 | 12 | 31490")  # fmt: skip
    found = of(asked(tmp_path, text), "MIX_CACHE_MISS")
    assert found is not None
    assert "12 / 49790" in found.relation


CONFIG = """model_list:
  - model_name: m
    litellm_params: {model: openai/m, api_base: "http://vllm:8000/v1"}
litellm_settings:
  request_timeout: 60
  num_retries: 2
"""


@pytest.mark.parametrize(
    ("config", "level"), [(CONFIG, Level.CONSISTENT), (CONFIG.replace("60", "600"), Level.SUSPECTED)]
)
def test_a_timer_of_litellm_ends_answers(tmp_path, config, level):
    (tmp_path / "config.yaml").write_text(config)
    rows = [{"id": "a", "t_send_ms": 0, "t_first_ms": 410, "t_last_ms": 14030, "output_tokens": 900, "status": "ok"}]
    rows += [{"id": str(n), "t_send_ms": 10_000 * n, "t_first_ms": 10_000 * n + 410, "status": "error",
              "t_last_ms": 10_000 * n + 60_000 + n, "output_tokens": 3900, "error": "stream cut"}
             for n in range(1, 4)]  # fmt: skip
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = diagnose_sources([str(tmp_path / "config.yaml"), str(tmp_path / "requests.jsonl")])
    found = of(result, "GW_UPSTREAM_TIMEOUT")
    assert found is not None
    assert found.level is level
    assert ("litellm.request_timeout" in everything(found)) is (level is Level.CONSISTENT)
