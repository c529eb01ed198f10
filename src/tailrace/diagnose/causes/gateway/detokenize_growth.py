"""FE_DETOKENIZE_GROWTH: each step costs more the more was already said."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.position_load import position_load
from tailrace.diagnose.record_evidence.position_growth import growth_in_timelines
from tailrace.diagnose.series_evidence.growth_with_position import growth_with_position
from tailrace.model.finding import Action, Finding

__all__ = ["DetokenizeGrowth"]


class DetokenizeGrowth(Cause):
    """A step's cost rises in a line with the output position at a constant batch."""

    code: ClassVar[str] = "FE_DETOKENIZE_GROWTH"
    stage: ClassVar[str] = "postprocess"
    needs: ClassVar[tuple[str, ...]] = ("CPU time by step (or gaps) over the output position", "running requests")
    disproof: ClassVar[str] = "The slope vanishes when the batch is held constant."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines, or the pace and length of enough answers."""
        known = evidence.now.gaps.rows or position_load(evidence.now) is not None
        return "" if known else "timelines of streams, or the pace and length of enough answers"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return growth_in_timelines(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return growth_with_position(self, observed)
