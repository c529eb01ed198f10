"""The catalogue: one file a cause. Adding one is writing its file and naming it here."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.cpu_starved import CpuStarved
from tailrace.diagnose.causes.decode_slowdown import DecodeSlowdown
from tailrace.diagnose.causes.gpu_clock import PowerCap, Thermal
from tailrace.diagnose.causes.gpu_shared import GpuShared
from tailrace.diagnose.causes.hol_long_prefill import HolLongPrefill
from tailrace.diagnose.causes.kv_preemption import KvPreemption
from tailrace.diagnose.causes.lane_queue import LaneQueue
from tailrace.diagnose.causes.mix_shift import MixShift
from tailrace.diagnose.causes.network import Network
from tailrace.diagnose.causes.prefill_steals_decode import PrefillStealsDecode
from tailrace.diagnose.causes.queue_saturation import QueueSaturation
from tailrace.diagnose.causes.self_bottleneck import SelfBottleneck
from tailrace.diagnose.causes.slow_reader import SlowReader
from tailrace.diagnose.causes.stage_slow import PostprocessSlow, PreprocessSlow

__all__ = ["CAUSES"]

CAUSES: Final[tuple[Cause, ...]] = (
    QueueSaturation(),
    PrefillStealsDecode(),
    HolLongPrefill(),
    KvPreemption(),
    LaneQueue(),
    SelfBottleneck(),
    Network(),
    SlowReader(),
    PreprocessSlow(),
    PostprocessSlow(),
    CpuStarved(),
    PowerCap(),
    Thermal(),
    GpuShared(),
    MixShift(),
    DecodeSlowdown(),
)
"""In the order in which ties are printed."""
