"""Causes on small tables that people write: what leads to each, what nearly does, and what a dropped column costs."""

from __future__ import annotations

import pytest

from tailrace.app.diagnose import diagnose_sources
from tests.diagnose.foreign_words import asked, of, table

TRITON = 'name: "yolo"\nbackend: "tensorrt"\nmax_batch_size: 0\ninstance_group [ { count: 1 kind: KIND_GPU } ]\n'


def rows(head: str, text: str) -> str:
    return table(head, *(line.strip() for line in text.strip().splitlines()))


IDLE = "idle before request (s) | TTFT (ms) | concurrency"
GAPS = "stream | gap (s) | text offset (chars)"
PARTIALS = "audio so far (s) | decode per partial (ms) | chunk size (ms)"
TURNS = "metric | p50 (ms) | p90 (ms)"
RATE = "session | configured sample rate (Hz) | bytes received per second"
UPLOAD = "chunk | should be sent (s) | sent (s) | server busy (ms)"
RANKS = "rank | compute (ms/step) | wait in all-reduce (ms/step) | step (ms)"
LOADS = "load | mean rate (req/s) | CV of gaps | queue mean (ms) | compute mean (ms)"
CLASSES = "prompt bucket | share before (%) | share after (%) | p99 before (ms) | p99 after (ms)"
OPTIONS = "week | req/s | mean n | output tokens per request | TPOT p50 (ms)"
COUNTS = "run | concurrency | client output tokens | usage completion tokens"
SWEEP = "concurrency | output tok/s | TTFT p50 (ms) | TPOT p50 (ms)"
COMM = "tensor parallel | TPOT p50 (ms) | all-reduce share of step (%)"
INSTANCES = "concurrency | executing | queue (ms) | compute infer (ms) | GPU util (%) | infer/s"
CLOSED = "after the client closed its socket | 0 s | 1 s | 5 s"
WORKERS = "policy | worker 0 running | worker 1 running | worker 2 running | TTFT p50 (ms)"
WINDOWS = "minute | n | TTFT p99 (ms)"
UPTIME = "uptime (h) | pause, all streams (s)"

FOUND = [
    ("COMPUTE_IDLE_RAMP", "consistent", rows(IDLE, "0.1 | 88 | 1\n 5 | 240 | 1\n 30 | 910 | 1")),
    ("COMPUTE_IDLE_RAMP", "suspected", rows("idle before request (s) | TTFT (ms)", "0.1 | 88\n 5 | 240\n 30 | 910")),
    ("STREAM_GAP_AT_POSITION", "suspected", rows(GAPS, "a | 6.1 | 1884\n b | 5.8 | 1884\n c | 7 | 1884")),
    ("ASR_REDECODE_GROWTH", "suspected", rows(PARTIALS, "1 | 38 | 500\n 5 | 176 | 500\n 10 | 349 | 500\n"
                                              " 20 | 702 | 500")),
    (
        "ASR_VAD_SILENCE_LONG", "consistent",
        rows(TURNS, "end of turn delay | 1040 | 1110\n endpointing silence | 900 | 900\n"
             " transcription delay | 130 | 190"),
    ),
    ("ASR_VAD_SILENCE_LONG", "suspected", rows(TURNS, "end of turn delay | 1040 | 1110\n"
                                               " endpointing silence | 900 | 900")),
    ("AUDIO_RATE_MISMATCH", "consistent", rows(RATE, "a | 16000 | 48010\n b | 16000 | 47990")),
    ("CLIENT_UPLOAD_LATE", "consistent", rows(UPLOAD, "1 | 0.1 | 0.11 | 8\n 50 | 5 | 7.9 | 9\n 150 | 15 | 24.8 | 8")),
    (
        "CLIENT_UPLOAD_LATE", "suspected",
        rows("chunk | should be sent (s) | sent (s)", "1 | 0.1 | 0.11\n 50 | 5 | 7.9\n 150 | 15 | 24.8"),
    ),
    ("COMPUTE_RANK_SKEW", "consistent", rows(RANKS, "0 | 31 | 14 | 45\n 1 | 30 | 15 | 45\n 2 | 44 | 1 | 45")),
    ("MIX_BURSTY_ARRIVALS", "consistent", rows(LOADS, "production | 40 | 3.2 | 61 | 9\n constant | 40 | 0 | 0.4 | 9")),
    (
        "MIX_BURSTY_ARRIVALS", "suspected",
        rows("load | mean rate (req/s) | queue mean (ms)", "production replay | 40 | 61\n constant pacing | 40 | 0.4"),
    ),
    ("MIX_SHIFT", "suspected", rows(CLASSES, "0-512 | 91 | 84 | 380 | 377\n 8k+ | 9 | 16 | 4200 | 4180")),
    ("MIX_DECODING_OPTIONS", "suspected", rows(OPTIONS, "43 | 12 | 1.02 | 310 | 21\n 44 | 12 | 2.5 | 770 | 39")),
    ("METRIC_UNIT", "consistent", rows(COUNTS, "1 | 1 | 2041 | 6208\n 2 | 1 | 2110 | 6391")),
    (
        "SCHED_QUEUE_SATURATION", "suspected",
        rows(SWEEP, "1 | 84 | 61 | 11.8\n 32 | 1905 | 130 | 16.5\n 64 | 2210 | 2950 | 18.1\n 128 | 2233 | 20411 | 18"),
    ),
    ("COMPUTE_COMM", "suspected", rows(COMM, "1 | 38 | 0\n 2 | 29.5 | 36\n 4 | 31.9 | 61")),
    ("CANCEL_NOT_PROPAGATED", "consistent", rows(CLOSED, "engine running | 1 | 1 | 1\n GPU util (%) | 99 | 99 | 98")),
    ("METRIC_WARM_UP", "suspected", rows(WINDOWS, "0 | 300 | 11900\n 1 | 300 | 390\n 2 | 300 | 402\n 3 | 300 | 395")),
    ("FE_GC_PAUSE", "suspected", rows(UPTIME, "1 | 2.4\n 2 | 5.1\n 4 | 10.0\n 8 | 19.7")),
]  # fmt: skip


PARTS = "metric | before | after"
SPEC = "metric | baseline | EAGLE-3"
BUDGET = "max_tokens | client timeout (s) | tok/s per stream | aborted (%)"
TGI = "metric | value"
USERS = "users | median latency (s) | throughput (req/s)"

FOUND += [
    (
        "DECODE_SLOWDOWN", "suspected",
        rows(PARTS, "TTFT p50 / p99 (ms) | 120 / 900 | 118 / 890\n TPOT p50 / p99 (ms) | 22 / 35 | 35 / 55\n"
                    "requests | 4000 | 4000\n concurrency | 32 | 32"),
    ),
    (
        "AB_TAIL_REGRESSED", "consistent",
        rows(SPEC, "TTFT p50 (ms) | 61 | 64\n TTFT p99 (ms) | 88 | 402\n n | 2000 | 2000"),
    ),
    ("CLIENT_TIMEOUT_BUDGET", "consistent", rows(BUDGET, "256 | 60 | 12 | 0.1\n 1024 | 60 | 12 | 96")),
    (
        "SCHED_QUEUE_SATURATION", "consistent",
        rows(TGI, "queue_time p50 | 4.9 s\n inference_time p50 | 1.1 s\n time_per_token p50 | 24 ms\n waiting | 310"),
    ),
    (
        "SCHED_QUEUE_SATURATION", "suspected",
        rows(USERS, "10 | 1.2 | 8.1\n 50 | 1.9 | 26\n 100 | 3.6 | 27.5\n 200 | 7.4 | 27.6"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "level", "text"), FOUND)
def test_it_is_found(code, level, text, tmp_path):
    result = asked(tmp_path, text)
    assert (result.findings[0].code, result.findings[0].level) == (code, level)


NEARLY = [
    ("AB_TAIL_REGRESSED", rows(SPEC, "TTFT p50 (ms) | 61 | 64\n TTFT p99 (ms) | 88 | 96\n n | 2000 | 2000")),
    ("CLIENT_TIMEOUT_BUDGET", rows(BUDGET, "256 | 60 | 12 | 0.1\n 512 | 60 | 12 | 0.2")),
    ("SCHED_QUEUE_SATURATION", rows(TGI, "queue_time p50 | 0.4 s\n inference_time p50 | 1.1 s\n waiting | 3")),
    ("COMPUTE_IDLE_RAMP", rows(IDLE, "0.1 | 88 | 1\n 5 | 85 | 1\n 30 | 91 | 1")),
    ("COMPUTE_IDLE_RAMP", rows(IDLE, "0.1 | 880 | 1\n 5 | 85 | 1\n 30 | 910 | 1")),
    ("STREAM_GAP_AT_POSITION", rows(GAPS, "a | 6.1 | 184\n b | 5.8 | 1884\n c | 7 | 884")),
    ("ASR_REDECODE_GROWTH", rows(PARTIALS, "1 | 38 | 500\n 5 | 40 | 500\n 10 | 39 | 500\n 20 | 41 | 500")),
    (
        "ASR_VAD_SILENCE_LONG",
        rows(TURNS, "end of turn delay | 3040 | 3110\n endpointing silence | 900 | 900\n"
             " transcription delay | 3030 | 3090"),
    ),
    ("AUDIO_RATE_MISMATCH", rows(RATE, "a | 16000 | 32010\n b | 16000 | 31990")),
    ("CLIENT_UPLOAD_LATE", rows(UPLOAD, "1 | 0.1 | 0.11 | 8\n 50 | 5 | 5.02 | 9\n 150 | 15 | 15.03 | 8")),
    ("COMPUTE_RANK_SKEW", rows(RANKS, "0 | 31 | 14 | 45\n 1 | 30 | 15 | 45\n 2 | 31 | 14 | 45")),
    ("MIX_BURSTY_ARRIVALS", rows(LOADS, "production | 40 | 1.0 | 61 | 9\n constant | 40 | 0 | 0.4 | 9")),
    ("MIX_BURSTY_ARRIVALS", rows(LOADS, "production | 80 | 3.2 | 61 | 9\n constant | 40 | 0 | 0.4 | 9")),
    ("MIX_SHIFT", rows(CLASSES, "0-512 | 91 | 90 | 380 | 877\n 8k+ | 9 | 10 | 4200 | 9180")),
    ("METRIC_UNIT", rows(COUNTS, "1 | 1 | 6201 | 6208\n 2 | 1 | 6390 | 6391")),
    (
        "SCHED_QUEUE_SATURATION",
        rows(SWEEP, "1 | 84 | 61 | 11.8\n 32 | 1905 | 130 | 16.5\n 64 | 3710 | 190 | 18.1\n 128 | 7033 | 411 | 19"),
    ),
    ("CANCEL_NOT_PROPAGATED", rows(CLOSED, "engine running | 1 | 0 | 0\n GPU util (%) | 99 | 3 | 0")),
    ("METRIC_WARM_UP", rows(WINDOWS, "0 | 300 | 11900\n 1 | 300 | 390\n 2 | 300 | 9402\n 3 | 300 | 395")),
    ("COMPUTE_KERNEL_REGRESSION", rows("model | backend | test | t/s", "8B Q4 | CPU | pp512 | 62.1\n"
                                       " 8B Q4 | CPU | tg128 | 9.8")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text"), NEARLY)
def test_what_nearly_is_it_is_not(code, text, tmp_path):
    assert of(asked(tmp_path, text), code) is None


def test_the_busiest_row_says_whether_instances_are_the_limit(tmp_path):
    path = tmp_path / "config.pbtxt"
    path.write_text(TRITON)
    load = rows(INSTANCES, "1 | 1 | 0.1 | 6.0 | 15 | 160\n 8 | 1 | 42.6 | 6.1 | 15 | 163")
    other = tmp_path / "load.md"
    other.write_text(load)
    found = diagnose_sources([str(path), str(other)]).findings[0]
    assert (found.code, found.level) == ("SCHED_INSTANCE_LIMIT", "consistent")


def test_replicas_in_columns_are_a_spread(tmp_path):
    uneven = rows(WORKERS, "cache_aware | 46 | 1 | 0 | 5210\n round_robin | 12 | 11 | 13 | 940")
    found = asked(tmp_path, uneven).findings[0]
    assert found.code in {"LB_HOTSPOT", "LB_SKEW"}
    assert not any("per-replica requests in flight" in item for item in found.missing)


EVENTS = """Our pods keep restarting under load, nothing looks like a crash:

4m12s  Warning  Unhealthy  pod/vllm-0  Liveness probe failed: Get "http://10.4.1.7/health": context deadline exceeded
4m2s   Warning  Unhealthy  pod/vllm-0  Liveness probe failed: Get "http://10.4.1.7/health": context deadline exceeded
3m52s  Normal   Killing    pod/vllm-0  Container vllm failed liveness probe, will be restarted

and just before that:

INFO 11-02 14:20:11 [loggers.py:127] Engine 000: Avg prompt throughput: 9120.3 tokens/s, Avg generation throughput: \
812.0 tokens/s, Running: 128 reqs, Waiting: 211 reqs, GPU KV cache usage: 88.1%, Prefix cache hit rate: 4.2%
INFO 11-02 14:20:21 [loggers.py:127] Engine 000: Avg prompt throughput: 8890.0 tokens/s, Avg generation throughput: \
790.5 tokens/s, Running: 128 reqs, Waiting: 240 reqs, GPU KV cache usage: 89.0%, Prefix cache hit rate: 4.2%
"""


def test_a_clusters_events_tell_who_ended_a_container(tmp_path):
    found = asked(tmp_path, EVENTS).findings[0]
    assert found.code == "GW_PROBE_KILL"
    assert "240 requests wait" in found.statement
    told = EVENTS.replace("like a crash:", "like a crash.\nWe have seen it since the last release of the chart:")
    assert asked(tmp_path, told).findings[0].code == "GW_PROBE_KILL"
    crashed = EVENTS.replace("3m52s", "3m55s  Warning  OOMKilling  node/a  Memory cgroup out of memory\n3m52s")
    assert of(asked(tmp_path, crashed), "GW_PROBE_KILL") is None


SMI = """+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|    0   N/A  N/A         2201      C   VLLM::EngineCore                        41870MiB |
|    {gpu}   N/A  N/A         9917      C   python train_lora.py                    31002MiB |
+-----------------------------------------------------------------------------------------+
"""
SLOWER = rows("when | TPOT p50 (ms) | running", "before 14:00 | 16.1 | 12\n after 14:00 | 33.8 | 12")


def test_another_process_on_the_device(tmp_path):
    found = asked(tmp_path, SMI.format(gpu=0), SLOWER).findings[0]
    assert found.code == "COMPUTE_GPU_SHARED"
    assert "train_lora" in found.statement
    assert of(asked(tmp_path, SMI.format(gpu=1), SLOWER), "COMPUTE_GPU_SHARED") is None
