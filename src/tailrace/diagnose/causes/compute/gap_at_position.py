"""STREAM_GAP_AT_POSITION: streams stand still at one place of their text."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.position_by_parser import position_by_parser
from tailrace.diagnose.arm_evidence.position_on_arms import position_on_arms
from tailrace.diagnose.arm_evidence.position_stated import position_stated
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.gap_position import gap_position_in_timelines
from tailrace.diagnose.series_evidence.gap_at_position_in_chunks import gap_at_position_in_chunks
from tailrace.model.finding import Action, Finding

__all__ = ["GapAtPosition"]


class GapAtPosition(Cause):
    """The same position in several streams has a long gap."""

    code: ClassVar[str] = "STREAM_GAP_AT_POSITION"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("chunks of several streams with their text offset",)
    disproof: ClassVar[str] = "The gaps come at other positions in other streams."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines."""
        return "" if evidence.now.gaps.rows else "timelines of streams (none was kept)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return gap_position_in_timelines(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest(
            [
                gap_at_position_in_chunks(self, observed),
                position_stated(self, observed),
                position_by_parser(self, observed),
                position_on_arms(self, observed),
            ]
        )
