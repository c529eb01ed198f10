"""Causes in the serving scheduler: layer 2.

Who waits before the step, and for whom: queues and caps, the batcher, long prompts, the KV cache, and a scheduler that
stands still.
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.scheduler.admission_deadlock import AdmissionDeadlock
from tailrace.diagnose.causes.scheduler.batcher_wait import BatcherWait
from tailrace.diagnose.causes.scheduler.engine_stall import EngineStall
from tailrace.diagnose.causes.scheduler.hol_long_prefill import HolLongPrefill
from tailrace.diagnose.causes.scheduler.instance_limit import InstanceLimit
from tailrace.diagnose.causes.scheduler.kv_preemption import KvPreemption
from tailrace.diagnose.causes.scheduler.prefill_steals_decode import PrefillStealsDecode
from tailrace.diagnose.causes.scheduler.queue_saturation import QueueSaturation
from tailrace.diagnose.causes.scheduler.tune_not_scale import TuneNotScale

__all__ = ["SCHEDULER"]

SCHEDULER: Final[tuple[Cause, ...]] = (
    AdmissionDeadlock(),
    EngineStall(),
    InstanceLimit(),
    TuneNotScale(),
    BatcherWait(),
    QueueSaturation(),
    PrefillStealsDecode(),
    HolLongPrefill(),
    KvPreemption(),
)
