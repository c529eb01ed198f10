# ruff: noqa: E501  (lines of logs are as long as they are)
"""Engines that tell the stages of each request: TGI, TEI, llama.cpp, TensorRT-LLM, spans."""

from __future__ import annotations

import json

from tailrace.diagnose.causes.gateway.stage_slow import PreprocessSlow
from tailrace.diagnose.causes.mix.cache_miss import CacheMiss
from tailrace.diagnose.causes.mix.structured_output import StructuredOutput
from tailrace.diagnose.causes.scheduler.prefill_steals_decode import PrefillStealsDecode
from tailrace.diagnose.causes.scheduler.queue_saturation import QueueSaturation
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.logs.log import read_log_text


def tei(at: int, *, tokenized: float = 640.0, computed: float = 150.0) -> str:
    whole = tokenized + computed + 0.5
    return f'2026-05-03T08:11:{at:02d}.000000Z  INFO embed{{total_time="{whole}ms" tokenization_time="{tokenized}ms" queue_time="500.0µs" inference_time="{computed}ms"}}: text_embeddings_router::http::server: Success'


def test_tokenising_that_takes_most_of_a_request():
    finding = PreprocessSlow().observe(read_log_text("\n".join(tei(at) for at in range(20)), "tei.log"))
    assert finding is not None
    assert finding.level == "consistent"
    assert "81% > 50%" in finding.relation


def test_quick_tokenising_and_few_lines_are_none():
    assert (
        PreprocessSlow().observe(read_log_text("\n".join(tei(at, tokenized=4.0) for at in range(20)), "a.log")) is None
    )
    assert PreprocessSlow().observe(read_log_text("\n".join(tei(at) for at in range(6)), "a.log")) is None


def tgi(at: int, *, grammar: bool, validated: str) -> str:
    return f'2026-03-01T10:00:{at:02d}.000000Z  INFO generate{{parameters=GenerateParameters {{ max_new_tokens: Some(128), grammar: {"Some(Json(Object {}))" if grammar else "None"} }} total_time="{"6.9s" if grammar else "2.5s"}" validation_time="{validated}" queue_time="2.1ms" inference_time="2.5s" time_per_token="19.1ms" seed="None"}}: text_generation_router::server: Success'


def test_a_grammar_that_is_compiled_before_the_queue():
    lines = [tgi(at, grammar=at % 3 == 0, validated="4.39s" if at % 3 == 0 else "1.9ms") for at in range(30)]
    finding = StructuredOutput().observe(read_log_text("\n".join(lines), "tgi.log"))
    assert finding is not None
    assert "4,392 ms" in finding.statement
    alike = [tgi(at, grammar=at % 3 == 0, validated="1.9ms") for at in range(30)]
    assert StructuredOutput().observe(read_log_text("\n".join(alike), "tgi.log")) is None


def turn(task: int, *, lost: bool, prefill: float = 16000.0) -> str:
    lines = [
        f"slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, sim_best = 0.98{task % 10}, f_keep = 0.9",
        f"slot launch_slot_: id  0 | task {task} | processing task",
        *(
            [
                f"slot update_slots: id  0 | task {task} | forcing full prompt re-processing due to lack of cache data (likely due to SWA)"
            ]
            if lost
            else []
        ),
        f"slot print_timing: id  0 | task {task} | ",
        f"prompt eval time =   {prefill:.2f} ms /  6500 tokens (    2.46 ms per token,   406.25 tokens per second)",
        "       eval time =    5580.00 ms /   180 tokens (   31.00 ms per token,    32.26 tokens per second)",
        "      total time =   21580.00 ms /  6680 tokens",
        f"slot      release: id  0 | task {task} | stop processing: n_tokens = 6680, truncated = 0",
    ]
    return "\n".join(lines)


def test_an_engine_that_says_that_it_computes_prompts_anew():
    finding = CacheMiss().observe(read_log_text("\n".join(turn(at, lost=at > 0) for at in range(7)), "server.log"))
    assert finding is not None
    assert finding.level == "consistent"
    assert "6 of 7 prompts" in finding.statement
    assert "98% or more of each stood in the slot" in finding.relation


def test_one_prompt_anew_or_a_quick_one_is_less_or_nothing():
    once = CacheMiss().observe(read_log_text("\n".join(turn(at, lost=at == 3) for at in range(7)), "server.log"))
    assert once is not None
    assert once.level == "suspected"
    quick = "\n".join(turn(at, lost=True, prefill=90.0) for at in range(7))
    assert CacheMiss().observe(read_log_text(quick, "server.log")) is None
    assert CacheMiss().observe(read_log_text("\n".join(turn(at, lost=False) for at in range(7)), "server.log")) is None


def step(at: int, *, prompt: int = 0, took: float = 17.5, rank: int = 0) -> str:
    return f"[04/02/2026-13:00:{at:02d}] [TRT-LLM] [RANK {rank}] [I] iter = {1000 + at}, global_rank = {rank}, rank = {rank}, currank_total_requests = 0/0, host_step_time = {took}ms, prev_device_step_time = {took - 0.5}ms, timestamp = 2026-04-02 13:00:{at:02d}, num_scheduled_requests: {32 + bool(prompt)}, states = {{'num_ctx_requests': {int(bool(prompt))}, 'num_ctx_tokens': {prompt}, 'num_generation_tokens': 32}}"


def test_steps_of_tensorrt_llm_show_what_streams_wait_for():
    lines = [
        step(at, prompt=8160 if at in (6, 7, 19) else 0, took=1841.0 if at in (6, 7, 19) else 17.5) for at in range(30)
    ]
    seen = read_log_text("\n".join(lines), "trtllm.log")
    assert [item.name for item in seen.series] == [
        "step",
        "step_prefills",
        "step_prompt_tokens",
        "step_decodes",
        "running",
    ]
    assert seen.series[0].axis == "time"
    finding = PrefillStealsDecode().observe(seen)
    assert finding is not None
    assert "8,160 prompt tokens in 1,841 ms and 32 streams waited" in finding.statement
    assert PrefillStealsDecode().observe(read_log_text("\n".join(step(at) for at in range(30)), "trtllm.log")) is None


def test_ranks_step_together_and_the_first_stands_for_all():
    both = "\n".join(line for at in range(10) for line in (step(at), step(at, rank=1)))
    seen = read_log_text(both, "trtllm.log")
    assert len(seen.series[0]) == 10
    assert not seen.understood[0].examples


def spans(*, queue: float, n: int = 12) -> str:
    def one(at: int) -> dict[str, object]:
        begin = 1_750_000_000_000_000_000 + at * 4_000_000_000
        told = {"time_in_queue": queue, "time_to_first_token": queue + 0.1, "e2e": queue + 1.5}
        return {
            "traceId": f"{at + 1:032x}",
            "spanId": f"{at + 1:016x}",
            "name": "llm_request",
            "startTimeUnixNano": str(begin),
            "endTimeUnixNano": str(begin + round((queue + 1.5) * 1e9)),
            "attributes": [
                {"key": f"gen_ai.latency.{key}", "value": {"doubleValue": value}} for key, value in told.items()
            ],
        }

    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm"}}]}
    return json.dumps(
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [one(at) for at in range(n)]}]}]}
    )


def test_queue_time_in_an_engines_spans(tmp_path):
    def observed(text: str):
        path = tmp_path / "trace.json"
        path.write_text(text)
        reader = format_of(text, path.name)
        assert reader is not None
        return reader.read(path, path.name)

    finding = QueueSaturation().observe(observed(spans(queue=8.0)))
    assert finding is not None
    assert finding.level == "suspected"
    assert "84% > 50%" in finding.relation
    assert QueueSaturation().observe(observed(spans(queue=0.02))) is None
    assert QueueSaturation().observe(observed(spans(queue=8.0, n=2))) is None
