"""Tables, consoles and fragments as people paste them: what is read of them, and which cause it leads to or nearly."""

from __future__ import annotations

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.observed import Role
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.heading import heading
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.tables import numbered_lines
from tailrace.diagnose.readers.text import observed_text
from tailrace.model.errors import InputError
from tests.diagnose.foreign_words import asked, everything, of, table


def arms(text: str):
    return {arm.name: arm for arm in observed_text(list(enumerate(text.splitlines(), start=1)), "t.md").arms}


@pytest.mark.parametrize(
    ("text", "quantity", "stat", "unit"),
    [
        ("ttft_ms_p50", "ttft", "p50", "ms"),
        ("p99_ms_before", "", "p99", "ms"),
        ("rate (req/s)", "offered_rps", "", "1/s"),
        ("completed (req/s)", "req_s", "", "1/s"),
        ("served (req/s)", "req_s", "", "1/s"),
        ("throughput tok/s", "output_tok_s", "", ""),
        ("Decode TPS", "decode_tok_s", "", ""),
        ("GPU%", "gpu_util", "", "%"),
        ("KV %", "kv_usage", "", "%"),
        ("error %", "failed_share", "", "%"),
        ("client p99 (s)", "e2e", "p99", "s"),
        ("p99 of completed (s)", "e2e", "p99", "s"),
        ("after (min)", "", "", "min"),
        ("power cap (W)", "power_limit", "", "W"),
        ("sample rate (Hz)", "", "", ""),
        ("CPU %", "", "", "%"),
    ],
)
def test_a_heading_means_what_its_unit_says(text, quantity, stat, unit):
    found = heading(text)
    assert (found.quantity, found.stat, found.unit) == (quantity, stat, unit)


def test_headings_over_two_rows_are_one():
    under = "arm | p50 [ms] | p99 [s] | p50 [ms] | n"
    text = table(" | TTFT | | TPOT | ", under, "a | 190 | 1.8 | 21 | 800", "b | 180 | 2.9 | 21 | 800")
    read = arms(text)
    assert {key: item.value for key, item in read["b"].values.items()} == {
        "ttft.p50": 180, "ttft.p99": 2900, "tpot.p50": 21, "n": 800,
    }  # fmt: skip


def test_two_statistics_in_one_cell_are_two_columns():
    read = arms(
        table("setup | TTFT p50/p99 (ms) | power / cap", "direct | 40/81 | 440 / 450 W", "via | 47/2110 | 1 / 2 W")
    )
    assert {key: item.value for key, item in read["via"].values.items()} == {
        "ttft.p50": 47, "ttft.p99": 2110, "power": 1, "power_limit": 2,
    }  # fmt: skip
    # A rate is no pair, and a cell that is none leaves the column alone.
    assert arms(table("a | out tok/s", "x | 40", "y | 50"))["y"].values["output_tok_s"].value == 50


def test_a_data_frame_keeps_its_index_and_its_two_levels():
    text = (
        "                 ttft_ms        itl_ms\n                  median count median count\nformat\n"
        "json             6120.4   400   14.1   400\nnone              310.2  1600   13.9  1600\n"
    )
    read = arms(text)
    assert read["json"].values["ttft.p50"].value == 6120.4
    assert read["json"].get("n") == 400
    assert read["none"].values["itl.p50"].value == 13.9


def test_two_moments_are_before_and_after():
    for first, second in (
        ("08:00", "09:00"),
        ("monday", "tuesday"),
        ("week 43", "week 44"),
        ("09:00-09:10", "09:10-09:20"),
    ):
        text = table("when | TTFT p99 (ms)", f"{first} | 800", f"{second} | 900")
        assert [arm.role for arm in arms(text).values()] == [Role.BEFORE, Role.AFTER]
    unordered = arms(table("when | TTFT p99 (ms)", "tuesday | 800", "monday | 900"))
    assert [arm.role for arm in with_roles(list(unordered.values()))] == [Role.NONE, Role.NONE]


# -- a table over time is a series, whichever way it is drawn

STUCK = ("time | running | waiting | prompt tok/s | generation tok/s | KV (%)",
         *(f"12:00:{10 * n:02d} | {{running}} | 7 | 0 | {{made}} | 3" for n in range(4)))  # fmt: skip


def test_readings_drawn_as_a_table_are_a_series(tmp_path):
    stuck = table(*(row.format(running=0, made=0) for row in STUCK))
    assert of(asked(tmp_path, stuck), "SCHED_ADMISSION_DEADLOCK").level == "consistent"
    crawl = table(*(row.format(running=9, made=0.5) for row in STUCK))
    assert asked(tmp_path, crawl).findings[0].code == "ENGINE_STALL"
    well = table(*(row.format(running=9, made=400) for row in STUCK))
    assert of(asked(tmp_path, well), "ENGINE_STALL") is None


# -- consoles

HEY = """
Summary:
  Total:\t612.3301 secs
  Slowest:\t{slow} secs
  Fastest:\t2.1187 secs
  Average:\t24.9120 secs
  Requests/sec:\t1.6331

Latency distribution:
  50% in 19.8833 secs
  90% in {high} secs
  95% in {slow} secs
  99% in {slow} secs

Status code distribution:
  [200]\t884 responses
  [504]\t{bad} responses
"""
EVEN = HEY.replace("95% in {slow}", "95% in 33.0").format(slow="44.1", high="31.0", bad="{bad}")
NGINX = """location /v1/ {
  proxy_pass http://vllm:8000;
  proxy_http_version 1.1;
  proxy_buffering off;
  proxy_read_timeout 60s;
}
"""


def test_the_slow_end_of_a_console_is_a_timers_number(tmp_path):
    found = of(asked(tmp_path, HEY.format(slow="60.0012", high="60.0007", bad=116), NGINX), "GW_UPSTREAM_TIMEOUT")
    assert found.level == "consistent"
    assert "proxy_read_timeout" in found.statement
    alone = of(asked(tmp_path, HEY.format(slow="60.0012", high="60.0007", bad=116)), "GW_UPSTREAM_TIMEOUT")
    assert alone.level == "suspected"
    # No timer of that value, nothing failed, or the end is not one number.
    for text in (HEY.format(slow="60.0012", high="60.0007", bad=0), EVEN.format(bad=116)):
        assert of(asked(tmp_path, text, NGINX), "GW_UPSTREAM_TIMEOUT") is None


K6 = """
     http_req_duration..............: avg=611.2ms  med=604.9ms  max=1m2.5s p(90)=702.7ms p(95)=744.1ms
     http_req_failed................: 2.00%   \u2713 108       \u2717 5292
     http_req_waiting...............: avg=71.0ms   med=69.3ms   max=151.4ms  p(90)=81.6ms p(95)=88.8ms
     http_reqs......................: 5400    8.997142/s
     vus............................: 6       min=6       max=6
"""
WRK = """Running 1m test @ http://10.0.0.9:8000/v1/completions
  8 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     6.11s     2.94s   12.90s    61.20%
     50%    5.98s
     99%   12.44s
  628 requests in 1.00m, 1.31MB read
Requests/sec:     10.46
"""
AB = """Concurrency Level:      10
Complete requests:      1000
Failed requests:        12
Requests per second:    12.31 [#/sec] (mean)
Time per request:       812.1 [ms] (mean)
  50%    700
  99%   1810
 100%   2200 (longest request)
"""
VEGETA = """Requests      [total, rate, throughput]  1200, 20.02, 19.51
Latencies     [min, mean, 50, 90, 95, 99, max]  35.1ms, 212ms, 190ms, 401ms, 602ms, 1.9s, 2.5s
Success       [ratio]  98.20%
Status Codes  [code:count]  200:1178  504:22
"""
LLMPERF = """Results for token benchmark for m queried with the openai api.

inter_token_latency_s
    p50 = 0.0121
    p99 = 0.0140
ttft_s
    p50 = 4.2011
    p99 = 5.311
number_input_tokens
    mean = 16004.2
Number Of Errored Requests: 3
Overall Output Throughput: 198.2
Number Of Completed Requests: 300
"""
CONSOLES = {
    "k6": (K6, {"e2e.p95": 744.1, "e2e.max": 62500, "ttft.p50": 69.3, "failed_share": 0.02, "n": 5400}),
    "wrk": (WRK, {"e2e.mean": 6110, "e2e.max": 12900, "e2e.p99": 12440, "concurrency": 64, "req_s": 10.46}),
    "ab": (AB, {"e2e.mean": 812.1, "e2e.p99": 1810, "e2e.max": 2200, "n": 1000, "failed": 12, "req_s": 12.31}),
    "vegeta": (VEGETA, {"e2e.p99": 1900, "e2e.max": 2500, "offered_rps": 20.02, "req_s": 19.51, "status_504": 22}),
    "llmperf": (LLMPERF, {"ttft.p99": 5311, "itl.p50": 12.1, "prompt_tokens": 16004.2, "n": 300, "failed": 3}),
}


@pytest.mark.parametrize("tool", CONSOLES)
def test_a_console_is_one_arm(tool, tmp_path):
    text, wanted = CONSOLES[tool]
    path = tmp_path / f"{tool}.txt"
    path.write_text(text)
    found = format_of(text, path.name)
    assert found.name == "HTTP load generator"
    (arm,) = found.read(path, path.name).arms
    assert {key: pytest.approx(arm.values[key].value) for key in wanted} == wanted


# -- configuration

CPU = "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 1000000\n"


def test_a_fragment_of_a_manifest_is_read(tmp_path):
    (tmp_path / "pod.yaml").write_text('resources:\n  requests: {cpu: "1"}\n  limits: {cpu: "2"}\n')
    (tmp_path / "a.stat").write_text(CPU.format(periods=1000, throttled=10))
    (tmp_path / "b.stat").write_text(CPU.format(periods=1600, throttled=430))
    result = diagnose_sources([str(tmp_path / name) for name in ("a.stat", "b.stat", "pod.yaml")])
    assert result.findings[0].code == "FE_CPU_STARVED"


def test_what_no_reader_knows_is_listed_beside_what_is_read(tmp_path):
    known, unknown = tmp_path / "hop.md", tmp_path / "strange.txt"
    known.write_text(table("path | TTFT p50 (ms) | ITL p50 (ms)", "direct | 20 | 11", "via proxy | 600 | 2"))
    unknown.write_text("wibble\n")
    result = diagnose_sources([str(known), str(unknown)])
    assert result.findings[0].code == "GW_PROXY_BUFFERING"
    assert any("strange.txt" in line and "wibble" in line for line in result.not_understood)
    with pytest.raises(InputError):
        diagnose_sources([str(unknown)])


def test_an_option_in_a_sentence_is_a_setting(tmp_path):
    path = tmp_path / "t.md"
    path.write_text("sglang, `--max-running-requests 64` at `--request-rate 20`, and --tp-size 1 vs --tp-size 2\n")
    read = observed_text(numbered_lines(path), "t.md")
    assert {item.name: item.value for item in read.settings} == {"max_num_seqs": 64, "request_rate": 20}


# -- rules on rows


def row_of(code, result, level=None):
    found = of(result, code)
    assert found is not None, [item.code for item in result.findings]
    assert result.findings[0].code == code
    if level is not None:
        assert found.level == level
    return found


def test_a_cap_with_room_behind_it(tmp_path):
    head = "client in flight | running | waiting | KV usage (%) | TTFT p50 (ms)"
    rows = ("32 | 32 | 0 | 12 | 180", "128 | 64 | 64 | 25 | 4100", "200 | 64 | 136 | 25 | 9800")
    found = row_of("SCHED_QUEUE_SATURATION", asked(tmp_path, table(head, *rows)), "consistent")
    assert (found.action, "136 wait" in found.statement) == ("tune", True)
    one = row_of("SCHED_QUEUE_SATURATION", asked(tmp_path, table(head, *rows[:2])), "suspected")
    assert any("max_num_seqs" in item for item in one.missing)
    calm = table(head, "32 | 32 | 0 | 12 | 180", "64 | 64 | 0 | 25 | 200")
    assert of(asked(tmp_path, calm), "SCHED_QUEUE_SATURATION") is None


def test_attempts_over_requests_are_a_storm(tmp_path):
    head = "minute | client requests | upstream attempts | errors (%)"
    storm = table(head, "10:00 | 1200 | 1214 | 0.4", "10:01 | 1195 | 1430 | 6", "10:02 | 1210 | 3110 | 41")
    found = row_of("RETRY_STORM", asked(tmp_path, storm), "consistent")
    assert "2.57" in everything(found)
    bare = table("minute | client requests | upstream attempts", "10:00 | 1200 | 1214", "10:02 | 1210 | 3110")
    assert row_of("RETRY_STORM", asked(tmp_path, bare), "suspected").missing
    hedge = table(head, "10:00 | 1200 | 1214 | 4", "10:01 | 1195 | 1830 | 0.1")
    few = table(head, "10:00 | 1200 | 1214 | 0.4", "10:01 | 1195 | 1230 | 6")
    for text in (hedge, few):
        assert of(asked(tmp_path, text), "RETRY_STORM") is None


def test_cancelled_work_is_a_storm(tmp_path):
    head = "window | requests | cancelled (%) | tokens generated | tokens generated for cancelled requests"
    storm = table(head, "09:00 | 4100 | 2.1 | 1310000 | 9800", "10:00 | 4180 | 31.4 | 1295000 | 402000")
    found = row_of("CANCEL_STORM", asked(tmp_path, storm), "consistent")
    assert "402000/1295000" in found.relation
    idle = table(head, "09:00 | 4100 | 2.1 | 1310000 | 9800", "10:00 | 4180 | 31.4 | 1295000 | 20000")
    steady = table(head, "09:00 | 4100 | 30.1 | 1310000 | 402000", "10:00 | 4180 | 31.4 | 1295000 | 402000")
    for text in (idle, steady):
        assert of(asked(tmp_path, text), "CANCEL_STORM") is None
    bare = table("window | requests | cancelled (%)", "09:00 | 4100 | 2.1", "10:00 | 4180 | 31.4")
    assert row_of("CANCEL_STORM", asked(tmp_path, bare), "suspected").missing


def test_a_client_that_does_not_read(tmp_path):
    head = "stage | p50 (ms) | p99 (ms)"
    rows = ["upstream chunk gap | 18 | 31", "client write gap | 21 | 4100", "response (client blocked) | 12 | 38000",
            "e2e | 4900 | 43100"]  # fmt: skip
    row_of("CLIENT_SLOW_READER", asked(tmp_path, table(head, *rows)), "consistent")
    assert row_of("CLIENT_SLOW_READER", asked(tmp_path, table(head, "queue | 4 | 19", *rows[2:])), "suspected").missing
    slow_engine = ["upstream chunk gap | 18 | 4000", *rows[1:]]
    assert of(asked(tmp_path, table(head, *slow_engine)), "CLIENT_SLOW_READER") is None


def test_a_stage_that_grew_with_the_whole(tmp_path):
    head = "stage | p99_ms_before | p99_ms_after"
    rows = ("queue | 18 | 19", "decode | 4200 | 4230", "postprocess | 22 | 2950", "e2e | 4460 | 7330")
    found = of(asked(tmp_path, table(head, *rows)), "POSTPROCESS_SLOW")
    assert "2950" in found.statement
    moved = ("queue | 18 | 2900", "decode | 4200 | 4230", "postprocess | 22 | 29", "e2e | 4460 | 7330")
    assert of(asked(tmp_path, table(head, *moved)), "POSTPROCESS_SLOW") is None
    stages = table("size | queue (ms) | encode (ms) | prefill (ms)", "small | 12 | 88 | 141", "large | 13 | 2710 | 162")
    row_of("ENCODE_SLOW", asked(tmp_path, stages), "suspected")


IDLE = """static_resources:
  listeners:
  - name: llm
    filter_chains:
    - filters:
      - name: http
        typed_config:
          stream_idle_timeout: 15s
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: vllm, timeout: 0s}}]}
"""


def test_the_age_of_a_proxys_own_answer_is_no_patience_of_the_client(tmp_path):
    rows = [f"a{n} | 15.0{n % 3} | 0 | 504" for n in range(8)]
    text = table("request | age at failure (s) | bytes received | status", *rows)
    assert row_of("GW_IDLE_TIMEOUT", asked(tmp_path, text, IDLE), "consistent")
    assert asked(tmp_path, text).findings[0].code == "GW_UPSTREAM_TIMEOUT"


def test_a_mean_that_many_answers_diluted(tmp_path):
    head = "window | concurrency | completed | TTFT mean (s) | TTFT p50 (s) | TTFT p90 (s)"
    text = table(head, "t0-t1 | 1 | 22 | 118 | 1.9 | 240", "t1-t2 | 8 | 310 | 41 | 6.8 | 244")
    assert of(asked(tmp_path, text), "METRIC_MEAN_DILUTION").level == "consistent"
    faster = table(head, "t0-t1 | 1 | 22 | 118 | 6.9 | 240", "t1-t2 | 8 | 310 | 41 | 1.8 | 44")
    assert of(asked(tmp_path, faster), "METRIC_MEAN_DILUTION") is None


def test_more_work_is_no_worse_tail(tmp_path):
    text = table("arm | n | input tokens mean | TTFT p99 (ms)", "old | 3000 | 510 | 620", "new | 3000 | 2950 | 2980")
    assert asked(tmp_path, text).findings[0].code == "METRIC_UNEQUAL_WORK"


def test_arms_that_are_called_by_numbers_stand_in_the_evidence_of_unequal_work(tmp_path):
    text = table(
        "arm | n | input tokens mean | TTFT p99 (ms)", "main 16 | 3000 | 510 | 620", "pr 17 | 3000 | 2950 | 2980"
    )
    found = asked(tmp_path, text).findings[0]
    assert found.code == "METRIC_UNEQUAL_WORK"
    assert all("16" in item.text and "17" in item.text for item in found.evidence[:1])
