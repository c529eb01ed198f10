"""The way to the engine (hops, replicas, timers, probes, front end) in every form in which people show it."""

from __future__ import annotations

import json

import pytest

from tests.diagnose.evidence_texts import found
from tests.diagnose.foreign_words import asked, everything, facts, of, table

LINE = (
    "INFO 03-18 14:{at:02d}:00 [loggers.py:257] Engine {engine}: Avg prompt throughput: 7103.2 tokens/s, Avg "
    "generation throughput: 3900.1 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
    "{kv}%, Prefix cache hit rate: {hit}%\n"
)


def log(running, *, waiting=0, kv=30.4, hit=None, engine="000"):
    rows = enumerate(zip(running, hit or [2.1] * len(running), strict=True))
    return "".join(
        LINE.format(at=at, running=n, waiting=waiting, kv=kv, hit=rate, engine=engine) for at, (n, rate) in rows
    )


def level(finding) -> str | None:
    return None if finding is None else str(finding.level)


# -- GW_CONN_POOL_CAP

FLAT = [61, 99, 100, 100, 100, 100]
STATES = "clients | running (engine) | waiting (engine) | TTFT p50 (ms)"
LIMITED = {"concurrency": 256, "engine_running": 100, "engine_waiting": 0, "ttft_p50_ms": 5300}


def test_an_engine_that_runs_a_round_number_while_more_are_under_way(tmp_path):
    finding = of(asked(tmp_path, log(FLAT), facts(client_threads=160, max_num_seqs=256)), "GW_CONN_POOL_CAP")
    assert level(finding) == "consistent"
    assert "160 - 100 = 60" in finding.relation
    assert "httpx" in everything(finding)


@pytest.mark.parametrize(
    "texts",
    [
        (log(FLAT),),  # nobody says how many are under way: a closed loop of 100 looks alike
        (log(FLAT), facts(concurrency=100)),
        (log(FLAT, waiting=12), facts(concurrency=160)),
        (log(FLAT, kv=98.0), facts(concurrency=160)),
        (log([61, 87, 93, 78, 91, 88]), facts(concurrency=160)),
        (log(FLAT), facts(concurrency=160, max_num_seqs=100)),
        (log(FLAT), facts(concurrency=160, replicas=2)),
    ],
    ids=["uncounted", "closed loop", "waiting", "full", "not flat", "own cap", "other replica"],
)
def test_what_looks_like_a_pool_and_is_none(tmp_path, texts):
    assert of(asked(tmp_path, *texts), "GW_CONN_POOL_CAP") is None


def test_a_pool_in_a_table_a_series_and_two_arms(tmp_path):
    rows = table(STATES, "50 | 50 | 0 | 210", "100 | 100 | 0 | 240", "200 | 100 | 0 | 4300", "400 | 100 | 0 | 12900")
    assert level(of(asked(tmp_path, rows), "GW_CONN_POOL_CAP")) == "suspected"
    even = table(STATES, "50 | 50 | 0 | 210", "100 | 100 | 0 | 240", "200 | 199 | 0 | 300")
    assert of(asked(tmp_path, even), "GW_CONN_POOL_CAP") is None
    unknown = table("clients | running (engine)", "100 | 100", "200 | 100", "400 | 100")
    assert of(asked(tmp_path, unknown), "GW_CONN_POOL_CAP") is None
    series = "t_s,proxy_inflight,vllm_running,vllm_waiting\n" + "".join(
        f"{5 * at},{n},{min(n, 100)},0\n" for at, n in enumerate([20, 90, 150, 210, 240, 260])
    )
    assert level(of(asked(tmp_path, series), "GW_CONN_POOL_CAP")) == "consistent"
    arms = {"before": LIMITED, "after": {**LIMITED, "engine_running": 256, "ttft_p50_ms": 480}}
    assert of(asked(tmp_path, facts(arms, changed="httpx max_connections 100 -> 1000")), "GW_CONN_POOL_CAP")
    assert of(asked(tmp_path, facts(arms, changed="model")), "GW_CONN_POOL_CAP") is None


# -- GW_IDLE_TIMEOUT


def access(ages, *, status=503, error="upstream_reset_before_response_started{connection_termination}", code="UC"):
    good = {"method": "POST", "path": "/v1/chat", "response_code": 200, "response_flags": "-", "duration_ms": 14210,
            "upstream_ttfb_ms": 2130, "upstream_bytes": 80211}  # fmt: skip
    rows = [
        good | {"response_code": status, "response_flags": code, "response_code_details": error, "duration_ms": age,
                "upstream_ttfb_ms": None, "upstream_bytes": 0}
        for age in ages
    ]  # fmt: skip
    return "\n".join(json.dumps(row) for row in [good, *rows]) + "\n"


HIGRESS = "downstream:\n  idleTimeout: 1800\nupstream:\n  connectionBufferLimits: 10485760\n  idleTimeout: 10\n"


def test_an_access_log_whose_lost_upstreams_have_one_age(tmp_path):
    ages = [10004, 10002, 10003, 10001]
    finding = found(tmp_path, "GW_IDLE_TIMEOUT", a_log=access(ages), b_yaml=HIGRESS)
    assert level(finding) == "consistent"
    assert "idle_timeout (10 s)" in finding.statement
    assert "0 bytes" in everything(finding)
    alone = found(tmp_path, "GW_IDLE_TIMEOUT", c_log=access(ages))
    assert level(alone) == "suspected"
    assert alone.missing


def test_lost_upstreams_of_many_ages_and_refusals_are_no_timers(tmp_path):
    assert found(tmp_path, "GW_IDLE_TIMEOUT", a_log=access([900, 4100, 10003, 22000]), b_yaml=HIGRESS) is None
    refused = access([10004, 10002, 10003], error="no_healthy_upstream", code="UH")
    assert found(tmp_path, "GW_IDLE_TIMEOUT", d_log=refused, b_yaml=HIGRESS) is None


def test_one_age_for_all_failures_in_a_form(tmp_path):
    text = facts(failed=20, failures_at_s=15.0, bytes_received=0, gateway_idle_timeout_s=15)
    assert level(of(asked(tmp_path, text), "GW_IDLE_TIMEOUT")) == "consistent"
    assert of(asked(tmp_path, facts(failures_at_s=15.0, bytes_received=0)), "GW_IDLE_TIMEOUT") is None


# -- GW_PROBE_KILL

READY = """t_s,ready_endpoints,engine_waiting,health_rtt_ms,iterations_total,restarts_total,engine_errors_total
0,4,0,21,80210,0,0
15,4,12,140,80820,0,0
30,4,118,790,81418,0,0
45,4,240,1310,81993,0,{errors}
60,2,371,{rtt},82573,0,{errors}
75,0,402,{rtt},83144,0,{errors}
90,4,190,520,84919,0,{errors}
"""
PROBES = """readinessProbe:
  httpGet: {path: /health, port: 8000}
  periodSeconds: 5
  failureThreshold: 3
livenessProbe:
  httpGet: {path: /health, port: 8000}
  periodSeconds: 5
  failureThreshold: 60
"""


def test_endpoints_are_lost_by_the_readiness_probe(tmp_path):
    finding = found(tmp_path, "GW_PROBE_KILL", a_csv=READY.format(errors=0, rtt=1620), b_yaml=PROBES)
    assert level(finding) == "consistent"
    assert "readiness" in finding.statement
    assert "3 misses x 5 s = 15 s" in finding.relation
    assert found(tmp_path, "GW_PROBE_KILL", c_csv=READY.format(errors=1, rtt=1620)) is None
    without = found(tmp_path, "GW_PROBE_KILL", d_csv=READY.format(errors=0, rtt=1620))
    assert level(without) == "suspected"


def test_a_form_states_restarts_and_a_slow_page(tmp_path):
    told = {"restarts_per_day": 8, "probe_timeout_s": 2, "health_p99_s": 4.4}
    finding = of(asked(tmp_path, facts(**told, engine_errors=0, engine_waiting=310)), "GW_PROBE_KILL")
    assert level(finding) == "suspected"
    assert "4.4 s > 2 s" in finding.relation
    assert of(asked(tmp_path, facts(**told | {"health_p99_s": 0.4})), "GW_PROBE_KILL") is None
    assert of(asked(tmp_path, facts(**told, oom_kills=3)), "GW_PROBE_KILL") is None


# -- LB_CACHE_AFFINITY_LOST, LB_SKEW, LB_HOTSPOT


def scrape(asked_for, hits, ttft_s, n):
    return (
        f'vllm:prefix_cache_queries_total{{engine="0",pod="a"}} {asked_for}\n'
        f'vllm:prefix_cache_hits_total{{engine="0",pod="a"}} {hits}\n'
        f'vllm:time_to_first_token_seconds_sum{{engine="0",pod="a"}} {ttft_s}\n'
        f'vllm:time_to_first_token_seconds_count{{engine="0",pod="a"}} {n}\n'
    )


ROUTING = "router policy is least-load now, was session hash"


def test_hits_fall_from_window_to_window_at_a_change_of_routing(tmp_path):
    scrapes = {
        "a0_prom": scrape(1_000_000, 700_000, 100.0, 200),
        "a1_prom": scrape(2_000_000, 1_494_000, 162.0, 300),
        "a2_prom": scrape(3_000_000, 1_829_000, 333.0, 400),
    }
    form = facts(changed=ROUTING, same=["recorded sessions"])
    finding = found(tmp_path, "LB_CACHE_AFFINITY_LOST", **scrapes, f_json=form)
    assert level(finding) == "consistent"
    assert "79.4 %" in finding.statement
    assert "33.5 %" in finding.statement
    assert "1710 ms" in everything(finding)  # sum and count alone give the mean
    other = facts(changed="KV cache dtype", same=["recorded sessions"])
    assert found(tmp_path, "LB_CACHE_AFFINITY_LOST", **scrapes, g_json=other) is None
    assert found(tmp_path, "LB_CACHE_AFFINITY_LOST", f_json=form, a0_prom=scrapes["a0_prom"]) is None


def test_hits_step_down_in_a_series(tmp_path):
    form = facts(changed=ROUTING, same=["workload"])
    step = "t_s,hit_rate\n" + "".join(f"{60 * at},{v}\n" for at, v in enumerate([81, 80, 82, 34, 33, 35]))
    assert level(of(asked(tmp_path, step, form), "LB_CACHE_AFFINITY_LOST")) == "consistent"
    wanders = "t_s,hit_rate\n" + "".join(f"{60 * at},{v}\n" for at, v in enumerate([81, 35, 82, 34, 79, 35]))
    assert of(asked(tmp_path, wanders, form), "LB_CACHE_AFFINITY_LOST") is None


def test_a_replica_without_a_queue_is_not_idle(tmp_path):
    rows = [(0, 51, 117), (1, 31, 108), (2, 14, 0), (3, 12, 0), (4, 11, 0), (5, 12, 0)]
    text = table("engine | running | waiting", *(f"{a} | {b} | {c}" for a, b, c in rows))
    finding = of(asked(tmp_path, text), "LB_SKEW")
    assert "168" in finding.statement
    assert "idle" not in finding.statement
    assert "waiting requests" in everything(finding)


def test_columns_of_replicas_are_no_loads_of_the_arms(tmp_path):
    text = table(
        "policy | TTFT mean (ms) | " + " | ".join(f"replica {at} in flight" for at in range(4)),
        "round robin | 627 | 8 | 7 | 8 | 7",
        "prefix affinity | 1617 | 29 | 1 | 0 | 0",
    )
    assert level(of(asked(tmp_path, text), "LB_HOTSPOT")) == "suspected"


# -- FE_CPU_STARVED along threads


def test_more_threads_than_the_quota_has_cores(tmp_path):
    text = table("num_thread | tok/s", "8 (auto) | 0.27", "4 | 12.07", "2 | 9.09")
    stat = "nr_periods 4567\nnr_throttled 3115\nthrottled_usec 988120431\n"
    form = facts(cpu_quota=4, changed="num_thread")
    finding = of(asked(tmp_path, text, form, stat), "FE_CPU_STARVED")
    assert level(finding) == "consistent"
    assert "44.7 x" in finding.statement
    assert level(of(asked(tmp_path, text, form), "FE_CPU_STARVED")) == "suspected"
    even = table("num_thread | tok/s", "8 | 12.1", "4 | 12.07", "2 | 9.09")
    assert of(asked(tmp_path, even, form), "FE_CPU_STARVED") is None


# -- METRIC_BUG by two clocks


def streams(gateway_first):
    rows = [
        {"id": f"q{at}", "gw_ttft_ms": first, "gw_total_ms": 192851, "edge_first_token_ms": 1175,
         "edge_total_ms": 192985, "completion_tokens": 13228, "reasoning_tokens": 12560}
        for at, first in enumerate(gateway_first, start=1)
    ]  # fmt: skip
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def test_an_inner_hop_cannot_see_the_first_token_later(tmp_path):
    finding = found(tmp_path, "METRIC_BUG", a_jsonl=streams([183581, 1168]))
    assert level(finding) == "consistent"
    assert "1,427 tok/s" in finding.relation
    assert "reasoning" in finding.statement
    assert found(tmp_path, "METRIC_BUG", b_jsonl=streams([1160, 1168])) is None


def test_an_outer_clock_that_is_late_is_a_hop_and_no_wrong_number(tmp_path):
    text = table(
        "request | TTFT client (ms) | TTFT engine (ms) | E2E client (ms) | E2E engine (ms)",
        "1 | 4100 | 410 | 5200 | 5100",
        "2 | 3900 | 390 | 5000 | 4950",
    )
    assert of(asked(tmp_path, text), "METRIC_BUG") is None
    form = facts(client_ttft_ms=900, gateway_ttft_ms=41000)
    assert level(of(asked(tmp_path, form), "METRIC_BUG")) == "suspected"


# -- GW_PROXY_BUFFERING, GW_HOLDS_FIRST_EVENT, GW_SELF_BOTTLENECK, TRACE_GAP


def test_a_buffer_by_its_arithmetic(tmp_path):
    told = {"chunk_bytes": 247, "chunk_period_s": 0.25, "burst_period_s": 16.5}
    finding = of(asked(tmp_path, facts(**told, buffer_bytes=16384)), "GW_PROXY_BUFFERING")
    assert level(finding) == "consistent"
    assert "16384 / 247 bytes = 66.3 chunks" in finding.relation
    assert level(of(asked(tmp_path, facts(**told)), "GW_PROXY_BUFFERING")) == "suspected"
    assert of(asked(tmp_path, facts(**told, buffer_bytes=65536)), "GW_PROXY_BUFFERING") is None


def requests(client_first, upstream_first):
    rows = [
        {"id": f"r{at}", "t_send_ms": 5000 * at, "t_upstream_first_ms": 5000 * at + upstream_first,
         "t_first_ms": 5000 * at + client_first, "t_last_ms": 5000 * at + 4200, "output_tokens": 160, "status": "ok"}
        for at in range(24)
    ]  # fmt: skip
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def test_requests_stamped_on_both_sides_of_a_hop(tmp_path):
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_jsonl=requests(4100, 250))
    assert level(finding) == "consistent"
    assert "4,100 / 250 ms" in finding.relation
    assert found(tmp_path, "GW_PROXY_BUFFERING", b_jsonl=requests(280, 250)) is None


def test_a_column_a_path(tmp_path):
    rows = ["1 | 0.41 | 0.45", "2 | 0.44 | 6.1", "3 | 0.43 | 0.52", "4 | 0.46 | 6.0", "5 | 0.42 | 6.2", "6 | 0.4 | 0.5"]
    text = table("request | direct TTFT (s) | via gateway TTFT (s)", *rows)
    assert level(of(asked(tmp_path, text), "GW_HOLDS_FIRST_EVENT")) == "suspected"
    even = table("request | direct TTFT (s) | via gateway TTFT (s)", *(row.replace("6.", "0.6") for row in rows))
    assert of(asked(tmp_path, even), "GW_HOLDS_FIRST_EVENT") is None


def test_a_hop_tells_its_own_time(tmp_path):
    head = "requests | TTFT client (ms) | gateway overhead p99 (ms) | loop lag p99 (ms)"
    finding = of(asked(tmp_path, table(head, "slow | 2900 | 2200 | 310", "rest | 420 | 12 | 3")), "GW_SELF_BOTTLENECK")
    assert level(finding) == "consistent"
    assert of(asked(tmp_path, facts(overhead_p99_ms=1850, e2e_p99_ms=3100)), "GW_SELF_BOTTLENECK").missing
    calm = table(head, "slow | 2900 | 24 | 3", "rest | 420 | 12 | 3")
    assert of(asked(tmp_path, calm), "GW_SELF_BOTTLENECK") is None


def test_spans_in_a_table_and_in_a_form(tmp_path):
    text = table("span | duration (s)", "client POST | 20.0", "llm_request (vllm) | 2.0")
    assert "2/20 s = 0.10" in of(asked(tmp_path, text), "TRACE_GAP").relation
    assert level(of(asked(tmp_path, facts(client_e2e_s=20, server_span_s=2.0)), "TRACE_GAP")) == "suspected"
    assert of(asked(tmp_path, facts(client_e2e_s=20, server_span_s=19.4)), "TRACE_GAP") is None
    covered = table("span | duration (s)", "client POST | 20.0", "llm_request (vllm) | 19.4")
    assert of(asked(tmp_path, covered), "TRACE_GAP") is None


# -- what to collect


def test_what_is_asked_about_is_asked_for(tmp_path):
    text = table("path | req/s | concurrency", "direct | 16 | 500", "proxy | 9 | 500")
    assert any("loop lag" in need for need in asked(tmp_path, text).needs)
    command = "vllm serve some/model --tensor-parallel-size 1 -dp 8 --port 5000\n"
    assert any("each replica" in need for need in asked(tmp_path, command).needs)


def test_a_limit_that_is_switched_off_is_no_impossible_number(tmp_path):
    result = asked(tmp_path, facts(n_predict=-1, ttft_p99_ms=400))
    assert of(result, "METRIC_BUG") is None
    assert of(asked(tmp_path, facts(ttft_mean_ms=-1715507074412, n=100)), "METRIC_BUG") is not None
