"""Each cause on tables, forms and printed benchmarks: what leads to it in other words, and what nearly does."""

import pytest

from tests.diagnose.foreign_words import asked, everything, facts, of, table

BENCH = """============ Serving Benchmark Result ============
Successful requests:                     200
Maximum request concurrency:             {c}
Benchmark duration (s):                  {d}
Total input tokens:                      200000
Total generated tokens:                  {o}
Request throughput (req/s):              {r}
---------------Time to First Token----------------
Mean TTFT (ms):                          {ttft}
Median TTFT (ms):                        {ttft}
P99 TTFT (ms):                           {ttft}
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          {tpot}
Median TPOT (ms):                        {tpot}
P99 TPOT (ms):                           {tpot}
==================================================
"""

FOUND = [
    pytest.param("LB_SKEW", ("consistent",), [facts(running_per_replica=[27, 5, 0, 0])], id="skew facts list"),
    pytest.param(
        "LB_SKEW", ("suspected", "consistent"), [facts(in_flight_per_worker={"a": 40, "b": 3})], id="skew facts dict"
    ),
    pytest.param(
        "LB_SKEW",
        ("consistent",),
        [table("pod | running | waiting", "vllm-0 | 30 | 12", "vllm-1 | 2 | 0", "vllm-2 | 1 | 0", "vllm-3 | 1 | 0")],
        id="skew table pods",
    ),
    pytest.param(
        "LB_SKEW",
        ("suspected",),
        [
            facts(
                {"rank0": {"requests": 1, "tokens": 10000}, "rank1": {"requests": 2, "tokens": 2000}},
                lb_score="waiting*4+running",
            )
        ],
        id="skew facts arms",
    ),
    pytest.param(
        "LB_HOTSPOT",
        ("suspected",),
        [
            table("metric | cache_aware | round_robin", "TTFT p50 (ms) | 1700 | 600", "TTFT p99 (ms) | 5200 | 1400"),
            "python3 -m sglang.bench_serving --gsp-num-groups 1 --gsp-system-prompt-len 3000 --gsp-question-len 6000\n",
        ],
        id="hotspot transposed",
    ),
    pytest.param(
        "LB_HOTSPOT",
        ("suspected",),
        [
            facts(
                {"prefix_aware": {"ttft_mean_s": 2.1}, "least_request": {"ttft_mean_s": 0.9}},
                prefix_groups=1,
                system_prompt_len=2000,
                question_len=6000,
            )
        ],
        id="hotspot facts",
    ),
    pytest.param(
        "LB_CACHE_AFFINITY_LOST",
        ("suspected", "consistent", "proven"),
        [
            table("build | prefix hit rate (%) | TTFT p50 (ms)", "before | 80.9 | 410", "after | 41.2 | 1350"),
            facts(changed="tie-break of the DP load balancer rotates", same=["client", "trace"]),
        ],
        id="affinity",
    ),
    pytest.param(
        "LB_CACHE_AFFINITY_LOST",
        ("suspected",),
        [
            table(
                "routing | cache hit rate (%) | mean TTFT (ms)",
                "session sticky | 78 | 300",
                "rotating tie-break | 30 | 900",
            )
        ],
        id="affinity no changed",
    ),
    pytest.param(
        "MIX_CACHE_MISS",
        ("suspected", "consistent", "proven"),
        [
            table("build | prefix hit rate (%) | TTFT p50 (ms)", "before | 80.9 | 410", "after | 2 | 1350"),
            facts(changed="sliding window block size", same=["prompts"]),
        ],
        id="affinity hit change other",
    ),
    pytest.param(
        "GW_CHUNK_COALESCING",
        ("consistent",),
        [
            table(
                "setup | users | first token p50 (s) | first token p95 (s) | total time p50 (s)",
                "direct | 1 | 0.020 | 0.024 | 2.10",
                "behind gateway | 1 | 0.071 | 0.075 | 2.13",
            )
        ],
        id="coalesce s",
    ),
    pytest.param(
        "GW_CHUNK_COALESCING",
        ("suspected", "consistent"),
        [
            facts(
                {
                    "direct": {"concurrency": 1, "ttft_p50_ms": 17, "ttft_p95_ms": 21, "itl_p50_ms": 10},
                    "via proxy": {"concurrency": 1, "ttft_p50_ms": 65, "ttft_p95_ms": 69, "itl_p50_ms": 10},
                }
            )
        ],
        id="coalesce facts",
    ),
    pytest.param(
        "GW_HOLDS_FIRST_EVENT",
        ("suspected", "consistent"),
        [
            facts(
                {"via gateway": {"ttft_s": [0.4, 0.5, 6.1, 6.0]}, "direct": {"ttft_s": [0.4, 0.5, 0.45, 0.5]}},
                concurrency=1,
            )
        ],
        id="holds",
    ),
    pytest.param(
        "GW_HOLDS_FIRST_EVENT",
        ("suspected", "consistent"),
        [
            table(
                "path | TTFT (s)",
                "via proxy | 0.4",
                "via proxy | 0.5",
                "via proxy | 6.1",
                "via proxy | 6.0",
                "direct | 0.4",
                "direct | 0.5",
                "direct | 0.45",
                "direct | 0.42",
            ),
            facts(concurrency=1),
        ],
        id="holds rows",
    ),
    pytest.param(
        "GW_CONN_POOL_CAP",
        ("suspected",),
        [facts(inflight_client=384, inflight_upstream=100, engine_waiting=0)],
        id="pool facts",
    ),
    pytest.param(
        "GW_CONN_POOL_CAP",
        ("consistent",),
        [
            table(
                "client in-flight | upstream in-flight | engine waiting",
                "60 | 60 | 0",
                "150 | 100 | 0",
                "240 | 100 | 0",
                "384 | 100 | 0",
            )
        ],
        id="pool table",
    ),
    pytest.param(
        "GW_NETWORK",
        ("suspected", "consistent"),
        [
            table(
                "region | client TTFT p50 (ms) | server TTFT p50 (ms)",
                "same zone | 112 | 105",
                "other continent | 298 | 106",
            )
        ],
        id="network",
    ),
    pytest.param(
        "FE_EVENTLOOP_BLOCK",
        ("consistent", "proven"),
        [
            table(
                "tokenizer | max all-stream stall (s) | req/s | concurrency",
                "in the event loop | 12.4 | 2.1 | 16",
                "thread pool | 0.08 | 9.7 | 16",
            )
        ],
        id="loop s",
    ),
    pytest.param(
        "FE_EVENTLOOP_BLOCK",
        ("consistent", "proven"),
        [
            facts(
                {"before": {"health_s": 25}, "after": {"health_ms": 0.06}},
                changed="audio loading moved off the event loop",
                concurrency=128,
            )
        ],
        id="loop health facts",
    ),
    pytest.param(
        "FE_EVENTLOOP_BLOCK",
        ("suspected", "consistent", "proven"),
        [facts(health_before_s=25, health_after_ms=0.06, changed="audio decoding off the loop")],
        id="loop health ctx",
    ),
    pytest.param(
        "FE_EVENTLOOP_BLOCK",
        ("suspected", "consistent"),
        [
            facts(
                loop_lag_ms=400,
                prompt_tokens=256000,
                note="server unresponsive",
                preprocess="tokenisation on the asyncio loop",
            )
        ],
        id="loop tokens",
    ),
    pytest.param(
        "FE_EVENTLOOP_BLOCK",
        ("suspected", "consistent"),
        [
            table(
                "version | streams | p50 latency (s) | failed streams",
                "2.0 | 4 | 0.05 | 0",
                "2.1 | 4 | 0.09 | 0",
                "2.0 | 16 | 0.06 | 0",
                "2.1 | 16 |  | 16",
            ),
            facts(gpu_util_pct=12, changed="2.0 -> 2.1"),
        ],
        id="sessions",
    ),
    pytest.param(
        "FE_CPU_STARVED",
        ("consistent",),
        [
            facts(
                {"cpu2": {"itl_mean_ms": 62.1}, "cpu6": {"itl_mean_ms": 31.4}},
                changed="cpu request",
                same=["gpu clocks", "batch", "kv usage"],
            )
        ],
        id="cpu facts",
    ),
    pytest.param(
        "FE_CPU_STARVED",
        ("suspected",),
        [table("vCPUs | TPOT p50 (s)", "2 | 0.08", "4 | 0.045", "16 | 0.04")],
        id="cpu cores",
    ),
    pytest.param(
        "FE_CPU_STARVED",
        ("suspected",),
        ["nr_periods 3000\nnr_throttled 1800\nthrottled_usec 90000000\n"],
        id="cpu throttle",
    ),
    pytest.param(
        "FE_CPU_STARVED",
        ("suspected",),
        [facts(cores=48, cores_busy=2, cpu_pct_per_core=100, tensor_parallel=2)],
        id="cpu pinned",
    ),
    pytest.param(
        "SCALE_OUT_TOO_SLOW",
        ("suspected",),
        [
            facts(
                {"before": {"ttft_p95_ms": 900, "offered_rps": 12}, "after": {"ttft_p95_ms": 7100, "offered_rps": 12}},
                changed="new model version deployed",
                action="scaled out by 2 pods, no improvement for 15 min",
                cold_start_s=277,
            )
        ],
        id="scaleout",
    ),
    pytest.param(
        "CANCEL_NOT_PROPAGATED",
        ("suspected", "consistent"),
        [facts(running_after_disconnect=1, gpu_util_after_disconnect_pct=100, seconds_after=2)],
        id="cancel facts",
    ),
    pytest.param(
        "CANCEL_NOT_PROPAGATED",
        ("consistent", "proven"),
        [
            table(
                "metric | old | new",
                "GPU utilisation 2 s after cancel (%) | 97 | 1",
                "running 2 s after cancel | 1 | 0",
            )
        ],
        id="cancel cols",
    ),
    pytest.param(
        "CLIENT_TIMEOUT_BUDGET",
        ("consistent",),
        [facts(client_timeout_s=120, tok_s=60, running=20, max_tokens=900)],
        id="timeout",
    ),
    pytest.param(
        "CLIENT_TIMEOUT_BUDGET",
        ("suspected", "consistent"),
        [facts({"run": {"tpot_p50_ms": 300, "output_tokens": 600}}, client_timeout_s=60)],
        id="timeout arm",
    ),
    pytest.param(
        "SCHED_QUEUE_SATURATION",
        ("consistent",),
        [BENCH.format(c=64, d=100, o=20000, r=2.0, ttft=26000, tpot=60)],
        id="sat little",
    ),
    pytest.param(
        "SCHED_QUEUE_SATURATION",
        ("consistent",),
        [facts({"run": {"n": 600, "offered_rps": 20, "completed_rps": 4.0, "duration_s": 150}})],
        id="sat rate",
    ),
    pytest.param(
        "SCHED_QUEUE_SATURATION",
        ("suspected", "consistent"),
        [table("offered req/s | completed req/s | TTFT p99 (ms)", "2 | 2.0 | 300", "4 | 3.9 | 600", "8 | 4.1 | 41000")],
        id="sat table",
    ),
    pytest.param(
        "SCHED_QUEUE_SATURATION",
        ("suspected", "consistent"),
        [table("load | queue p99 (ms) | TTFT p99 (ms) | running | waiting", "peak | 8000 | 9100 | 256 | 90")],
        id="sat queue",
    ),
    pytest.param(
        "SCHED_PREFILL_STEALS_DECODE",
        ("consistent",),
        [facts(max_num_batched_tokens=8192, prefill_tok_s=2400, gap_s=3.6, kv_usage_pct=20)],
        id="steals arith",
    ),
    pytest.param(
        "SCHED_PREFILL_STEALS_DECODE",
        ("suspected", "consistent"),
        [
            table(
                "max_num_batched_tokens | ITL p99 (ms) | TTFT p99 (ms)",
                "2048 | 310 | 5200",
                "8192 | 1250 | 3900",
                "16384 | 2500 | 3700",
            )
        ],
        id="steals sweep",
    ),
    pytest.param(
        "SCHED_PREFILL_STEALS_DECODE",
        ("suspected",),
        [facts({"decode alone": {"decode_tok_s": 28}, "while others prefill": {"decode_tok_s": 0.4}}, kv_usage_pct=15)],
        id="steals beside",
    ),
    pytest.param(
        "SCHED_HOL_LONG_PREFILL",
        ("consistent",),
        [table("class | prompt tokens | n | TTFT p99 (s)", "small | 2000 | 11 | 22.06", "large | 24000 | 18 | 22.05")],
        id="hol",
    ),
    pytest.param(
        "SCHED_HOL_LONG_PREFILL",
        ("suspected", "consistent"),
        [facts(prompt_tokens=130000, max_num_batched_tokens=512, iterations=250)],
        id="hol steps",
    ),
    pytest.param(
        "SCHED_KV_PREEMPTION",
        ("consistent", "proven"),
        [
            table(
                "max_num_seqs | preemptions | ITL p99 (ms) | TTFT p99 (s)", "256 | 900 | 90 | 10", "128 | 3 | 31 | 14"
            ),
            facts(changed="max_num_seqs"),
        ],
        id="preempt s",
    ),
    pytest.param(
        "SCHED_KV_PREEMPTION",
        ("consistent",),
        [
            facts(
                {"run": {"preemptions": 480, "n": 5000, "ttft_p50_s": 60}},
                max_concurrency=256,
                kv_capacity_tokens=77088,
            )
        ],
        id="preempt facts one",
    ),
    pytest.param(
        "SCHED_KV_PREEMPTION",
        ("suspected",),
        [facts(running=72, max_num_seqs=256, kv_usage_pct=99, kv_capacity_tokens=77088, tokens_per_request=1070)],
        id="preempt capped",
    ),
    pytest.param(
        "SCHED_KV_PREEMPTION",
        ("suspected",),
        [
            facts(
                {"before": {"e2e_p99_s": 30, "concurrency": 20}, "after": {"e2e_p99_s": 4, "concurrency": 20}},
                changed="batch_scheduler_policy max_utilization -> guaranteed_no_evict",
            )
        ],
        id="trt evict",
    ),
    pytest.param(
        "TUNE_NOT_SCALE",
        ("consistent",),
        [
            facts(
                {"4": {"tok_s": 40.8, "tpot_p50_ms": 92}, "32": {"tok_s": 235.5, "tpot_p50_ms": 116}},
                changed="max_num_seqs",
            )
        ],
        id="tune facts",
    ),
    pytest.param(
        "TUNE_NOT_SCALE",
        ("consistent",),
        [table("max batch size | req/s | mean TPOT (s)", "64 | 9.1 | 0.05", "32 | 5.0 | 0.045", "8 | 1.4 | 0.04")],
        id="tune reverse",
    ),
    pytest.param(
        "TUNE_NOT_SCALE",
        ("suspected",),
        [table("max_num_seqs | ITL mean (ms)", "16 | 8.2", "32 | 9.4")],
        id="tune half",
    ),
    pytest.param(
        "MIX_STRUCTURED_OUTPUT",
        ("suspected", "consistent"),
        [table("requests | TTFT p50 (s) | ITL p50 (ms)", "plain | 0.4 | 12", "with JSON schema | 3.9 | 12.6")],
        id="grammar table",
    ),
    pytest.param(
        "MIX_STRUCTURED_OUTPUT",
        ("suspected", "consistent"),
        [
            table(
                "response_format | output tok/s | GPU util (%) | running",
                "none | 1800 | 92 | 8",
                "json_schema | 210 | 4 | 8",
            )
        ],
        id="grammar tput",
    ),
    pytest.param(
        "MIX_DECODING_OPTIONS",
        ("suspected", "consistent"),
        [table("best_of | concurrency | TPOT p50 (ms)", "1 | 16 | 30", "4 | 16 | 85")],
        id="options",
    ),
    pytest.param(
        "MIX_CACHE_MISS",
        ("consistent", "proven"),
        [
            facts(
                {"vanilla": {"hit_pct": 0, "wall_s": 36.2}, "fixed": {"hit_pct": 90, "wall_s": 4.4}},
                changed="sliding window eviction",
                prompts="4 identical contexts sent again",
            )
        ],
        id="miss facts",
    ),
    pytest.param(
        "MIX_CACHE_MISS",
        ("suspected", "consistent", "proven"),
        [
            table(
                "build | hit tokens | query tokens | wall (s)",
                "vanilla | 0 | 354023 | 36.2",
                "fixed | 318720 | 354023 | 4.4",
            )
        ],
        id="miss table",
    ),
    pytest.param(
        "COMPUTE_QUANT_FALLBACK",
        ("suspected",),
        [table("weights | decode tok/s", "AWQ int4 | 41", "bf16 | 40")],
        id="quant rate",
    ),
    pytest.param(
        "COMPUTE_QUANT_FALLBACK",
        ("consistent",),
        [facts({"fp8": {"tpot_p50_ms": 30, "concurrency": 1}, "bf16": {"tpot_p50_ms": 31, "concurrency": 1}})],
        id="quant batch1",
    ),
    pytest.param(
        "COMPUTE_KERNEL_REGRESSION",
        ("suspected", "consistent"),
        [
            facts(
                {"0.18": {"rel_speed": 1.0}, "0.21": {"rel_speed": 0.62}, "0.21 + fix": {"rel_speed": 0.87}},
                changed="vLLM 0.18 -> 0.21",
                concurrency=64,
                same=["batch", "mix"],
            )
        ],
        id="kernel",
    ),
    pytest.param(
        "COMPUTE_KERNEL_REGRESSION",
        ("consistent",),
        [
            table(
                "version | concurrency | ISL | OSL | TPOT p50 (ms)",
                "v0.18.0 | 64 | 1000 | 500 | 20.1",
                "v0.21.0 | 64 | 1000 | 500 | 32.4",
            )
        ],
        id="kernel tpot",
    ),
    pytest.param(
        "COMPUTE_POWER_CAP",
        ("suspected", "consistent"),
        [
            table(
                "SM clock (MHz) | power (W) | power limit (W) | prefill tok/s",
                "1980 | 500 | 700 | 9000",
                "1500 | 699 | 700 | 7100",
            )
        ],
        id="clock power",
    ),
    pytest.param(
        "COMPUTE_MEMORY_BOUND",
        ("suspected", "consistent"),
        [facts(dram_active_pct=88, sm_active_pct=21, tpot_p50_ms=110)],
        id="mem",
    ),
    pytest.param(
        "COMPUTE_COMM",
        ("suspected", "consistent"),
        [facts(allreduce_share_pct=46, step_ms=20, cumulative_skew_ms=1, tensor_parallel=8)],
        id="comm",
    ),
    pytest.param(
        "COMPUTE_COMM", ("suspected",), [table("TP | TPOT p50 (ms)", "2 | 21", "4 | 20", "8 | 20.5")], id="comm tp"
    ),
    pytest.param(
        "SCHED_INSTANCE_LIMIT",
        ("suspected", "consistent"),
        [facts(instances=1, executing=1, queued=12, gpu_util_pct=18)],
        id="instances",
    ),
    pytest.param(
        "SCHED_BATCHER_WAIT",
        ("suspected", "consistent"),
        [facts(max_queue_delay_us=5000, queue_ms=4.9, compute_ms=2, concurrency=1)],
        id="batcher",
    ),
    pytest.param(
        "LB_SKEW",
        ("suspected",),
        [table("replicas | offered req/s | TTFT p99 (s)", "2 | 8 | 9.1", "4 | 8 | 8.9")],
        id="r8",
    ),
]

SILENT = [
    pytest.param("", [table("replica | running | waiting", "r0 | 8 | 0", "r1 | 9 | 0", "r2 | 7 | 0")], id="even"),
    pytest.param(
        "",
        [
            table("routing policy | mean TTFT (ms)", "round_robin | 627", "cache_aware | 1617"),
            "python -m sglang.bench_serving --gsp-num-groups 64 --gsp-system-prompt-len 2548 --gsp-question-len 7252\n",
        ],
        id="hotspot many groups",
    ),
    pytest.param(
        "", [table("routing policy | mean TTFT (ms)", "round_robin | 1617", "cache_aware | 627")], id="hotspot better"
    ),
    pytest.param(
        "",
        [
            table(
                "path | concurrency | TTFT p50 (ms) | TTFT p95 (ms)",
                "direct | 1 | 20 | 24",
                "via proxy | 1 | 21 | 25",
                "direct | 32 | 90 | 120",
                "via proxy | 32 | 160 | 300",
            )
        ],
        id="coalesce grows only",
    ),
    pytest.param(
        "",
        [
            facts(
                {"via gateway": {"ttft_s": [0.4, 0.5, 6.1, 6.0]}, "direct": {"ttft_s": [0.4, 0.5, 6.2, 6.1]}},
                concurrency=1,
            )
        ],
        id="holds both modes",
    ),
    pytest.param(
        "",
        [
            table(
                "client in-flight | upstream in-flight | engine waiting",
                "60 | 60 | 0",
                "150 | 100 | 40",
                "240 | 100 | 80",
                "384 | 100 | 90",
            )
        ],
        id="pool waiting",
    ),
    pytest.param("", [table("build | max gap (ms) | concurrency", "a | 900 | 8", "b | 120 | 8")], id="loop other"),
    pytest.param("", [table("CPU request | ITL mean (ms)", "2 | 31.9", "8 | 31.4")], id="cpu flat"),
    pytest.param(
        "SCALE_OUT_TOO_SLOW",
        [
            facts(
                {"before": {"ttft_p95_s": 2, "req_s": 40}, "after": {"ttft_p95_s": 14, "req_s": 90}},
                changed="model rollout",
                action="one replica added, no effect for 20 min",
            )
        ],
        id="scaleout volume",
    ),
    pytest.param(
        "",
        [
            table(
                "build | GPU util 1 s after client disconnect (%) | engine running 1 s after disconnect", "now | 0 | 0"
            )
        ],
        id="cancel fine",
    ),
    pytest.param("", [facts(client_timeout_s=600, tok_s=60, running=20, max_tokens=900)], id="timeout ok"),
    pytest.param("", [BENCH.format(c=16, d=60, o=20000, r=3.3, ttft=150, tpot=45)], id="healthy closed"),
    pytest.param(
        "",
        [facts({"run": {"n": 100, "offered_rps": 10, "completed_rps": 9.6, "duration_s": 10.4, "ttft_p99_ms": 200}})],
        id="short run",
    ),
    pytest.param(
        "",
        [table("class | prompt tokens | n | TTFT p99 (s)", "small | 2000 | 11 | 0.6", "large | 24000 | 18 | 22.05")],
        id="hol not",
    ),
    pytest.param(
        "", [table("watermark | preemptions | ITL p99 (ms)", "off | 0 | 40", "0.05 | 0 | 39")], id="preempt zero"
    ),
    pytest.param(
        "",
        [table("max_num_seqs | output tok/s | TPOT p50 (ms)", "32 | 900 | 35", "64 | 930 | 69", "128 | 940 | 136")],
        id="tune flat",
    ),
    pytest.param(
        "",
        [table("requests | TTFT p50 (s) | ITL p50 (ms)", "plain | 0.4 | 12", "with JSON schema | 1.9 | 80")],
        id="grammar itl too",
    ),
    pytest.param("", [facts({"now": {"hit_pct": 5}}, repeat_ratio_offered=0.05)], id="miss offered fell"),
    pytest.param("", [table("weights | TPOT (ms)", "fp8 | 17", "bf16 | 31")], id="quant fine"),
    pytest.param(
        "", [table("weights | concurrency | TPOT (ms)", "fp8 | 128 | 40", "bf16 | 128 | 41")], id="quant large"
    ),
    pytest.param(
        "",
        [table("version | concurrency | TPOT p50 (ms)", "v0.18.0 | 64 | 32.4", "v0.21.0 | 64 | 20.1")],
        id="kernel better",
    ),
    pytest.param("", [table("sclk (MHz) | prefill tok/s", "2600 | 134", "2590 | 133")], id="clock flat"),
    pytest.param(
        "", ["| metric | value |\n|---|---|\n| TTFT p99 (ms) | 210 |\n| TPOT p50 (ms) | 25 |\n"], id="a healthy table"
    ),
]


@pytest.mark.parametrize(("code", "levels", "texts"), FOUND)
def test_a_cause_in_other_words(tmp_path, code, levels, texts):
    result = asked(tmp_path, *texts)
    first = result.findings[0]
    assert first.code == code
    assert first.level in levels
    assert all((first.statement, first.relation, first.advice, first.price, first.disproof, first.verify))
    assert first.evidence
    assert (first.level == "suspected") == bool(first.missing or first.rivals)


@pytest.mark.parametrize(("code", "texts"), SILENT)
def test_what_nearly_is_one(tmp_path, code, texts):
    found = [item.code for item in asked(tmp_path, *texts).findings]
    assert code not in found if code else found in ([], ["INSUFFICIENT_EVIDENCE"])


DROPPED = [
    pytest.param(
        "FE_CPU_STARVED",
        [table("CPU request | ITL mean (ms)", "2 | 62.1", "6 | 31.4")],
        facts(changed="cpu request", same=["gpu clocks", "batch", "kv usage"]),
        "were equal in all arms",
        id="cpu: what was equal",
    ),
    pytest.param(
        "SCHED_QUEUE_SATURATION",
        [facts({"run": {"completed_rps": 2.3, "offered_rps": 10}})],
        facts({"run": {"completed_rps": 2.3, "offered_rps": 10, "n": 1000, "duration_s": 434}}),
        "n and duration",
        id="saturation: n and duration",
    ),
    pytest.param(
        "SCHED_PREFILL_STEALS_DECODE",
        [facts(max_num_batched_tokens=8192, prefill_tok_s=2400, gap_s=3.6)],
        facts(kv_usage_pct=12),
        "KV usage",
        id="prefill: kv usage",
    ),
    pytest.param(
        "COMPUTE_KERNEL_REGRESSION",
        [table("version | TPOT p50 (ms)", "v0.18.0 | 20.1", "v0.21.0 | 32.4")],
        facts(same=["batch", "prompt mix"]),
        "batch",
        id="kernel: batch and mix",
    ),
    pytest.param(
        "COMPUTE_QUANT_FALLBACK",
        [table("weights | TPOT (s)", "fp8 | 0.032", "bf16 | 0.032")],
        facts(concurrency=1),
        "batch size",
        id="quantisation: the batch",
    ),
    pytest.param(
        "GW_HOLDS_FIRST_EVENT",
        [facts({"via gateway": {"ttft_s": [0.4, 0.5, 6.1, 6.0]}, "direct": {"ttft_s": [0.4, 0.5, 0.45, 0.5]}})],
        facts(concurrency=1),
        "concurrency",
        id="held event: the load",
    ),
    pytest.param(
        "SCHED_INSTANCE_LIMIT",
        [facts(instances=2, executing=2, queued=9)],
        facts(gpu_util_pct=15),
        "GPU utilisation",
        id="instances: the device",
    ),
    pytest.param(
        "SCHED_BATCHER_WAIT",
        [facts(max_queue_delay_us=5000, queue_ms=5.1)],
        facts(concurrency=1),
        "the load",
        id="batcher: the load",
    ),
    pytest.param(
        "COMPUTE_COMM",
        [facts(allreduce_share_pct=46)],
        facts(cumulative_skew_ms=1, step_ms=20),
        "skew",
        id="communication: the skew",
    ),
    pytest.param(
        "MIX_DECODING_OPTIONS",
        [table("best_of | TPOT p50 (ms)", "1 | 30", "4 | 85")],
        table("best_of | concurrency | TPOT p50 (ms)", "1 | 16 | 30", "4 | 16 | 85"),
        "same load",
        id="options: the load",
    ),
]


@pytest.mark.parametrize(("code", "texts", "more", "missing"), DROPPED)
def test_a_missing_input_lowers_the_level_and_is_named(tmp_path, code, texts, more, missing):
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    without = of(asked(tmp_path / "without", *texts), code)
    assert without is not None
    assert without.level == "suspected"
    assert any(missing in item for item in without.missing), without.missing
    both = [more] if more.startswith("|") or '"arms"' in more else [*texts, more]
    whole = of(asked(tmp_path / "with", *both), code)
    assert whole is not None
    assert whole.level == "consistent", whole.missing


def test_a_lever_that_works_does_not_prove_the_mechanism(tmp_path):
    result = asked(
        tmp_path,
        table("CPU request | ITL mean (ms) | decode tok/s", "2 | 62.1 | 16.1", "6 | 31.4 | 31.9", "8 | 31.4 | 31.8"),
        "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
        facts(changed="cpu request", same=["gpu clocks", "batch", "kv usage", "prompt mix"]),
    )
    finding = result.findings[0]
    assert (finding.code, finding.level) == ("FE_CPU_STARVED", "consistent")
    assert "mechanism unproven" in finding.statement
    assert "does not clear the CPU" in everything(finding)
    assert "6 CPUs (request and limit)" in finding.advice


def test_one_stated_change_that_moves_the_counter_is_proof_and_its_price_is_told(tmp_path):
    rows = table(
        "watermark | preemptions | TTFT p99 (s) | ITL p99 (ms)", "off | 1000 | 20 | 41", "0.05 | 150 | 27 | 18"
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    proven = asked(tmp_path / "a", rows, facts(changed="admission watermark", n=400)).findings[0]
    assert (proven.code, proven.level) == ("SCHED_KV_PREEMPTION", "proven")
    assert "TTFT p99 20 s -> 27 s" in proven.price
    told = asked(tmp_path / "b", rows).findings[0]
    assert told.level == "consistent"
    assert "what was changed" in told.missing[0]


def test_replicas_that_change_nothing_say_not_to_add_more(tmp_path):
    result = asked(tmp_path, table("replicas | offered req/s | TTFT p99 (s)", "2 | 8 | 9.1", "4 | 8 | 8.9"))
    assert "R8" in result.triage
    assert "Do not add more" in result.findings[0].statement
    (tmp_path / "other").mkdir()
    helped = asked(tmp_path / "other", table("replicas | offered req/s | TTFT p99 (s)", "2 | 8 | 9.1", "4 | 8 | 2.9"))
    assert "R8" not in helped.triage
