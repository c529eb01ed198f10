"""Numbers that contradict each other, clients that left and storms: each in several forms, with what nearly is one."""

from __future__ import annotations

import json

import pytest

from tailrace.app.diagnose import diagnose_sources


def answer(tmp_path, **files):
    paths = []
    for name, text in files.items():
        path = tmp_path / ".".join(name.rsplit("_", 1))
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        paths.append(str(path))
    found = diagnose_sources(paths)
    return {finding.code: finding for finding in found.findings}


def form(**context):
    return {"facts": 1, "context": context}


def bench(ttft="0.00", e2e="1893.50", itl="11.90", tpot="118.30"):
    return f"""============ Serving Benchmark Result ============
Backend:                                 sglang
Successful requests:                     1000
Median E2E Latency (ms):                 {e2e}
Mean TTFT (ms):                          742.15
Median TTFT (ms):                        {ttft}
P99 TTFT (ms):                           3411.02
Median TPOT (ms):                        {tpot}
Median ITL (ms):                         {itl}
==================================================
"""


ZERO = (
    "| run | n | TTFT p50 (ms) | TTFT p99 (ms) | E2E p50 (ms) |\n|---|---|---|---|---|\n"
    "| a | 400 | {} | 1800 | 4100 |\n"
)


@pytest.mark.parametrize(
    "files",
    [
        {"b_txt": bench()},
        {"t_md": ZERO.format(0)},
        {"t_csv": "t_s,ttft_p50_ms,e2e_p50_ms\n0,0,2100\n10,0,2200\n20,0,2150\n30,0,2300\n"},
        {"f_json": {"facts": 1, "arms": {"run": {"ttft_p50_ms": 0, "e2e_p50_ms": 5200, "n": 50}}}},
    ],
)
def test_a_first_token_that_took_no_time_was_never_stamped(tmp_path, files):
    found = answer(tmp_path, **files)["METRIC_BUG"]
    assert found.level.value in {"proven", "consistent"}
    assert "TTFT" in found.statement
    assert "0 ms" in found.statement


@pytest.mark.parametrize("files", [{"b_txt": bench(ttft="31.00", tpot="12.00")}, {"t_md": ZERO.format(12)}])
def test_a_short_first_token_is_no_missing_one(tmp_path, files):
    assert "METRIC_BUG" not in answer(tmp_path, **files)


TURNS = "turn,stt_ttfb_s,user_bot_latency_s\n1,{0},1.12\n2,{0},1.05\n3,{0},1.21\n4,{0},1.09\n"


def test_a_part_is_not_longer_than_its_whole(tmp_path):
    found = answer(tmp_path, t_csv=TURNS.format("2.20"), f_json=form(stt_timeout_s=2.0, vad_stop_secs=0.2))
    assert "2.20 s" in found["METRIC_BUG"].statement
    assert "stt_timeout_s 2 s + vad_stop_secs 0.2 s" in found["METRIC_BUG"].statement
    assert "METRIC_BUG" not in answer(tmp_path, t_csv=TURNS.format("0.40"))


def test_a_queue_longer_than_the_first_token_is_of_other_requests(tmp_path):
    text = (
        "| run | queue mean (ms) | TTFT mean (ms) | E2E mean (ms) | n |\n|---|---|---|---|---|\n"
        "| a | {} | 800 | 6100 | 900 |\n"
    )
    assert "METRIC_BUG" in answer(tmp_path, t_md=text.format(5200))
    assert "METRIC_BUG" not in answer(tmp_path, t_md=text.format(700))


def test_the_longest_gap_of_each_request_is_its_first_token(tmp_path):
    head = "| req | TTFT (ms) | max ITL (ms) | E2E (ms) |\n|---|---|---|---|\n"
    same = "".join(f"| {n} | {v} | {v} | 2300 |\n" for n, v in enumerate((412.5, 388.1, 975.0, 501.2)))
    other = "".join(f"| {n} | {v} | {v / 3} | 2300 |\n" for n, v in enumerate((412.5, 388.1, 975.0, 501.2)))
    assert "METRIC_BUG" in answer(tmp_path, t_md=head + same)
    assert "METRIC_BUG" not in answer(tmp_path, t_md=head + other)


EDGES = (
    "| le (s) | count |\n|---|---|\n| 0.5 | 210 |\n| 1 | 520 |\n| 2.5 | 700 |\n| 5 | 800 |\n"
    "| 10 | {} |\n| +Inf | 1000 |\n"
)


def test_a_table_of_buckets_has_a_ceiling(tmp_path):
    found = answer(tmp_path, ttft_md=EDGES.format(930))["METRIC_BUCKET_CEILING"]
    assert "> 10 s" in found.statement
    assert "METRIC_BUCKET_CEILING" not in answer(tmp_path, ttft_md=EDGES.format(998))


def test_sums_of_spans_that_a_table_states_leave_time_out(tmp_path):
    text = "| request | client time (s) | server spans (s) |\n|---|---|---|\n| a | 8.0 | {0} |\n| b | 7.9 | {0} |\n"
    found = answer(tmp_path, t_md=text.format(0.8))["TRACE_GAP"]
    assert "10%" in found.statement
    assert found.level.value == "suspected", "where the rest lies is not told"
    assert "TRACE_GAP" not in answer(tmp_path, t_md=text.format(7.7))


def test_counts_of_tokens_that_a_form_states(tmp_path):
    assert "METRIC_UNIT" in answer(tmp_path, f_json=form(client_tokens=1600, usage_completion_tokens=5120))
    assert "METRIC_UNIT" not in answer(tmp_path, f_json=form(client_tokens=5100, usage_completion_tokens=5120))


def test_more_on_the_clock_than_the_limit_lets_in_flight_is_the_clients_queue(tmp_path):
    arm = {"n": 64, "concurrency": 8, "ttft_mean_ms": 21200, "ttft_p99_ms": 42230, "tpot_mean_ms": 22.75,
           "output_tokens": 256, "req_s": 1.33, "e2e_mean_ms": 27001}  # fmt: skip
    found = answer(tmp_path, f_json={"facts": 1, "arms": {"run": arm}})["BENCH_CLIENT_QUEUE"]
    assert "35.9" in found.statement
    assert "client" in found.statement
    # The same contradiction without waves stays one.
    arm |= {"ttft_mean_ms": 300, "ttft_p99_ms": 900}
    assert "BENCH_CLIENT_QUEUE" not in answer(tmp_path, f_json={"facts": 1, "arms": {"run": arm}})


GONE = {"client_killed_at": 10, "client_connections_open_at_end": 0}
FLIGHTS = "t_s,client_connections_open,engine_running\n0,4,4\n5,4,4\n10,0,{0}\n15,0,{0}\n20,0,{0}\n25,0,{0}\n"
EVENTS = (
    "| time | event | running |\n|---|---|---|\n| 10:00:00 | 8 clients streaming | 8 |\n"
    "| 10:00:10 | all clients killed | 8 |\n| 10:00:20 | | {0} |\n| 10:00:50 | | {0} |\n"
)
SCRAPES = {
    "a_prom": "vllm:num_requests_running 8\nvllm:generation_tokens_total 1000\n",
    "b_prom": "vllm:num_requests_running {0}\nvllm:generation_tokens_total 12000\n",
    "f_json": form(window_s=30, client_killed_at="before the first scrape", client_connections_open_at_end=0),
}


@pytest.mark.parametrize(
    ("files", "going", "stopped"),
    [
        ({"t_csv": FLIGHTS}, "4", "0"),
        ({"t_md": EVENTS}, "8", "0"),
        ({"t_csv": "t_s,gpu_util_pct\n0,100\n10,100\n20,{0}\n30,{0}\n40,{0}\n", "f_json": form(**GONE)}, "100", "0"),
    ],
)
def test_the_engine_goes_on_after_the_client_left(tmp_path, files, going, stopped):
    def filled(value):
        return {k: v.format(value) if isinstance(v, str) else v for k, v in files.items()}

    assert "CANCEL_NOT_PROPAGATED" in answer(tmp_path, **filled(going))
    assert "CANCEL_NOT_PROPAGATED" not in answer(tmp_path, **filled(stopped))


def test_counted_tokens_for_nobody(tmp_path):
    found = answer(tmp_path, **(SCRAPES | {"b_prom": SCRAPES["b_prom"].format(8)}))["CANCEL_NOT_PROPAGATED"]
    assert "11000 tokens" in found.statement
    alone = {k: v for k, v in SCRAPES.items() if k != "f_json"} | {"b_prom": SCRAPES["b_prom"].format(8)}
    assert "CANCEL_NOT_PROPAGATED" not in answer(tmp_path, **alone), "nobody said that the client left"


def test_an_abort_that_reached_the_engine_is_no_lost_cancel(tmp_path):
    def line(clock, running):
        return (
            f"INFO 01-16 15:{clock} [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
            f"throughput: 400.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 20.0%, Prefix "
            "cache hit rate: 0.0%"
        )

    abort = "INFO 01-16 15:20:05 [async_llm.py:606] Aborted request(s) cmpl-1."
    lines = [line("20:00", 9), line("20:10", 8), line("20:20", 8), line("20:30", 8)]
    killed = form(client_killed_at="01-16 15:20:05", clients_killed=1)
    found = answer(tmp_path, e_log="\n".join([lines[0], abort, *lines[1:]]), f_json=killed)
    assert "CANCEL_NOT_PROPAGATED" not in found
    assert "reach the engine" in found["INSUFFICIENT_EVIDENCE"].missing[0]
    assert "CANCEL_NOT_PROPAGATED" in answer(tmp_path, e_log="\n".join(lines), f_json=killed)


STORM = "t_s,client_requests_total,upstream_attempts_total,errors_total\n"
RISING = "0,0,0,0\n60,600,618,2\n120,1210,1259,6\n180,1815,2052,42\n240,2413,3081,126\n300,3015,4429,258\n"
CALM = "0,0,0,0\n60,600,604,2\n120,1210,1219,3\n180,1815,1830,5\n240,2413,2436,6\n300,3015,3046,8\n"


def test_counters_of_attempts_beside_those_of_requests_are_a_storm(tmp_path):
    found = answer(tmp_path, s_csv=STORM + RISING)["RETRY_STORM"]
    assert "2.24" in found.statement
    assert "RETRY_STORM" not in answer(tmp_path, s_csv=STORM + CALM)
    stated = answer(tmp_path, f_json=form(client_requests=3015, upstream_attempts=4429))["RETRY_STORM"]
    assert stated.level.value == "suspected"
    assert "1.47" in stated.statement


TIMELINE = (
    "| time | p95 TTFT (s) | req/s | replicas | event |\n|---|---|---|---|---|\n| 14:00 | 1.9 | 38 | 4 | normal |\n"
    "| 14:05 | 2.1 | 38 | 4 | deployed v2 |\n| 14:10 | 9.8 | {0} | 4 | page |\n"
    "| 14:15 | 13.6 | {0} | 4 | HPA adds 2 replicas |\n| 14:41 | {1} | {0} | 6 | ready |\n"
)


def test_a_timeline_says_roll_back_before_scale_out(tmp_path):
    found = answer(tmp_path, t_md=TIMELINE.format(38, 13.8))["SCALE_OUT_TOO_SLOW"]
    assert "26 min" in found.statement
    assert "deployed v2" in found.advice
    assert "SCALE_OUT_TOO_SLOW" not in answer(tmp_path, t_md=TIMELINE.format(60, 13.8)), "the volume rose"
    assert "SCALE_OUT_TOO_SLOW" not in answer(tmp_path, t_md=TIMELINE.format(38, 2.0)), "the replicas helped"


def test_replicas_beside_arms_that_differ_in_gpus(tmp_path):
    arms = (
        "| setup | GPUs | offered req/s | TTFT p99 (s) | n |\n|---|---|---|---|---|\n"
        "| before | 4 | 12 | 21.3 | 5200 |\n| after | 8 | 12 | 20.9 | 5150 |\n"
    )
    replicas = "| replica | in-flight |\n|---|---|\n| 0 | 31 |\n| 1 | 4 |\n| 2 | 2 |\n| 3 | 3 |\n"
    assert "3.1 x" in answer(tmp_path, a_md=arms, r_md=replicas)["LB_SKEW"].statement


SPEAKING = (
    "| clients | lag p95 (s) | GPU util (%) |\n|---|---|---|\n"
    "| 1 | 0.4 | {0} |\n| 2 | 6.8 | {0} |\n| 4 | 31.5 | {0} |\n"
)


def test_clients_of_a_speech_server_are_its_sessions(tmp_path):
    assert "FE_EVENTLOOP_BLOCK" in answer(tmp_path, t_md=SPEAKING.format(23))
    assert "FE_EVENTLOOP_BLOCK" not in answer(tmp_path, t_md=SPEAKING.format(97))


def test_no_failures_stated_lets_an_improved_tail_stand(tmp_path):
    text = (
        "| arm | n | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|---|\n"
        "| before | 6000 | 960 | 2315 |\n| after | 6000 | 842 | 1598 |\n"
    )
    assert answer(tmp_path, t_md=text, f_json=form(errors=0))["AB_TAIL_IMPROVED"].level.value == "consistent"
    assert answer(tmp_path, t_md=text)["AB_TAIL_IMPROVED"].level.value == "suspected"


WINDOWS = (
    "t_s,completed_total,ttft_mean_s,ttft_p50_s,ttft_p90_s\n"
    "0,120,248,30,{0}\n600,800,190,{1},262\n1200,2100,138,{1},263\n"
)


def test_a_series_of_windows_whose_mean_is_diluted(tmp_path):
    assert "METRIC_MEAN_DILUTION" in answer(tmp_path, t_csv=WINDOWS.format(260, 32))
    assert "METRIC_MEAN_DILUTION" not in answer(tmp_path, t_csv=WINDOWS.format(260, 18)), "the median fell too"


STAMPS = "| measured from | n | E2E mean (ms) | E2E p99 (ms) |\n|---|---|---|---|\n| send | 600 | 506 | 507 |\n"


def test_one_row_from_the_send_and_one_from_the_schedule(tmp_path):
    late = "| intended start | 600 | 1932 | 3330 |\n"
    found = answer(tmp_path, t_md=STAMPS + late)["BENCH_COORDINATED_OMISSION"]
    assert "1932" in found.statement
    in_time = "| intended start | 600 | 508 | 511 |\n"
    assert "BENCH_COORDINATED_OMISSION" not in answer(tmp_path, t_md=STAMPS + in_time)
