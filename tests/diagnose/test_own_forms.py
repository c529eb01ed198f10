"""Forms, tables, series and logs in somebody's own names: what is stated is judged whatever it stands in."""

import json

import pytest

from tailrace.model.finding import Level
from tests.diagnose.evidence_texts import asked, unshown


@pytest.fixture
def ask(tmp_path):
    """(name, text) pairs -> diagnosis. Each number of a statement stands in the evidence or the relation."""

    def answer(*files: tuple[str, object]):
        texts = {name.replace(".", "_"): text if isinstance(text, str) else json.dumps(text) for name, text in files}
        result = asked(tmp_path, **texts)
        for finding in result.findings:
            assert not unshown(finding), finding.statement
        return result

    return answer


def codes(result) -> list[str]:
    return [finding.code for finding in result.findings if finding.level is not Level.INSUFFICIENT]


# -- nested groups of a form are arms


@pytest.mark.parametrize(
    "form",
    [
        {"card": "X", "batch": 1, "weights": {"fp16": {"inter_token_ms": 24.0}, "fp8": {"inter_token_ms": 23.7}}},
        {"batch": 1, "tpot_ms": {"fp16": 24.0, "fp8": 23.7}},
        {"facts": 1, "context": {"batch": 1, "fp16": {"tpot_ms": 24.0}, "fp8": {"tpot_ms": 23.7}}},
    ],
)
def test_low_precision_as_slow_as_the_whole_is_told_from_any_nesting(ask, form):
    assert codes(ask(("form.json", form)))[:1] == ["COMPUTE_QUANT_FALLBACK"]


def test_low_precision_that_is_faster_is_no_fallback(ask):
    assert not codes(ask(("form.json", {"batch": 1, "tpot_ms": {"fp16": 24.0, "fp8": 13.0}})))


def test_a_percentage_of_a_form_is_no_impossible_number(ask):
    result = ask(("form.json", {"profile": {"gpu_util": 100, "power_w": 300}, "tpot_ms": 30, "batch": 2}))
    assert "METRIC_BUG" not in codes(result)


# -- speech that is stated


def test_silence_between_two_stated_times_while_somebody_speaks_is_a_hang(ask):
    form = {"socket": "open", "last_text_at_s": 12.0, "now_s": 47.0, "speech_sent_since_s": 30.0}
    result = ask(("stt.json", form))
    assert codes(result)[:1] == ["ASR_SILENT_HANG"]
    assert "35" in result.findings[0].relation


@pytest.mark.parametrize("drop", ["speech_sent_since_s", "now_s", "last_text_at_s"])
def test_a_hang_needs_both_times_and_the_speech(ask, drop):
    form = {"socket": "open", "last_text_at_s": 12.0, "now_s": 47.0, "speech_sent_since_s": 30.0, "rtt_ms": 4}
    del form[drop]
    assert "ASR_SILENT_HANG" not in codes(ask(("stt.json", form)))


@pytest.mark.parametrize(
    ("flag", "hangs"), [("speech_present", True), ("voice_mode", False), ("has_voice_agent", False)]
)
def test_an_agent_with_a_voice_says_not_that_somebody_spoke(ask, flag, hangs):
    form = {"socket": "open", "last_text_at_s": 12.0, "now_s": 47.0, flag: True, "rtt_ms": 4}
    assert ("ASR_SILENT_HANG" in codes(ask(("stt.json", form)))) is hangs


def series(voice: int) -> str:
    rows = [f"{t},{voice},{min(t * 9, 90)},1" for t in range(0, 60, 5)]
    return "\n".join(["t_s,voice_active,words_total,open", *rows]) + "\n"


def test_a_count_of_words_that_stands_still_under_speech_is_a_hang(ask):
    result = ask(("stt.csv", series(1)))
    assert codes(result)[:1] == ["ASR_SILENT_HANG"]


def test_a_count_of_words_that_stands_still_in_silence_is_right(ask):
    assert "ASR_SILENT_HANG" not in codes(ask(("stt.csv", series(0))))


def test_blank_deltas_are_counted_from_a_form(ask):
    form = {"window_s": 100, "deltas": 900, "blank_deltas": 891, "speech_present": True, "itl_ms": 80}
    result = ask(("stt.json", form))
    assert codes(result)[:1] == ["ASR_EMPTY_DELTAS"]
    assert "99.0%" in result.findings[0].relation
    silent = ask(("stt2.json", {**form, "speech_present": False}))
    assert silent.findings[0].level is Level.SUSPECTED  # nobody says that somebody spoke
    assert "ASR_EMPTY_DELTAS" not in codes(ask(("stt3.json", {**form, "blank_deltas": 90})))


@pytest.mark.parametrize(("bytes_", "wanted"), [(2_880_000, True), (1_920_000, False)])
def test_bytes_in_all_against_the_configured_rate(ask, bytes_, wanted):
    form = {"session": {"sample_rate": 16000, "bytes_received": bytes_, "wall_seconds": 60, "format": "pcm16"}}
    result = ask(("session.json", form))
    assert ("AUDIO_RATE_MISMATCH" in codes(result)) is wanted
    if wanted:
        assert "1.500 times" in result.findings[0].statement
        assert "24000" in result.findings[0].statement


@pytest.mark.parametrize(("source", "wanted"), [("microphone", True), ("file", False), ("file, paced", True)])
def test_a_file_that_is_sent_as_fast_as_it_goes_tells_no_rate(ask, source, wanted):
    form = {"sample_rate": 16000, "bytes_received": 2_880_000, "wall_seconds": 60, "source": source}
    assert ("AUDIO_RATE_MISMATCH" in codes(ask(("session.json", {"session": form})))) is wanted


def test_a_configuration_in_yaml_says_the_rate(ask):
    rows = "\n".join(f"{t},{t * 48000},{t * 1.5}" for t in range(0, 60, 10))
    table = ("stream.csv", f"t_s,bytes_total,audio_received_s\n{rows}\n")
    yaml = ("server.yaml", "audio:\n  sample_rate: 16000\n  channels: 1\nlimits:\n  sessions: 8\n")
    result = ask(table, yaml)
    assert codes(result)[:1] == ["AUDIO_RATE_MISMATCH"]
    assert not codes(ask(table))  # without any rate it may be a file that is sent as fast as it goes


def test_synthesis_longer_than_its_audio_starves_the_player(ask):
    rows = "\n".join(f"{n},200,{audio},{audio * 1.25}" for n, audio in enumerate((4, 5, 6, 3), start=1))
    result = ask(("tts.csv", f"utterance,first_audio_ms,audio_len_s,synthesis_s\n{rows}\n"))
    assert codes(result)[:1] == ["AUDIO_UNDERRUN"]
    fast = rows.replace("5.0", "2.0").replace("6.25", "2.5").replace("7.5", "3.0").replace("3.75", "1.5")
    assert "AUDIO_UNDERRUN" not in codes(
        ask(("tts2.csv", f"utterance,first_audio_ms,audio_len_s,synthesis_s\n{fast}\n"))
    )


def test_wall_time_over_audio_of_a_paced_sender_is_no_rtf(ask):
    arm = {"sessions": 1, "audio_s": 60.0, "wall_s": 61.2, "busy_s": 9.0, "rtf": 1.02}
    result = ask(("form.json", {"facts": 1, "arms": {"one": arm}, "context": {"note": "paced"}}))
    assert codes(result) == ["METRIC_BUG"]
    assert "0.15" in result.findings[0].statement
    true = ask(("form2.json", {"facts": 1, "arms": {"one": {**arm, "busy_s": 61.0}}, "context": {}}))
    assert "METRIC_BUG" not in codes(true)


def test_turns_with_stamps_only_have_their_delays(ask):
    rows = "\n".join(f"{n},{n * 20},{n * 20 + 0.3},{n * 20 + 1.82}" for n in range(1, 6))
    turns = ("turns.csv", f"turn,user_stopped_s,final_s,eot_s\n{rows}\n")
    result = ask(turns, ("vad.yaml", "vad:\n  min_silence_duration: 1.7\n  model: x\n"))
    assert codes(result)[:1] == ["ASR_VAD_SILENCE_LONG"]


# -- logs of no known engine


def test_a_log_of_named_numbers_is_a_series(ask):
    lines = [f"[09:00:{s:02d}] active=7 pending=0 ctx_tok/s=0 gen_tok/s={rate} kv=0.06" for s, rate in
             ((0, 400), (10, 0.4), (20, 0.3), (30, 0.5))]  # fmt: skip
    assert codes(ask(("engine.log", "\n".join(lines) + "\n")))[:1] == ["ENGINE_STALL"]
    healthy = [line.replace("=0.4", "=399").replace("=0.3", "=401").replace("=0.5", "=402") for line in lines]
    assert not codes(ask(("engine2.log", "\n".join(healthy) + "\n")))


# -- requests


def test_a_first_token_that_counts_from_the_send_is_no_stamp(ask):
    rows = "\n".join(f"r{n},2026-01-02 10:00:{n:02d},{140 + n},2100" for n in range(1, 9))
    result = ask(("requests.csv", f"request_id,sent_at,first_token_ms,total_ms\n{rows}\n"))
    assert "METRIC_BUG" not in codes(result)


def test_requests_with_beams_are_the_slow_ones(ask):
    rows = [
        {"id": n, "num_beams": 4 if n % 2 else 1, "latency_s": 9.0 if n % 2 else 2.5, "tokens": 180} for n in range(10)
    ]
    result = ask(("requests.jsonl", "\n".join(map(json.dumps, rows))))
    assert codes(result)[:1] == ["MIX_DECODING_OPTIONS"]
    longer = [{**row, "tokens": 700 if row["num_beams"] > 1 else 180} for row in rows]
    assert "MIX_DECODING_OPTIONS" not in codes(ask(("r2.jsonl", "\n".join(map(json.dumps, longer)))))


def test_repeated_prompts_that_never_hit_the_cache(ask):
    rows = [{"id": n, "prompt_hash": "a", "input_tokens": 5000, "cached_tokens": 0, "ttft_s": 1.2} for n in range(6)]
    assert codes(ask(("r.jsonl", "\n".join(map(json.dumps, rows)))))[:1] == ["MIX_CACHE_MISS"]
    other = [{**row, "prompt_hash": f"p{row['id']}"} for row in rows]
    assert "MIX_CACHE_MISS" not in codes(ask(("r2.jsonl", "\n".join(map(json.dumps, other)))))
    named = [{"template": "a", **{key: value for key, value in row.items() if key != "prompt_hash"}} for row in rows]
    result = ask(("r3.jsonl", "\n".join(map(json.dumps, named))))
    assert [one.level for one in result.findings if one.code == "MIX_CACHE_MISS"] == [Level.SUSPECTED]


@pytest.mark.parametrize(
    ("stated", "bursts"),
    [
        ({"arrival_cv": 2.0}, True),
        ({"burstiness": 0.25}, True),
        ({"burstiness": 4.0}, False),
        ({"arrival_cv": 0.3}, False),
    ],
)
def test_burstiness_is_the_shape_of_a_gamma_distribution(ask, stated, bursts):
    form = {**stated, "queue_mean_ms": 900, "service_time_ms": 100, "rate_rps": 2}
    result = ask(("form.json", {"facts": 1, "context": form}))
    assert ("MIX_BURSTY_ARRIVALS" in codes(result)) is bursts
    if bursts:
        assert "2.00 (coefficient of variation, as stated" in " ".join(one.text for one in result.findings[0].evidence)


# -- classes before and after


def table(after: tuple[float, float]) -> str:
    return (
        "| class | share before | mean TTFT before (ms) | share after | mean TTFT after (ms) |\n|---|---|---|---|---|\n"
        f"| short | 80 % | 200 | 50 % | {after[0]} |\n| long | 20 % | 2000 | 50 % | {after[1]} |\n"
        "| all | 100 % | 560 | 100 % | 1100 |\n"
    )


def test_the_row_of_all_classes_is_none_of_them(ask):
    assert codes(ask(("mix.md", table((200, 2010)))))[:1] == ["MIX_SHIFT"]
    assert "MIX_SHIFT" not in codes(ask(("mix2.md", table((420, 4300)))))


def test_counts_of_classes_give_their_shares(ask):
    head = "class,requests_before,mean_e2e_before_s,requests_after,mean_e2e_after_s"
    text = f"{head}\nchat,9000,1.4,6000,1.4\nlong,500,9,3000,9\n"
    assert codes(ask(("mix.csv", text)))[:1] == ["MIX_SHIFT"]


@pytest.mark.parametrize(("ttft", "wanted"), [(800, True), (2400, False)])
def test_longer_prompts_explain_what_grew_with_them(ask, ttft, wanted):
    form = {
        "last_week": {"avg_input_tokens": 700, "p50_ttft_ms": 200, "rps": 6},
        "this_week": {"avg_input_tokens": 2800, "p50_ttft_ms": ttft, "rps": 6},
    }
    assert ("MIX_SHIFT" in codes(ask(("form.json", form)))) is wanted


# -- compute


def test_a_late_rank_in_columns(ask):
    head = "step,rank0_launch_us,rank1_launch_us,rank2_launch_us,rank3_launch_us,step_ms\n"
    late = "\n".join(f"{n},{120 + n},{130 - n},{14000 + n},125,40" for n in range(1, 7))
    even = "\n".join(f"{n},{120 + n},{130 - n},{128 + n},125,40" for n in range(1, 7))
    assert codes(ask(("steps.csv", f"{head}{late}\n")))[:1] == ["COMPUTE_RANK_SKEW"]
    assert "COMPUTE_RANK_SKEW" not in codes(ask(("steps2.csv", f"{head}{even}\n")))
    gap = late.replace("\n3,123,127,14003,125,40", "\n3,,,,,40")
    assert codes(ask(("steps3.csv", f"{head}{gap}\n")))[:1] == ["COMPUTE_RANK_SKEW"]


def test_counts_of_ranks_are_no_times(ask):
    rows = "\n".join(f"{n},10,30,40" for n in range(6))
    assert "COMPUTE_RANK_SKEW" not in codes(ask(("steps.csv", f"step,rank0_experts,rank1_experts,step_ms\n{rows}\n")))


@pytest.mark.parametrize("drop", ["", "all_streams_freeze_together", "freeze_s"])
def test_streams_that_freeze_together(ask, drop):
    form = {"streams": 6, "all_streams_freeze_together": True, "freeze_s": 3.5, "batch_before": 4, "batch_after": 5,
            "jit_line_in_log": False, "kv_usage_pct": 12}  # fmt: skip
    form.pop(drop, None)
    result = ask(("form.json", {"facts": 1, "context": form}))
    assert ("COMPUTE_STALL" in codes(result)) is (not drop)
    assert all(finding.level is not Level.CONSISTENT for finding in result.findings)


@pytest.mark.parametrize(
    "more",
    [
        {"gpu_util_pct": 0, "long_prefill_in_all_streams_then": "yes"},
        {"gpu_util_pct": 0, "prefill_separate_from_decode_seen": "Yes"},
        {"batch_size_changed": False},
        {"batch_size_changed": "No"},
    ],
)
def test_a_prefill_or_a_batch_that_did_not_change_is_no_stop_of_the_step(ask, more):
    form = {"streams": 6, "all_streams_freeze_together": True, "freeze_s": 3.5, **more}
    assert "COMPUTE_STALL" not in codes(ask(("form.json", {"facts": 1, "context": form})))


@pytest.mark.parametrize(
    ("frame", "compiles"),
    [
        ("compile (triton/compiler/compiler.py:300)", True),
        ("call (torch/_inductor/codecache.py:90)", True),
        ("_fn (torch/_dynamo/eval_frame.py:600)", False),
        ("__call__ (torch/_inductor/output_code.py:460)", False),
    ],
)
def test_a_quoted_frame_of_a_compiler_and_one_of_what_it_made(ask, frame, compiles):
    form = {"ttft_ms": 4000, "py_spy_top": frame, "running": 4}
    assert ("COMPUTE_JIT" in codes(ask(("form.json", {"facts": 1, "context": form})))) is compiles


@pytest.mark.parametrize(
    ("line", "compiles"),
    [
        ("Compiling kernel fused_moe took 3.2 s during inference", True),
        ("Compiling CUDA kernels took 30.2 s", False),
        ("Compiled kernel fused_moe took 3.2 s during warmup", False),
    ],
)
def test_kernels_that_are_compiled_at_the_start_hold_nobody_up(ask, line, compiles):
    form = {"ttft_ms": 4000, "log": line, "running": 4}
    assert ("COMPUTE_JIT" in codes(ask(("form.json", {"facts": 1, "context": form})))) is compiles


def test_rows_with_a_neighbour_on_the_device(ask):
    head = "| window | other processes on GPU | TPOT p50 (ms) |\n|---|---|---|\n"
    text = f"{head}| 1 | 0 | 20 |\n| 2 | 1 | 39 |\n| 3 | 1 | 40 |\n| 4 | 0 | 21 |\n"
    assert codes(ask(("t.md", text)))[:1] == ["COMPUTE_GPU_SHARED"]
    assert "COMPUTE_GPU_SHARED" not in codes(ask(("t2.md", text.replace("39", "20").replace("40", "21"))))
    loads = "| window | other processes on GPU | concurrency | TPOT p50 (ms) |\n|---|---|---|---|\n"
    fuller = f"{loads}| 1 | 0 | 4 | 20 |\n| 2 | 1 | 32 | 39 |\n| 3 | 1 | 32 | 40 |\n| 4 | 0 | 4 | 21 |\n"
    assert "COMPUTE_GPU_SHARED" not in codes(ask(("t3.md", fuller)))
    assert codes(ask(("t4.md", fuller.replace("| 32 |", "| 4 |"))))[:1] == ["COMPUTE_GPU_SHARED"]


def test_neighbours_of_a_search_compute_on_no_device(ask):
    form = {"nearest_neighbors": 10, "batch": 8, "tpot_ms": {"old": 20, "new": 31}}
    assert "COMPUTE_GPU_SHARED" not in codes(ask(("form.json", {"facts": 1, "context": form})))
    noisy = {**form, "noisy_neighbor": "training"}
    assert "COMPUTE_GPU_SHARED" in codes(ask(("form2.json", {"facts": 1, "context": noisy})))


def test_pauses_before_single_requests(ask):
    slow = "\n".join(f"{n},{30 if n % 3 == 0 else 0.1},{400 if n % 3 == 0 else 41}" for n in range(9))
    load = "\n".join(f"{n},{30 if n % 3 == 0 else 0.1},{400 if n % 2 == 0 else 41}" for n in range(9))
    head = "request,pause_before_s,t_first_ms\n"
    assert codes(ask(("idle.csv", f"{head}{slow}\n")))[:1] == ["COMPUTE_IDLE_RAMP"]
    assert "COMPUTE_IDLE_RAMP" not in codes(ask(("idle2.csv", f"{head}{load}\n")))


def test_a_batch_that_grew_is_no_slower_kernel(ask):
    text = "| version | batch | TPOT p50 |\n|---|---|---|\n| 1.2.0 | 8 | 18 ms |\n| 1.3.0 | 64 | 31 ms |\n"
    assert not codes(ask(("t.md", text)))
    assert codes(ask(("t2.md", text.replace("64", "8"))))
