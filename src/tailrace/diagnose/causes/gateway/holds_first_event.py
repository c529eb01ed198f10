"""GW_HOLDS_FIRST_EVENT: something keeps the first event of some streams, and lets it go with those behind it."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.held_first_event import held_first_event
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.held_event import held_in_timelines
from tailrace.model.finding import Action, Finding

__all__ = ["HoldsFirstEvent"]


class HoldsFirstEvent(Cause):
    """The TTFT has two modes with nothing between them, and in the late one the first event brings its followers."""

    code: ClassVar[str] = "GW_HOLDS_FIRST_EVENT"
    stage: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = ("timelines of streams", "TTFT on the direct path")
    disproof: ClassVar[str] = "The two modes are there on the direct path too, or their share follows the load."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines, or the pace of whole answers."""
        known = evidence.now.gaps.rows or bool((evidence.now.done.column("tpot_ns") > 0).any())
        return "" if known else "timelines of streams (none was kept), or TPOT and output tokens"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return held_first_event(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return held_in_timelines(self, evidence)
