"""COMPUTE_IDLE_RAMP: the first request after a pause is slow."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.idle_on_arms import idle_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.idle_ramp import idle_ramp_in_records
from tailrace.diagnose.series_evidence.idle_ramp_in_requests import idle_ramp_in_requests
from tailrace.model.finding import Action, Finding

__all__ = ["IdleRamp"]


class IdleRamp(Cause):
    """The time to the first token follows the pause before the request, not the load."""

    code: ClassVar[str] = "COMPUTE_IDLE_RAMP"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = ("send and first-token stamps of single requests", "prompt tokens")
    disproof: ClassVar[str] = "Requests are slow under load too."
    action: ClassVar[Action] = Action.FIX

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return idle_ramp_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest([idle_ramp_in_requests(self, observed), idle_on_arms(self, observed)])
