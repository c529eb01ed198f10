"""SCHED_ADMISSION_DEADLOCK: nothing runs, requests wait, and nothing is computed."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.deadlock import deadlock_in_load, deadlock_stated
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.deadlock import deadlock_in_scrapes
from tailrace.model.finding import Action, Finding

__all__ = ["AdmissionDeadlock"]


class AdmissionDeadlock(Cause):
    """Running 0, waiting > 0 and no token of any kind over at least two intervals: the head of the queue can never be
    admitted, and everybody waits behind it.
    """

    code: ClassVar[str] = "SCHED_ADMISSION_DEADLOCK"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = (
        "running, waiting and both throughputs in two intervals (log lines or scrapes)",
    )
    disproof: ClassVar[str] = "Any token was produced meanwhile."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs at least three scrapes."""
        enough = len(evidence.states) > 2
        return "" if enough else "three scrapes of the engine's running, waiting and token counters"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records, scrapes and timelines."""
        return deadlock_in_scrapes(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From an engine's load lines."""
        return deadlock_in_load(self, observed) or deadlock_stated(self, observed)
