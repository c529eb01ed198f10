"""COMPUTE_STALL: all streams freeze at a change of the batch."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.frozen_together import frozen_together
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.stall import stall_in_timelines
from tailrace.diagnose.series_evidence.stall_in_series import stall_in_series
from tailrace.model.finding import Action, Finding

__all__ = ["Stall"]


class Stall(Cause):
    """Common stops lie at changes of the batch, and nothing names a compiler."""

    code: ClassVar[str] = "COMPUTE_STALL"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("gaps of several streams", "running requests", "a stack dump inside a stop")
    disproof: ClassVar[str] = "The gaps are not common to all streams."
    action: ClassVar[Action] = Action.COLLECT

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines."""
        return "" if evidence.now.gaps.rows else "timelines of streams (none was kept)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return stall_in_timelines(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return stall_in_series(self, observed) or frozen_together(self, observed)
