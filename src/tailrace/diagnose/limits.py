"""When a first token, a pace, a loop or a device is called slow, late, busy or idle, where nobody stated an objective.

The two objectives are those that an operator has who sets none (`SlowThresholds`); the other limits are the triage
rules' own words, and every rule that speaks of the same thing takes them from here.
"""

from __future__ import annotations

from typing import Final

from tailrace.model.thresholds import MS, SlowThresholds

__all__ = ["BUSY", "IDLE", "LATE_MS", "LOOP_LATE_MS", "SAME", "THROTTLED", "TPOT_MS", "TTFT_MS", "UNMOVED", "WORSE"]

TTFT_MS: Final = SlowThresholds().ttft_ns / MS
TPOT_MS: Final = SlowThresholds().tpot_ns / MS
LATE_MS: Final = 2000.0
"""A first token later than this is late whatever was promised (R11)."""
LOOP_LATE_MS: Final = 100.0
"""An event loop (or a page of it that does no work) that is later than this was blocked: a stream feels it."""
BUSY: Final = 0.9
"""Share of its time (or of its room) from which a device is near its limit (R6, R12)."""
IDLE: Final = 0.3
"""Share of its time under which a device waits for work (R12)."""
WORSE: Final = 0.20
"""Relative growth of a quantile from which it is worse (R4, R6)."""
SAME: Final = 0.05
"""Relative change of a median within which it is the same (R4, R7)."""
UNMOVED: Final = 0.10
"""Relative change of a tail within which more replicas left it where it was (R8)."""
THROTTLED: Final = 0.10
"""Share of the kernel's enforcement periods in which a CPU limit stopped the processes, from which tokens are late."""
