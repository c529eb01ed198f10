"""The serving scheduler: queues, caps, batches, caches that are full."""

from __future__ import annotations

from tests.diagnose.altered import calm
from tests.diagnose.evidence_texts import table as csv
from tests.diagnose.foreign_words import facts, table
from tests.diagnose.logs.test_causes import BACK, NORMAL, stalled
from tests.diagnose.scenes.scene import Scene, each, without
from tests.diagnose.test_limit_causes import scrapes
from tests.diagnose.test_scheduler_series_causes import VLLM, burst

STUCK = scrapes([3, 0, 0, 0], [0, 4, 5, 6], [10.0, 20.0, 20.0, 20.0])
MOVING = scrapes([3, 0, 0, 0], [0, 4, 5, 6], [10.0, 20.0, 21.0, 22.0])
CAPS = table("max_num_seqs | output tok/s | TPOT p50 (ms)", "4 | 40.8 | 92", "16 | 140 | 104", "32 | 235.5 | 116")
FLAT = table("max_num_seqs | output tok/s | TPOT p50 (ms)", "32 | 900 | 35", "64 | 930 | 69", "128 | 940 | 136")
FULL = {"running": 72, "waiting": 184}

SCHEDULER = (
    Scene(
        "SCHED_ADMISSION_DEADLOCK",
        "consistent",
        {"records": calm, "states": lambda: STUCK},
        {"states": lambda: MOVING},
        {"states": lambda: each(STUCK, generation_tokens_total=None)},
        "token|throughput",
    ),
    Scene(
        "ENGINE_STALL",
        "consistent",
        {"vllm.log": "\n".join([*NORMAL, *stalled(), BACK])},
        {"vllm.log": "\n".join([*NORMAL, *stalled(3, prompt=2400.0), BACK])},
        {"vllm.log": "\n".join(stalled())},
        "usual rate",
    ),
    Scene(
        "SCHED_INSTANCE_LIMIT",
        "consistent",
        {"f.json": facts(instances=2, executing=2, queued=9), "g.json": facts(gpu_util_pct=15)},
        {"g.json": facts(gpu_util_pct=97)},
        {"g.json": None},
        "GPU utilisation",
    ),
    Scene(
        "TUNE_NOT_SCALE",
        "consistent",
        {"a.md": CAPS},
        {"a.md": FLAT},
        {"a.md": without(CAPS, "output tok/s")},
        "throughput",
    ),
    Scene(
        "SCHED_BATCHER_WAIT",
        "consistent",
        {"f.json": facts(max_queue_delay_us=5000, queue_ms=4.9), "g.json": facts(concurrency=1)},
        {"f.json": facts(max_queue_delay_us=5000, queue_ms=80)},
        {"g.json": None},
        "load",
    ),
    Scene(
        "SCHED_QUEUE_SATURATION",
        "consistent",
        {"f.json": facts({"run": {"completed_rps": 2.3, "offered_rps": 10, "n": 1000, "duration_s": 434}})},
        {"f.json": facts({"run": {"completed_rps": 9.6, "offered_rps": 10, "n": 100, "duration_s": 10.4}})},
        {"f.json": facts({"run": {"completed_rps": 2.3, "offered_rps": 10}})},
        "n and duration",
    ),
    Scene(
        "SCHED_PREFILL_STEALS_DECODE",
        "consistent",
        {"f.json": facts(max_num_batched_tokens=8192, prefill_tok_s=2400, gap_s=3.6), "g.json": facts(kv_usage_pct=12)},
        {"f.json": facts(max_num_batched_tokens=8192, prefill_tok_s=2400, gap_s=30)},
        {"g.json": None},
        "KV usage",
    ),
    Scene(
        "SCHED_HOL_LONG_PREFILL",
        "consistent",
        {"r.csv": burst()},
        {"r.csv": burst(long=2400, short=2000)},
        {
            "r.csv": csv(
                "id,ttft_ms,prompt_tokens,output_tokens",
                [(f"r{at}", 20000 + at, 24000 if at < 18 else 2000, 1) for at in range(29)],
            )
        },
        "sent",
    ),
    Scene(
        "SCHED_KV_PREEMPTION",
        "consistent",
        {
            "before.prom": VLLM.format(preempted=0, kv=0.99, **FULL),
            "after.prom": VLLM.format(preempted=480, kv=0.99, **FULL),
        },
        {
            "before.prom": VLLM.format(preempted=480, kv=0.8, **FULL),
            "after.prom": VLLM.format(preempted=480, kv=0.8, **FULL),
        },
        {"before.prom": None},
        "two scrapes",
    ),
)
