"""SCHED_INSTANCE_LIMIT: too few instances compute while the device has room."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.arm_evidence.instance_limit_observed import instance_limit_observed
from tailrace.diagnose.arm_evidence.served_in_turn import served_in_turn
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.instances import instances_in_records
from tailrace.diagnose.series_evidence.batcher_in_counters import instances_in_counters
from tailrace.model.finding import Action, Finding

__all__ = ["InstanceLimit"]


class InstanceLimit(Cause):
    """Every instance is busy, requests queue, the device idles."""

    code: ClassVar[str] = "SCHED_INSTANCE_LIMIT"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = (
        "queue and compute time over a window",
        "the rate and the number of instances",
        "use of the device",
    )
    disproof: ClassVar[str] = "The device itself is busy."
    action: ClassVar[Action] = Action.TUNE

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """The engine's running requests."""
        known = ~np.isnan(evidence.now.done.column("running_at_admission"))
        return "" if known.any() else "executing and waiting requests of the engine"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return instances_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest(
            [
                instances_in_counters(self, observed),
                instance_limit_observed(self, observed),
                served_in_turn(self, observed),
            ]
        )
