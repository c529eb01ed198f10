"""Validity and the gateway's causes in other forms: rows a request, moments, groups of facts, tables along versions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tailrace.diagnose.readers.formats import format_of
from tests.diagnose.evidence_texts import asked, codes, facts


@pytest.fixture
def ask(tmp_path):
    """Texts of several files -> the codes found, the surest first."""
    return partial(codes, tmp_path)


def table(head: str, *rows: str) -> str:
    return "\n".join((head, *rows)) + "\n"


# -- numbers that cannot be


@pytest.mark.parametrize(
    ("first", "whole", "wrong"),
    [("0.001", "4100", True), ("0", "3900", True), ("0.6", "4100", False), ("0", "12", False)],
)
def test_a_first_token_in_no_time(ask, first, whole, wrong):
    rows = [f"q{n},{first},{whole},3000,ok" for n in range(6)]
    found = ask(r_csv=table("id,ttft_ms,e2e_ms,prompt_tokens,status", *rows))
    assert ("METRIC_BUG" in found) is wrong


def test_a_first_token_in_no_time_needs_the_whole(ask):
    rows = [f"q{n},0.001,3000,ok" for n in range(6)]
    assert "METRIC_BUG" not in ask(r_csv=table("id,ttft_ms,prompt_tokens,status", *rows))


@pytest.mark.parametrize(("last", "wrong"), [("0.0", True), ("0.3", False)])
def test_a_stage_without_time_above_its_own_first_byte(ask, last, wrong):
    rows = [*(f"{n},0.0,0.2{n}" for n in range(1, 4)), f"4,{last},0.24", f"5,{last},0.25"]
    found = ask(t_csv=table("turn,tts_processing_s,tts_ttfb_s", *rows))
    assert ("METRIC_BUG" in found) is wrong


@pytest.mark.parametrize("part", ["llm_queue_time_ms", "llm_start_time_ms", "llm_delay_ms"])
def test_what_is_before_a_first_token_is_no_whole(ask, part):
    rows = [f"{n},{5 + n},{300 + n}" for n in range(1, 8)]
    assert "METRIC_BUG" not in ask(t_csv=table(f"turn,{part},llm_ttft_ms", *rows))


def test_a_stage_without_time_needs_its_first_byte(ask):
    rows = [f"{n},0.0,3.{n}" for n in range(1, 6)]
    assert "METRIC_BUG" not in ask(t_csv=table("turn,tts_processing_s,tts_audio_s", *rows))


@pytest.mark.parametrize(("after", "wrong"), [(0.4, True), (1.7, False)])
def test_a_delay_that_is_a_timer(ask, after, wrong):
    rows = [f"{n},{n * 10},{n * 10 + after + n / 100},1.8" for n in range(1, 7)]
    found = ask(t_csv=table("turn,speech_end_s,final_recv_s,transcription_delay_s", *rows))
    assert ("METRIC_BUG" in found) is wrong


# -- metrics


def decode_line(second: int, rate: float) -> str:
    return (
        f"[2026-03-01 08:00:{second:02d} TP0] Decode batch. #running-req: 1, #token: {100 + second}, token usage: 0.0, "
        f"cuda graph: True, gen throughput (token/s): {rate}, #queue-req: 0, "
    )


def test_a_line_behind_a_pause_is_far_off(ask):
    calm = [decode_line(n, 70.0 + n) for n in range(5)]
    later = [decode_line(n, 75.0) for n in (42, 43, 44)]
    assert ask(s_log=table(*calm, decode_line(41, 1.5), *later)) == ["METRIC_IDLE_ARTIFACT"]
    assert "METRIC_IDLE_ARTIFACT" not in ask(s_log=table(*calm, decode_line(5, 1.5), *later))  # no pause
    slow = [decode_line(n, 1.6) for n in (42, 43, 44)]
    assert "METRIC_IDLE_ARTIFACT" not in ask(s_log=table(*calm, decode_line(41, 1.5), *slow))  # and it stays so


@pytest.mark.parametrize(("client", "changed"), [("301", True), ("590", False)])
def test_neighbouring_versions_of_a_table(ask, client, changed):
    rows = [
        "| 1.2.0 | 280 | 300 |",
        "| 1.2.1 | 281 | 302 |",
        f"| 1.3.0 | 560 | {client} |",
        f"| 1.3.1 | 565 | {client} |",
    ]
    found = ask(t_md=table("| version | exporter TTFT p50 (ms) | loadgen TTFT p50 (ms) |", "|---|---|---|", *rows))
    assert ("METRIC_DEFINITION_CHANGE" in found) is changed


@pytest.mark.parametrize("axis", ["rate", "temperature"])
def test_a_number_with_a_point_is_no_version(ask, axis):
    rows = ["| 0.5 | 280 | 300 |", "| 1.5 | 560 | 310 |", "| 2.5 | 900 | 320 |"]
    for some in (rows, rows[:2]):
        head = f"| {axis} | engine TTFT p50 (ms) | client TTFT p50 (ms) |"
        assert "METRIC_DEFINITION_CHANGE" not in ask(t_md=table(head, "|---|---|---|", *some))


@pytest.mark.parametrize(("median", "diluted"), [("2.6", True), ("1.1", False)])
def test_windows_of_a_series_dilute_the_mean(ask, median, diluted):
    rows = ["0,200,9.1,2.1,20.5", "10,420,7.0,2.0,21.0", f"20,1500,3.6,{median},22.6"]
    head = "minute,finished_requests,mean_first_token_s,median_first_token_s,p90_first_token_s"
    assert ("METRIC_MEAN_DILUTION" in ask(t_csv=table(head, *rows))) is diluted


@pytest.mark.parametrize(("decode", "gap"), [(1900, True), (7600, False)])
def test_a_group_of_spans(ask, decode, gap):
    told = {"client_total_ms": 8400, "server_spans": {"queue": 120, "prefill": 410, "decode": decode}}
    assert ("TRACE_GAP" in ask(f_json=json.dumps(told))) is gap


def test_runs_under_other_loads_are_no_repetitions(ask):
    runs = [
        {"max_tokens": 50, "ttft_ms": 700},
        {"max_tokens": 200, "ttft_ms": 410},
        {"max_tokens": 800, "ttft_ms": 180},
    ]
    found = ask(f_json=json.dumps({"fixed": {"users": 16}, "runs": runs}))
    assert found[0] == "BENCH_CLOSED_LOOP"
    assert "BENCH_UNSTABLE" not in found


# -- the gateway and its clients


@pytest.mark.parametrize(("waiting", "held"), [("0", True), ("9", False)])
def test_a_lane_in_rows_of_requests(ask, waiting, held):
    rows = [f"{n},{900 + n},{1210 + n},12,{waiting},0.3" for n in range(6)]
    found = ask(s_csv=table("ts,gateway_queue_ms,ttft_ms,engine_running,engine_waiting,kv_usage", *rows))
    assert ("GW_LANE_QUEUE" in found) is held


def scrape(tokens: int) -> str:
    return (
        f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="0"}} 5\n'
        f'# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{{engine="0"}} {tokens}\n'
    )


@pytest.mark.parametrize(("still_open", "kept"), [(0, True), (5, False)])
def test_clients_that_were_counted_as_gone(ask, still_open, kept):
    told = facts(window_s=30, clients_timed_out=5, client_connections_open_at_end=still_open)
    found = ask(a_prom=scrape(1000), b_prom=scrape(4000), f_json=told)
    assert ("CANCEL_NOT_PROPAGATED" in found) is kept


@pytest.mark.parametrize(("later", "kept"), [("1", True), ("0", False)])
def test_an_axis_that_counts_from_the_disconnect(ask, later, kept):
    rows = ["-2,1,99", "0,1,99", f"3,{later},98", f"10,{later},98", f"20,{later},98"]
    found = ask(s_csv=table("seconds_after_disconnect,running,gpu_util", *rows))
    assert ("CANCEL_NOT_PROPAGATED" in found) is kept


@pytest.mark.parametrize(("kind", "slow"), [("desk", True), ("phone", False)])
def test_slow_readers_of_one_kind(ask, kind, slow):
    rows = []
    for n in range(30):
        rows += [f"{kind},k0,{n},{n * 20},{n * 20 + 1}"]
        rows += [f"phone,k{m},{n},{n * 20},{n * 70 + 1}" for m in (1, 2)]
    found = ask(c_csv=table("arm,req,chunk,t_upstream_ms,t_client_ms", *rows))
    assert ("CLIENT_SLOW_READER" in found) is slow


# -- readers


def test_quantiles_of_nothing_named_are_of_whole_requests(ask):
    rows = ["| control | 12000 | 810 | 7900 | 2.0% |", "| candidate | 12000 | 805 | 4300 | 1.2% |"]
    assert ask(t_md=table("| variant | requests | p50 ms | p99 ms | error rate |", "|---|---|---|---|---|", *rows)) == [
        "AB_TAIL_IMPROVED"
    ]


def test_sides_over_quantiles_are_arms(ask):
    rows = ["p50,410,200", "p90,700,640", "p99,1500,2300"]
    assert "AB_TAIL_REGRESSED" in ask(t_csv=table("quantile,before_ms,after_ms", *rows))


@pytest.mark.parametrize(
    ("name", "text", "setting"),
    [
        ("part.conf", "proxy_read_timeout 45s;\n", "proxy_read_timeout"),
        ("env.yaml", "route:\n  idleTimeout: 15s\nstream: true\n", "idle_timeout"),
    ],
)
def test_a_part_of_a_configuration(tmp_path: Path, name, text, setting):
    path = tmp_path / name
    path.write_text(text)
    form_ = format_of(text, name)
    assert form_ is not None
    assert any(setting in item.name for item in form_.read(path, name).settings)


def test_a_configuration_of_nothing_ends_no_diagnosis(ask):
    rows = ["| control | 12000 | 810 | 7900 |", "| candidate | 12000 | 805 | 4300 |"]
    found = ask(
        t_md=table("| variant | requests | p50 ms | p99 ms |", "|---|---|---|---|", *rows),
        c_yaml="resources:\n  name: x\nspec:\n  replicas: 2\n",
    )
    assert "AB_TAIL_IMPROVED" in found


# -- more of the same


@pytest.mark.parametrize(("whole", "wrong"), [("410", True), ("910", False)])
def test_a_stage_shorter_than_its_own_first_token(ask, whole, wrong):
    rows = [f"{n},6{n}0,{whole},18{n}" for n in range(1, 7)]
    found = ask(t_csv=table("turn,llm_ttft_ms,llm_total_ms,tts_ttfb_ms", *rows))
    assert ("METRIC_BUG" in found) is wrong


@pytest.mark.parametrize(("last", "gap"), [("0", True), ("0.8", False)])
def test_a_duration_that_nobody_fills(ask, last, gap):
    rows = [{"stream": f"s{n}", "duration": 0, "audio_seconds": 3.5 + n} for n in range(4)]
    rows.append({"stream": "s9", "duration": float(last), "audio_seconds": 4.0})
    assert ("METRIC_GAP" in ask(r_jsonl="\n".join(map(json.dumps, rows)))) is gap


def test_a_duration_of_nothing_heard_is_no_gap(ask):
    rows = [{"stream": f"s{n}", "duration": 0, "text_len": n} for n in range(5)]
    assert "METRIC_GAP" not in ask(r_jsonl="\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(("top", "above"), [("60", True), ("1", False)])
def test_buckets_that_are_counted_each(ask, top, above):
    rows = ["0.25,40", "0.5,90", "1,160", "2,140", "4,80", f"inf,{top}"]
    found = ask(h_csv=table("bucket_upper_s,requests", *rows), f_json=facts(metric="time to first token"))
    assert ("METRIC_BUCKET_CEILING" in found) is above


@pytest.mark.parametrize(("waiting", "full"), [("0", True), ("40", False)])
def test_a_pool_by_the_words_of_its_columns(ask, waiting, full):
    rows = ["0,60,60,60,0", *(f"{n},{130 + n},100,100,{waiting}" for n in (5, 10, 15, 20))]
    found = ask(s_csv=table("sec,open_from_clients,to_engine,running,waiting", *rows))
    assert ("GW_CONN_POOL_CAP" in found) is full


def test_times_and_statistics_of_a_group_are_no_replicas(ask):
    told = {"facts": 1, "context": {"running_after_s": [6, 20, 90], "waiting": {"p50": 3, "p90": 5, "p99": 400}}}
    assert "LB_SKEW" not in ask(f_json=json.dumps(told))
    assert "LB_SKEW" not in ask(f_json=facts(waiting={"p50_reqs": 3, "p90_reqs": 5, "p99_reqs": 400}))


def test_the_most_that_waited_at_each_replica_is_a_list_of_replicas(ask):
    assert "LB_SKEW" in ask(f_json=facts(max_waiting_by_replica=[2, 3, 90, 4]))


@pytest.mark.parametrize(("stated", "at_once"), [({"workers": 4}, True), ({"server": {"workers": 4}}, False)])
def test_the_workers_of_a_server_are_no_requests_at_once(ask, stated, at_once):
    head = "| run | n | TTFT p99 (ms) | TPOT p50 (ms) | output tokens |"
    found = ask(t_md=table(head, "|---|---|---|---|---|", "| a | 100 | 50000 | 20 | 100 |"), f_json=facts(**stated))
    assert ("BENCH_CLIENT_QUEUE" in found) is at_once


def events(*seconds: int) -> str:
    failed = [
        {"ts": f"2026-04-02T09:00:{at:02d}Z", "type": "Warning", "reason": "Unhealthy", "object": "pod/e-0",
         "message": 'Liveness probe failed: Get "http://10.0.0.9:8000/health": context deadline exceeded'}
        for at in seconds
    ]  # fmt: skip
    killed = {"ts": f"2026-04-02T09:00:{seconds[-1]:02d}Z", "type": "Normal", "reason": "Killing", "object": "pod/e-0",
              "message": "Container e failed liveness probe, will be restarted"}  # fmt: skip
    return "\n".join(json.dumps(one) for one in [*failed, killed])


def engine_line(second: int) -> str:
    parts = (
        "Avg prompt throughput: 900.0 tokens/s",
        "Avg generation throughput: 1800.0 tokens/s",
        "Running: 120 reqs",
        "Waiting: 90 reqs",
        "GPU KV cache usage: 60.0%",
        "Prefix cache hit rate: 1.0%",
    )
    return f"INFO 04-02 09:00:{second:02d} [loggers.py:248] Engine 000: {', '.join(parts)}\n"


@pytest.mark.parametrize(("seconds", "level"), [((10, 20, 30), "consistent"), ((30,), "suspected")])
def test_events_show_what_the_probe_is_given(tmp_path: Path, seconds, level):
    engine = "".join(map(engine_line, (5, 15, 25)))
    findings = asked(tmp_path, events_jsonl=events(*seconds), engine_log=engine).findings
    assert {one.code: one.level for one in findings}["GW_PROBE_KILL"] == level


def test_lists_of_two_groups_are_paths(ask):
    via, direct = [410, 6100, 430, 6080, 420, 6120], [400, 410, 405, 402]
    told = {"concurrency": 1, "via": {"ttft_ms": via}, "direct": {"ttft_ms": direct}}
    assert ask(f_json=json.dumps(told))[0] == "GW_HOLDS_FIRST_EVENT"


def test_quantiles_of_nothing_named_in_a_form(ask):
    old = {"n": 8000, "p50_ms": 700, "p99_ms": 6100}
    new = {"n": 8000, "p50_ms": 702, "p99_ms": 3900}
    assert ask(f_json=json.dumps({"control": old, "treatment": new}))[0] == "AB_TAIL_IMPROVED"


def test_counts_under_their_edges(ask):
    buckets = {"0.1": 3, "0.5": 40, "1": 90, "5": 300, "+Inf": 520}
    found = ask(f_json=json.dumps({"window": 15, "n": 3, "time_to_first_token_seconds": {"buckets": buckets}}))
    assert found == ["METRIC_BUCKET_CEILING"]
