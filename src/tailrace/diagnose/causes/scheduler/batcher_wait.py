"""SCHED_BATCHER_WAIT: the batcher waits for a fuller batch at low load."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.arm_evidence.batcher_wait_observed import batcher_wait_observed
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.batcher import batcher_in_records
from tailrace.diagnose.record_evidence.batcher_groups import batcher_in_groups
from tailrace.diagnose.record_evidence.batcher_tail import held_by_a_window
from tailrace.diagnose.series_evidence.batcher_in_counters import batcher_in_counters
from tailrace.model.finding import Action, Finding

__all__ = ["BatcherWait"]


class BatcherWait(Cause):
    """Queue time is about the batcher's own window while the server is mostly idle."""

    code: ClassVar[str] = "SCHED_BATCHER_WAIT"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("queue and compute time over a window", "the batcher's delay", "the rate")
    disproof: ClassVar[str] = "The queue follows the load."
    action: ClassVar[Action] = Action.TUNE

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """The engine must say how long it queued."""
        known = ~np.isnan(evidence.now.done.ms("queue_engine"))
        return "" if known.sum() >= 20 else "queue times from the engine"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return (
            batcher_in_records(self, evidence) or batcher_in_groups(self, evidence) or held_by_a_window(self, evidence)
        )

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest([batcher_in_counters(self, observed), batcher_wait_observed(self, observed)])
