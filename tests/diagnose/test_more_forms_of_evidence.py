"""Causes of scheduler, device and mix in other forms than their usual one: forms' keys, wide tables, small requests."""

from __future__ import annotations

import json

import pytest

from tailrace.app.diagnose import diagnose_sources


@pytest.fixture
def ask(tmp_path):
    """name -> text of several files -> the codes found, the surest first."""

    def answer(**files: str) -> list[str]:
        paths = []
        for name, text in files.items():
            path = tmp_path / name.replace("__", ".")
            path.write_text(text, encoding="utf-8")
            paths.append(str(path))
        return [finding.code for finding in diagnose_sources(paths).findings]

    return answer


def form(**context: object) -> str:
    return json.dumps({"facts": 1, "context": context})


def requests(rows: list[tuple[int, int, int]], **more: object) -> str:
    """(sent, first token (ms), prompt tokens)."""
    return "\n".join(
        json.dumps(
            {"id": str(n), "t_send_ms": send, "t_first_ms": first, "t_last_ms": first + 600, "prompt_tokens": tokens,
             "output_tokens": 50, "status": "ok", **more}
        )
        for n, (send, first, tokens) in enumerate(rows)
    )  # fmt: skip


CALM = [(n * 1500, n * 1500 + 70, 300 + n) for n in range(6)]


def test_one_long_prompt_holds_the_short_ones_behind_it(ask):
    behind = [(11000 + n * 900, 24010 + n * 15, 310 + n) for n in range(7)]
    found = ask(r__jsonl=requests([*CALM, (10000, 24000, 110000), *behind]))
    assert found[0] == "SCHED_HOL_LONG_PREFILL"


def test_short_requests_that_overtake_a_long_one_wait_for_nobody(ask):
    beside = [(11000 + n * 900, 11080 + n * 900, 310 + n) for n in range(7)]
    assert "SCHED_HOL_LONG_PREFILL" not in ask(r__jsonl=requests([*CALM, (10000, 24000, 110000), *beside]))


CLASSES = (
    "| order | short TTFT p99 (ms) | long TTFT p99 (ms) |\n|---|---|---|\n"
    "| arrival | {} | {} |\n| lanes | 290 | 12100 |\n"
)


@pytest.mark.parametrize(("short", "holds"), [(9600, True), (900, False)])
def test_classes_in_columns_are_compared(ask, short, holds):
    assert ("SCHED_HOL_LONG_PREFILL" in ask(t__md=CLASSES.format(short, 10300))) is holds


@pytest.mark.parametrize(("rate", "holds"), [(6000, True), (24000, False)])
def test_a_gap_of_a_table_is_one_chunk_at_the_stated_rate(ask, rate, holds):
    table = "| stream | longest gap (ms) |\n|---|---|\n| a | 2710 |\n| b | 2700 |\n| c | 2730 |\n"
    found = ask(t__md=table, f__json=form(max_num_batched_tokens=16384, prefill_tok_s=rate, kv_usage_pct=30))
    assert ("SCHED_PREFILL_STEALS_DECODE" in found) is holds


def sglang(streams: int, made: float) -> str:
    lines, at = [], 0
    for _ in range(3):
        for _ in range(12):
            lines.append(
                f"[2026-03-01 10:{at // 60:02d}:{at % 60:02d}] Prefill batch. #new-seq: 1, #new-token: 8192, "
                f"#cached-token: 0, token usage: 0.30, #running-req: {streams}, #queue-req: 9, "
            )
            at += 1
        lines.append(
            f"[2026-03-01 10:{at // 60:02d}:{at % 60:02d}] Decode batch. #running-req: {streams}, #token: 90000, token "
            f"usage: 0.30, cuda graph: True, gen throughput (token/s): {made}, #queue-req: 9, "
        )
    return "\n".join(lines)


@pytest.mark.parametrize(("made", "holds"), [(3.5, True), (900.0, False)])
def test_prefill_batches_in_a_row_starve_streams_only_where_they_crawl(ask, made, holds):
    assert ("SCHED_PREFILL_STEALS_DECODE" in ask(s__log=sglang(50, made))) is holds


def gaps(chunk_s: float) -> str:
    rows, at = ["t_s,gap_ms_stream_a,gap_ms_stream_b,engine_running"], 0.0
    for n in range(22):
        stop = 7 <= n < 15
        at += chunk_s if stop else 2.0
        gap = chunk_s * 1e3 if stop else 40
        rows.append(f"{at:.1f},{gap:.0f},{gap + 2:.0f},3")
    return "\n".join(rows)


def test_stops_as_long_as_a_chunk_are_prefill_and_no_collector(ask):
    found = ask(s__csv=gaps(5.0), f__json=form(max_num_batched_tokens=10000, prefill_tok_s=2000, kv_usage_pct=[20, 30]))
    assert found[0] == "SCHED_PREFILL_STEALS_DECODE"
    assert "FE_GC_PAUSE" not in found


def test_stops_of_another_length_than_the_chunk_are_not_prefill(ask):
    found = ask(s__csv=gaps(5.0), f__json=form(max_num_batched_tokens=10000, prefill_tok_s=20000, kv_usage_pct=20))
    assert "SCHED_PREFILL_STEALS_DECODE" not in found


@pytest.mark.parametrize(("made", "code"), [(0, "SCHED_ADMISSION_DEADLOCK"), (40, None)])
def test_a_queue_that_stands_still_may_be_stated(ask, made, code):
    told = form(running=0, waiting=4, prompt_tok_s=0, gen_tok_s=made, duration_s=300, prompt_tokens=140000,
                kv_capacity_tokens=98304)  # fmt: skip
    assert (code or "SCHED_ADMISSION_DEADLOCK") not in ask(f__json=told) or code is not None
    if code:
        assert ask(f__json=told)[0] == code


SWEEP = (
    "| clients | running | output tok/s | TTFT p50 (s) | TPOT p50 (ms) |\n|---|---|---|---|---|\n"
    "| 8 | 8 | 400 | 0.1 | 20 |\n| 16 | 16 | 790 | 0.1 | 20.4 |\n| 32 | {a} | 800 | 8 | {p} |\n"
    "| 64 | {a} | 800 | 25 | {p} |\n"
)


@pytest.mark.parametrize(("running", "pace", "holds"), [(16, 20.5, True), (16, 45, False)])
def test_running_that_stops_following_the_clients_is_a_cap_where_tokens_stay_as_fast(ask, running, pace, holds):
    assert ("TUNE_NOT_SCALE" in ask(t__md=SWEEP.format(a=running, p=pace))) is holds


@pytest.mark.parametrize(("low", "holds"), [(30.9, True), (16.0, False)])
def test_keys_that_differ_in_one_word_are_two_arms(ask, low, holds):
    found = ask(f__json=form(tpot_bf16_ms=31.2, tpot_fp8_ms=low, batch_size=1))
    assert ("COMPUTE_QUANT_FALLBACK" in found) is holds


def test_lists_of_one_length_are_arms_where_something_changed(ask):
    told = form(
        changed="vLLM 0.10.1 -> 0.11.0", tpot_p50_ms=[21.0, 33.9], concurrency=[64, 64], prompt_tokens=[900, 900]
    )
    assert "COMPUTE_KERNEL_REGRESSION" in ask(f__json=told)
    assert "COMPUTE_KERNEL_REGRESSION" not in ask(f__json=form(tpot_p50_ms=[21.0, 33.9]))


MIX = [("before", 6, 24), ("after", 18, 12)]


def windows(slower: float) -> str:
    rows = []
    for arm, longs, shorts in MIX:
        late = slower if arm == "after" else 1.0
        lengths = [12000] * longs + [450] * shorts
        for n, tokens in enumerate(lengths):
            first = n * 3000 + int((1900 if tokens > 1000 else 180) * late)
            rows.append(
                json.dumps({"id": f"{arm}{n}", "arm": arm, "t_send_ms": n * 3000, "t_first_ms": first,
                            "t_last_ms": first + 900, "prompt_tokens": tokens + n, "output_tokens": 40, "status": "ok"})
            )  # fmt: skip
    return "\n".join(rows)


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (2.0, False)])
def test_two_windows_of_requests_differ_in_their_mix_only_where_each_class_is_as_fast(ask, slower, holds):
    assert ("MIX_SHIFT" in ask(r__jsonl=windows(slower))) is holds


@pytest.mark.parametrize(("cached", "holds"), [(31, True), (8000, False)])
def test_prefill_lines_tell_what_the_prefix_cache_found(ask, cached, holds):
    line = (
        "[2026-03-01 10:00:{:02d}] Prefill batch. #new-seq: 1, #new-token: 4000, #cached-token: {}, token usage: 0.03, "
        "#running-req: 0, #queue-req: 0, "
    )
    log = "\n".join(line.format(n * 4, cached) for n in range(8))
    told = form(prompts="one session, the same prefix in every turn", repeat_ratio_offered=0.7)
    assert ("MIX_CACHE_MISS" in ask(s__log=log, f__json=told)) is holds


PROCESSES = "gpu_index, pid, process_name, used_gpu_memory [MiB]\n0, 11, python3 VLLM::EngineCore, 58000 MiB\n"


@pytest.mark.parametrize("there", [True, False])
def test_a_table_of_processes_names_a_stranger(ask, there):
    listed = PROCESSES + ("0, 12, python finetune.py, 9000 MiB\n" if there else "1, 13, python finetune.py, 9000 MiB\n")
    table = "| when | running | TPOT p50 (ms) |\n|---|---|---|\n| Mon | 4 | 13 |\n| Thu | 4 | 25 |\n"
    assert ("COMPUTE_GPU_SHARED" in ask(p__csv=listed, t__md=table)) is there


@pytest.mark.parametrize(("rate", "holds"), [(147, True), (60, False)])
def test_a_parser_that_holds_tokens_back_leaves_the_decode_rate_as_it_was(ask, rate, holds):
    table = "| tool parser | longest silence (s) | decode tok/s |\n|---|---|---|\n"
    table += f"| old | 12.0 | {rate} |\n| new | 0.3 | 148 |\n"
    assert ("STREAM_GAP_AT_POSITION" in ask(t__md=table)) is holds


def test_a_heading_with_the_counts_of_an_option_is_read(ask):
    table = "| day | requests with n>1 (%) | requests | TPOT p50 (ms) |\n|---|---|---|---|\n"
    table += "| a | 2 | 400 | 21 |\n| b | 46 | 401 | 44 |\n"
    assert isinstance(ask(t__md=table), list)  # a change in percent before the level it belongs to
