"""Which of two findings comes first where both are as sure: the particular mechanism before what it looks like.

A root explains what the others describe: with a slower engine every prefill stops the streams for longer, with heavier
requests every queue is longer. Whoever mends the root sees the rest go; whoever mends the rest does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.model.finding import Finding

__all__ = ["BEHIND", "behind", "by_chance", "heavier"]

_SCHEDULING: Final = frozenset(
    {
        "SCHED_QUEUE_SATURATION",
        "TUNE_NOT_SCALE",
        "SCHED_HOL_LONG_PREFILL",
        "SCHED_PREFILL_STEALS_DECODE",
        "COMPUTE_STALL",
        "FE_EVENTLOOP_BLOCK",
        "SCHED_BATCHER_WAIT",
    }
)
_SLOWER: Final = frozenset({"DECODE_SLOWDOWN", "COMPUTE_MEMORY_BOUND"})
_MIX: Final = frozenset({"MIX_SHIFT"})
_MACHINE: Final = _SCHEDULING | _SLOWER | _MIX | {"COMPUTE_KERNEL_REGRESSION", "MIX_CACHE_MISS"}
# Many stops that a slower machine makes of long steps lie on some beat now and then; its own word is no chance.
_BEAT: Final = frozenset({"FE_GC_PAUSE"})

BEHIND: Final[dict[str, frozenset[str]]] = {
    # What the machine itself says of its clock, its neighbours and its processors explains every slower step.
    "COMPUTE_THERMAL": _MACHINE | _BEAT,
    "COMPUTE_POWER_CAP": _MACHINE | _BEAT,
    "COMPUTE_GPU_SHARED": _MACHINE | _BEAT,
    "FE_CPU_STARVED": _MACHINE | _BEAT,
    "COMPUTE_IDLE_RAMP": _MACHINE,
    "COMPUTE_KERNEL_REGRESSION": _SCHEDULING | _SLOWER | _MIX,
    "DECODE_SLOWDOWN": _SCHEDULING | _MIX,
    "MIX_SHIFT": _SCHEDULING - {"TUNE_NOT_SCALE"},
    # A lost first segment holds a stream's beginning back as well.
    "GW_NETWORK": _SCHEDULING | {"GW_HOLDS_FIRST_EVENT"},
    "GW_PROXY_BUFFERING": _MACHINE | {"STREAM_GAP_AT_POSITION", "GW_CHUNK_COALESCING", "GW_HOLDS_FIRST_EVENT"},
    "GW_CHUNK_COALESCING": (_MACHINE - {"FE_EVENTLOOP_BLOCK"}) | {"FE_DETOKENIZE_GROWTH", "STREAM_GAP_AT_POSITION"},
    "GW_HOLDS_FIRST_EVENT": frozenset({"FE_DETOKENIZE_GROWTH", "STREAM_GAP_AT_POSITION", "MIX_CACHE_MISS"}),
    "FE_GC_PAUSE": frozenset({"COMPUTE_JIT", "GW_CHUNK_COALESCING"}) | _SCHEDULING | _SLOWER,
    "ENGINE_STALL": frozenset({"COMPUTE_STALL"}),
    "COMPUTE_JIT": _SCHEDULING | _SLOWER | {"MIX_CACHE_MISS", "ENGINE_STALL"},
    "GW_SELF_BOTTLENECK": frozenset({"COMPUTE_STALL", "FE_EVENTLOOP_BLOCK", "CLIENT_SLOW_READER"}),
    "SCHED_KV_PREEMPTION": frozenset({"SCHED_QUEUE_SATURATION", "COMPUTE_STALL", "MIX_CACHE_MISS"}),
    "SCHED_BATCHER_WAIT": frozenset({"SCHED_QUEUE_SATURATION", "SCHED_HOL_LONG_PREFILL", "COMPUTE_STALL"}),
    "LB_HOTSPOT": frozenset({"LB_SKEW", "SCHED_QUEUE_SATURATION", "TUNE_NOT_SCALE"}),
    "LB_CACHE_AFFINITY_LOST": frozenset({"MIX_CACHE_MISS", "SCHED_QUEUE_SATURATION"}),
    "LB_SKEW": frozenset({"SCHED_QUEUE_SATURATION", "TUNE_NOT_SCALE", "SCHED_HOL_LONG_PREFILL"}),
    "SCHED_INSTANCE_LIMIT": frozenset({"SCHED_QUEUE_SATURATION", "TUNE_NOT_SCALE"}),
    "MIX_CACHE_MISS": frozenset({"SCHED_QUEUE_SATURATION", "TUNE_NOT_SCALE"}),
    "MIX_BURSTY_ARRIVALS": _SCHEDULING | {"DECODE_SLOWDOWN", "MIX_CACHE_MISS"},
    "TUNE_NOT_SCALE": _MIX | {"SCHED_QUEUE_SATURATION", "SCHED_HOL_LONG_PREFILL"},
    # Whatever waits: the containers are ended by their probe.
    "GW_PROBE_KILL": frozenset({"SCHED_QUEUE_SATURATION", "ENGINE_STALL"}),
    "ASR_VAD_SILENCE_LONG": frozenset({"ASR_FINAL_LATE"}),
    "RETRY_STORM": _SCHEDULING | _MIX,
    "GW_LANE_QUEUE": _MIX,
    "MIX_DECODING_OPTIONS": _SCHEDULING | _MIX | {"DECODE_SLOWDOWN"},
    "MIX_STRUCTURED_OUTPUT": _SCHEDULING,
    "CANCEL_NOT_PROPAGATED": frozenset({"CANCEL_STORM"}) | _SCHEDULING,
    "CLIENT_TIMEOUT_BUDGET": frozenset({"CANCEL_STORM"}),
    "GW_CONN_POOL_CAP": frozenset({"GW_NETWORK", "SCHED_QUEUE_SATURATION", "GW_LANE_QUEUE"}),
    "LOCK_CONTENTION": frozenset({"PREPROCESS_SLOW", "POSTPROCESS_SLOW"}),
    # An encoder does one request at a time by its nature: that is no lock.
    "ENCODE_SLOW": frozenset({"LOCK_CONTENTION"}),
    "FE_EVENTLOOP_BLOCK": frozenset({"GW_CHUNK_COALESCING", "COMPUTE_STALL", "GW_LANE_QUEUE"}) | _SLOWER | _MIX,
    "FE_DETOKENIZE_GROWTH": _SCHEDULING | _SLOWER | {"COMPUTE_KERNEL_REGRESSION", "GW_LANE_QUEUE"},
}
"""Code -> the codes that stand behind it where both are as sure."""


def behind(findings: Sequence[Finding]) -> dict[str, int]:
    """Code -> how many roots among `findings` stand before it (0: none)."""
    codes = {item.code for item in findings}
    # Shares that moved by chance explain a quantile now and then; only heavier requests are a root.
    chance = {item.code for item in findings if by_chance(item)}
    roots = codes - chance
    return {
        code: len(roots) if code in chance else sum(code in BEHIND.get(other, ()) for other in roots if other != code)
        for code in codes
    }


def by_chance(finding: Finding) -> bool:
    """Whether the traffic moved without bringing more work: what chance does to a quantile."""
    return finding.code == "MIX_SHIFT" and not heavier(finding)


def heavier(finding: Finding) -> bool:
    """Whether the requests themselves bring more work, beyond chance."""
    return any(item.name == "work" for item in finding.evidence)
