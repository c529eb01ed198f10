"""Causes in compute and hardware: layer 3.

Clocks, memory, neighbours and links of the device; what a token costs, and where in an answer; and steps
that are not inference (compiling, warm start, an encoder in front). `judge` for records, `observe` for the rest.
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.compute.decode_slowdown import DecodeSlowdown
from tailrace.diagnose.causes.compute.device_limits import Comm, MemoryBound
from tailrace.diagnose.causes.compute.encode_slow import EncodeSlow
from tailrace.diagnose.causes.compute.gap_at_position import GapAtPosition
from tailrace.diagnose.causes.compute.gpu_clock import PowerCap, Thermal
from tailrace.diagnose.causes.compute.gpu_shared import GpuShared
from tailrace.diagnose.causes.compute.idle_ramp import IdleRamp
from tailrace.diagnose.causes.compute.jit import Jit
from tailrace.diagnose.causes.compute.kernel_regression import KernelRegression
from tailrace.diagnose.causes.compute.quant_fallback import QuantFallback
from tailrace.diagnose.causes.compute.rank_skew import RankSkew
from tailrace.diagnose.causes.compute.stall import Stall

__all__ = ["COMPUTE"]

COMPUTE: Final[tuple[Cause, ...]] = (
    Jit(),
    PowerCap(),
    Thermal(),
    GpuShared(),
    IdleRamp(),
    EncodeSlow(),
    GapAtPosition(),
    KernelRegression(),
    RankSkew(),
    Comm(),
    MemoryBound(),
    Stall(),
    DecodeSlowdown(),
    QuantFallback(),
)
