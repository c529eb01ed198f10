"""Quantities of requests, streams, turns and scrapes in other shapes than those that the rules began with."""

from __future__ import annotations

import json

import pytest

from tailrace.app.diagnose import diagnose_sources
from tests.diagnose.evidence_texts import asked, facts


@pytest.fixture
def ask(tmp_path):
    """name -> text of several files -> the findings by code, the surest first."""

    return lambda **files: {finding.code: finding for finding in asked(tmp_path, **files).findings}


def rows(items: list[dict]) -> str:
    return "\n".join(json.dumps(one) for one in items)


def said(finding) -> str:
    return " ".join([finding.statement, finding.relation, *(item.text for item in finding.evidence)])


# -- numbers that cannot be


@pytest.mark.parametrize(("delay", "bug"), [(1_760_000_123.5, True), (0.7, False)])
def test_an_epoch_among_the_delays_of_turns_is_dropped_and_counted(ask, delay, bug):
    turns = [
        {"type": "eou_metrics", "speech_id": f"t{n}", "end_of_utterance_delay": d, "transcription_delay": 0.3}
        for n, d in enumerate((0.61, 0.55, delay, 0.58))
    ]
    found = ask(m_json=rows(turns))
    assert ("METRIC_BUG" in found) is bug
    if bug:
        assert "1 of 4 values" in said(found["METRIC_BUG"])


def scrape(n: int, first: float, whole: float) -> str:
    name = "gateway_{}_seconds_sum {}\ngateway_{}_seconds_count {}\n"
    return "".join(
        f"# TYPE gateway_{what}_seconds histogram\n" + name.format(what, total, what, n)
        for what, total in (("time_to_first_token", first), ("request_latency", whole))
    )


STREAMED = rows(
    [
        {"id": f"c{n}", "t_send_ms": 9000 * n, "t_first_ms": 9000 * n + 600 + n, "t_last_ms": 9000 * n + 7000,
         "status": "ok", "output_tokens": 300}
        for n in range(6)
    ]
)  # fmt: skip


def test_one_sum_for_the_first_token_and_the_whole_is_the_whole(ask):
    same = {"before_prom": scrape(100, 700.0, 700.0), "after_prom": scrape(300, 2100.0, 2100.0)}
    found = ask(**same, r_jsonl=STREAMED)
    assert found["METRIC_BUG"].level == "consistent"
    assert ask(**same)["METRIC_BUG"].level == "suspected"
    other = {"before_prom": scrape(100, 70.0, 700.0), "after_prom": scrape(300, 200.0, 2100.0)}
    assert "METRIC_BUG" not in ask(**other, r_jsonl=STREAMED)


@pytest.mark.parametrize(("rest", "bug"), [(0, True), (5200, False)])
def test_answers_in_one_piece_have_no_first_token(ask, rest, bug):
    items = [
        {"id": f"c{n}", "t_send_ms": 10 * n, "t_first_ms": 8000 + 90 * n, "t_last_ms": 8000 + 90 * n + rest,
         "output_tokens": 240 + n, "status": "ok"}
        for n in range(6)
    ]  # fmt: skip
    found = ask(r_jsonl=rows(items))
    assert ("METRIC_BUG" in found) is bug
    if bug:
        assert found["METRIC_BUG"].level == "suspected"


FILES = "| clip | audio (s) | wall (s) | RTF |\n|---|---|---|---|\n" + "| {} | {} | {} | {} |\n" * 4


@pytest.mark.parametrize("paced", [True, False])
def test_clips_that_take_their_own_length_and_a_constant_were_paced(ask, paced):
    cells: list[object] = []
    for name, audio in (("a", 10.0), ("b", 25.0), ("c", 60.0), ("d", 40.0)):
        wall = audio + 0.6 if paced else 1.25 * audio
        cells += [name, audio, round(wall, 2), round(wall / audio, 3)]
    assert ("METRIC_BUG" in ask(t_md=FILES.format(*cells))) is paced


# -- streams and stalls


def gaps(heading: str, lines: list[tuple]) -> str:
    return heading + "\n" + "\n".join(",".join(str(cell) for cell in line) for line in lines) + "\n"


@pytest.mark.parametrize(("running", "collector"), [((9, 14, 8, 12, 10), True), ((4, 8, 12, 16, 20), False)])
def test_pauses_of_all_streams_that_grow_with_the_uptime(ask, running, collector):
    lines = [(3600 * (n + 1), 300 * (n + 1), 300 * (n + 1) + 2, 300 * (n + 1) - 1, running[n]) for n in range(5)]
    found = ask(s_csv=gaps("uptime_s,gap_ms_stream_1,gap_ms_stream_2,gap_ms_stream_3,running", lines))
    assert ("FE_GC_PAUSE" in found) is collector


@pytest.mark.parametrize(("gap", "steals"), [(820, True), (2300, False)])
def test_stops_in_most_readings_are_still_stops(ask, gap, steals):
    lines = [(2 * n, 30 if n < 3 or n > 10 else gap + n, 31 if n < 3 or n > 10 else gap - n) for n in range(12)]
    stated = facts(max_num_batched_tokens=4096, prefill_tok_s=5000, kv_usage_pct=30, prompt_tokens=70000)
    found = ask(s_csv=gaps("t_s,gap_ms_stream_a,gap_ms_stream_b", lines), f_json=stated)
    assert ("SCHED_PREFILL_STEALS_DECODE" in found) is steals


SERVER = (
    "$ ./build/bin/llama-server -m m.gguf -np 4 -b 1024\n"
    "slot launch_slot_: id  2 | task 7 | processing task\n"
    "slot update_slots: id  2 | task 7 | new prompt, n_ctx_slot = 8192, n_keep = 0, n_prompt_tokens = 4096\n"
    "slot print_timing: id  2 | task 7 |\n"
    "prompt eval time =    4096.00 ms /  4096 tokens (    1.00 ms per token,  1000.00 tokens per second)\n"
    "       eval time =     300.00 ms /    10 tokens (   30.00 ms per token,    33.33 tokens per second)\n"
    "      total time =    4396.00 ms /  4106 tokens\n"
)


@pytest.mark.parametrize(("gap", "steals"), [(1030, True), (2900, False)])
def test_the_command_above_a_log_and_its_own_timing_give_the_chunk(ask, gap, steals):
    lines = [(n, 25 if n not in (4, 5, 6, 7) else gap + n) for n in range(12)]
    found = ask(s_csv=gaps("t_s,gap_ms_stream_a", lines), srv_log=SERVER)
    seen = found.get("SCHED_PREFILL_STEALS_DECODE")
    assert (seen is not None and "as long as one prefill chunk" in seen.statement) is steals
    if seen is not None:
        assert seen.level == "suspected"


@pytest.mark.parametrize(("buffer", "redecodes"), [((2, 5, 9, 14, 3, 6, 11, 15, 2), True), ((2,) * 9, False)])
def test_work_that_follows_the_open_buffer_decodes_it_again(ask, buffer, redecodes):
    lines = [(3 * n, seconds, 50 + 40 * seconds if redecodes else 50 + 40 * n) for n, seconds in enumerate(buffer)]
    found = ask(s_csv=gaps("session_age_s,audio_buffer_s,decode_ms", lines))
    assert ("ASR_REDECODE_GROWTH" in found) is redecodes


def test_a_buffer_that_is_never_cut_is_no_saw(ask):
    lines = [(3 * n, 3 * n + 1, 60 + 120 * n) for n in range(9)]
    assert "ASR_REDECODE_GROWTH" not in ask(s_csv=gaps("session_age_s,audio_buffer_s,decode_ms", lines))


# -- who waits, who comes again, who leaves


@pytest.mark.parametrize(("behind", "holds"), [(True, True), (False, False)])
def test_short_ones_behind_one_long_prompt_need_no_calm_ones_to_be_seen(ask, behind, holds):
    items = [{"id": "long", "t_send_ms": 0, "t_first_ms": 60000, "t_last_ms": 61000, "prompt_tokens": 300000,
              "output_tokens": 20, "status": "ok"}]  # fmt: skip
    items += [
        {"id": f"s{n}", "t_send_ms": 4000 * n, "t_first_ms": 60100 + 50 * n if behind else 4000 * n + 90,
         "t_last_ms": 62000 + 50 * n if behind else 4000 * n + 1200, "prompt_tokens": 400 + n, "output_tokens": 40,
         "status": "ok"}
        for n in range(1, 9)
    ]  # fmt: skip
    found = ask(r_jsonl=rows(items))
    assert ("SCHED_HOL_LONG_PREFILL" in found) is holds
    if holds:
        assert found["SCHED_HOL_LONG_PREFILL"].level == "suspected"


def attempts(*, cured: bool) -> str:
    items = [
        {"id": f"a{n}", "t_send_ms": 1000 * n, "t_last_ms": 1000 * n + 2000, "status": "ok", "bytes_received": 900}
        for n in range(5)
    ]
    for n in range(5, 11):
        items.append({"id": f"a{n}", "t_send_ms": 1000 * n, "t_last_ms": 1000 * n + 30000, "status": "timeout"})
        state = "ok" if cured else "timeout"
        items.append({"id": f"a{n}.2", "retry_of": f"a{n}", "t_send_ms": 1000 * n + 31000,
                      "t_last_ms": 1000 * n + (33000 if cured else 61000), "status": state})  # fmt: skip
    return rows(items)


def test_repeats_that_fail_again_are_a_storm_and_those_that_succeed_are_none(ask):
    found = ask(r_jsonl=attempts(cured=False))
    assert "17 / 11 = 1.55" in said(found["RETRY_STORM"])
    assert "RETRY_STORM" not in ask(r_jsonl=attempts(cured=True))


CODE = """
from openai import OpenAI
client = OpenAI(base_url="http://x/v1", timeout={}, max_retries=0)
client.chat.completions.create(model="m", messages=[], {}={}, stream=False)
"""
LOAD = (
    "INFO 03-04 10:00:{}0 [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: \
200.0 tokens/s, Running: 20 reqs, Waiting: 0 reqs, GPU KV cache usage: 30.0%, Prefix cache hit rate: 0.0%\n"
)


@pytest.mark.parametrize(
    ("timer", "option", "tokens", "short"),
    [(45, "max_tokens", 1500, True), (45, "max_completion_tokens", 1500, True), (45, "max_tokens", 300, False)],
)
def test_what_the_client_asks_for_against_its_timer(ask, timer, option, tokens, short):
    log = "".join(LOAD.format(n) for n in range(4))
    found = ask(client_py=CODE.format(timer, option, tokens), vllm_log=log)
    assert ("CLIENT_TIMEOUT_BUDGET" in found) is short


def cut(second: float, done: bool) -> dict:
    words = "stream ended" if done else "upstream disconnected"
    return {"ts": f"2026-03-04T10:00:{second:06.3f}Z", "path": "/v1/chat/completions", "status": 200, "stream": True,
            "duration_ms": 40000, "done_seen": done, "msg": words}  # fmt: skip


@pytest.mark.parametrize("done", [False, True])
def test_streams_that_a_gateway_saw_cut_and_no_line_of_the_engine_says_why(ask, done):
    running = (20, 20, 15, 15)
    log = "".join(
        LOAD.format(n).replace("Running: 20", f"Running: {many}").replace("30.0%", f"{many * 1.5}%")
        for n, many in enumerate(running)
    )
    found = ask(gw_log=rows([cut(14 + 0.3 * n, done) for n in range(5)]), vllm_log=log)
    assert ("CANCEL_UNATTRIBUTED" in found) is not done


TGI = (
    "2026-01-05T10:00:{:02d}.000000Z  INFO generate{{parameters=GenerateParameters {{ best_of: {}, max_new_tokens: "
    'Some(80), grammar: None }} total_time="{}ms" queue_time="0.2ms" inference_time="{}ms" time_per_token="{}ms"}}: '
    "text_generation_router: Success\n"
)


@pytest.mark.parametrize(("slow", "options"), [(61.0, True), (25.5, False)])
def test_options_in_a_routers_own_words_tell_the_slow_requests(ask, slow, options):
    text = "".join(
        TGI.format(n, "Some(3)" if n % 2 else "None", 80 * pace, 80 * pace, pace)
        for n in range(8)
        for pace in [slow if n % 2 else 25.0 + 0.1 * n]
    )
    assert ("MIX_DECODING_OPTIONS" in ask(tgi_log=text)) is options


@pytest.mark.parametrize(("fell", "hot"), [(True, True), (False, False)])
def test_two_arms_in_step_with_a_hot_clock(ask, fell, hot):
    columns = (
        "timestamp, index, utilization.gpu [%], clocks.sm [MHz], power.draw [W], power.limit [W], temperature.gpu, "
        "clocks_event_reasons.active"
    )
    lines = [columns]
    for n, clock in enumerate((1800, 1790, 1500, 1200, 1000, 900)):
        reason = "0x40" if n > 1 else "0x0"
        lines.append(f"2026/01/05 10:0{n}:00.000, 0, 99 %, {clock} MHz, 150.00 W, 300.00 W, {70 + 4 * n}, {reason}")
    stated = {"facts": 1, "arms": {"cold": {"tpot_ms": 20.0}, "warm": {"tpot_ms": 41.0 if fell else 20.2}}}
    found = ask(gpu_csv="\n".join(lines), f_json=json.dumps(stated))
    assert (found["COMPUTE_THERMAL"].level == "consistent") is hot


@pytest.mark.parametrize("words", ["synthesis", "speech"])
def test_a_first_byte_beside_an_rtf_is_of_speech_that_is_made(ask, words):
    first = "TTFB (ms)" if words == "synthesis" else "first partial (ms)"
    table = f"| streams | {first} | RTF |\n|---|---|---|\n| 2 | 210 | 0.6 |\n| 16 | 700 | 1.8 |\n"
    found = ask(t_md=table)
    assert (found["AUDIO_UNDERRUN"].level == "consistent") is (words == "synthesis")


TURNS = "turn,end_of_turn_delay_s,transcription_delay_s\n1,1.27,0.06\n2,1.24,0.07\n3,1.29,0.05\n4,1.26,0.06\n"


@pytest.mark.parametrize(("silence", "explained"), [("1.2", True), ("0.3", False)])
def test_a_recognisers_option_file_tells_the_silence_that_it_waits_for(ask, silence, explained):
    options = f"--beam=12.0\n--max-active=5000\n--endpoint.rule2.min-trailing-silence={silence}\n"
    finding = ask(turns_csv=TURNS, model_conf=options).get("ASR_VAD_SILENCE_LONG")
    assert (finding is not None and "1200 ms are the configured" in finding.statement) is explained


def test_what_only_hints_at_a_question_says_what_to_collect(ask, tmp_path):
    log = "".join(
        LOAD.format(n).replace("200.0 tokens", f"{200 - 12 * n}.0 tokens").replace("30.0%", f"{30 + 2 * n}.0%")
        for n in range(6)
    )
    path = tmp_path / "steady.log"
    path.write_text(log)
    needs = diagnose_sources([str(path)]).needs
    assert any("200 -> 140 tok/s at 20 running" in need and "nvidia-smi" in need for need in needs)
    path.write_text("".join(LOAD.format(n) for n in range(6)))
    assert not any("what slows the steps" in need for need in diagnose_sources([str(path)]).needs)
