"""Compute and hardware: kernels, clocks, neighbours, links."""

from __future__ import annotations

from tailrace.cli.objectives import parse_objectives
from tests.diagnose.altered import calm
from tests.diagnose.foreign_words import facts, table
from tests.diagnose.machines import gpu
from tests.diagnose.scenes.scene import Scene, without
from tests.diagnose.simulated import without_state
from tests.diagnose.test_before_after_causes import equal_batch, steady
from tests.diagnose.test_compute_series_causes import (
    COMPILING,
    SLOWER,
    STALLED,
    clocks,
    paused,
    positions,
    readings,
    steps,
)
from tests.diagnose.test_gpu_clock import halves
from tests.diagnose.test_gpu_shared import shared_with
from tests.diagnose.test_limit_causes import encoding
from tests.diagnose.test_work_causes import device, paced

STACK = COMPILING.format("ast_to_ttir (triton/compiler/code_generator.py:1377)")
VERSIONS = table("version | TPOT p50 (ms)", "v0.18.0 | 20.1", "v0.21.0 | 32.4")
WEIGHTS = table("weights | TPOT (s)", "fp8 | 0.032", "bf16 | 0.032")


def slow():
    return paced(calm(n=150), 6.0)


def tight():
    records = halves()[0]
    pace = sorted(record.tpot_ns for record in records)[int(0.6 * len(records))] // 1_000_000
    return parse_objectives([f"tpot_p99={max(1, pace)}ms"])


def stranger(*, engine=True):
    records, middle = halves()
    return shared_with(records, lambda at: at >= middle, engine=engine)


def alone():
    records, _ = halves()
    return gpu(records, lambda _: False)


COMPUTE = (
    Scene(
        "COMPUTE_JIT",
        "consistent",
        {"d.txt": STACK, "g.csv": readings(), "f.json": STALLED},
        {"g.csv": readings(idle=False)},
        {"f.json": None},
        "when the stack was taken",
    ),
    Scene(
        "COMPUTE_POWER_CAP",
        "consistent",
        {"g.csv": clocks("0x0000000000000004"), "t.md": SLOWER},
        {"g.csv": clocks("0x0000000000000004", low=1920)},
        {"t.md": None},
        "throughput or latency",
    ),
    Scene(
        "COMPUTE_THERMAL",
        "consistent",
        {"g.csv": clocks("0x0000000000000020", power=700, heat=88), "t.md": SLOWER},
        {"g.csv": clocks("0x0000000000000004")},
        {"t.md": None},
        "throughput or latency",
    ),
    Scene(
        "COMPUTE_GPU_SHARED",
        "consistent",
        {"records": lambda: halves()[0], "hardware": stranger, "objectives": tight},
        {"hardware": alone},
        {"hardware": lambda: stranger(engine=False)},
        "engine",
    ),
    Scene(
        "COMPUTE_IDLE_RAMP",
        "consistent",
        {"a.csv": paused()},
        {"a.csv": paused(slow=40.0)},
        {"a.csv": without(paused(), "prompt_tokens")},
        "prompt tokens",
    ),
    Scene(
        "ENCODE_SLOW",
        "consistent",
        {"records": lambda: encoding(3000)},
        {"records": lambda: encoding(20)},
        {"records": lambda: calm(n=300)},
        "encod",
    ),
    Scene(
        "STREAM_GAP_AT_POSITION",
        "consistent",
        {"a.csv": positions()},
        {"a.csv": positions(spread=4)},
        {"a.csv": without(positions(), "text_offset", "text")},
        "offset",
    ),
    Scene(
        "COMPUTE_KERNEL_REGRESSION",
        "consistent",
        {"a.md": VERSIONS, "f.json": facts(same=["batch", "prompt mix"])},
        {"a.md": VERSIONS.replace("32.4", "19.8")},
        {"f.json": None},
        "batch",
    ),
    Scene(
        "COMPUTE_RANK_SKEW",
        "consistent",
        {"f.json": facts(step_ms=100, cumulative_skew_ms=30)},
        {"f.json": facts(step_ms=100, cumulative_skew_ms=5)},
        {"f.json": facts(cumulative_skew_ms=30)},
    ),
    Scene(
        "COMPUTE_COMM",
        "consistent",
        {"f.json": facts(allreduce_share_pct=46), "g.json": facts(cumulative_skew_ms=1, step_ms=20)},
        {"f.json": facts(allreduce_share_pct=6)},
        {"g.json": None},
        "skew",
    ),
    Scene(
        "COMPUTE_MEMORY_BOUND",
        "consistent",
        {"records": slow, "hardware": lambda: device(slow(), dram_active=0.85, tensor_active=0.1)},
        {"hardware": lambda: device(slow(), dram_active=0.85, tensor_active=0.8)},
        {"hardware": lambda: device(slow(), dram_active=0.85)},
        "tensor|SM",
    ),
    Scene(
        "COMPUTE_STALL",
        "suspected",
        {"a.csv": steps()},
        {"a.csv": steps(at_changes=False)},
        {"a.csv": without(steps(), "running")},
    ),
    Scene(
        "DECODE_SLOWDOWN",
        "consistent",
        {"records": lambda: equal_batch(steady(0.7)), "before": lambda: equal_batch(steady())},
        {"records": lambda: equal_batch(steady(0.7), running=12)},
        {"records": lambda: without_state(steady(0.7)), "before": lambda: without_state(steady())},
        "batch|running",
    ),
    Scene(
        "COMPUTE_QUANT_FALLBACK",
        "consistent",
        {"a.md": WEIGHTS, "f.json": facts(concurrency=1)},
        {"a.md": WEIGHTS.replace("fp8 | 0.032", "fp8 | 0.017")},
        {"f.json": None},
        "batch size",
    ),
)
