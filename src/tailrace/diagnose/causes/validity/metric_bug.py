"""METRIC_BUG: a number that cannot be what its name says."""

from __future__ import annotations

from typing import ClassVar, Final

from tailrace.diagnose.arm_evidence.clocks_disagree import clocks_disagree
from tailrace.diagnose.arm_evidence.impossible_numbers import impossible_numbers
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.doubled_first_token import first_token_among_gaps
from tailrace.diagnose.record_evidence.impossible_records import MOST, impossible_records
from tailrace.diagnose.speech_evidence.paced_rtf import paced_rtf
from tailrace.diagnose.speech_evidence.speech_stamps import wrong_speech_stamps
from tailrace.model.finding import Action, Finding

__all__ = ["MetricBug"]

RULES: Final = (wrong_speech_stamps, impossible_numbers, clocks_disagree, paced_rtf)
"""Each looks for one kind of impossible number: (cause, observed) -> finding or `None`."""


class MetricBug(Cause):
    """Impossible values: they are dropped and counted, and nothing is concluded from them."""

    code: ClassVar[str] = "METRIC_BUG"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("the values one by one, or their minimum", "a second stamp of the same thing")
    disproof: ClassVar[str] = "A second, independent clock gives the same value."
    action: ClassVar[Action] = Action.FIX
    ends: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Records that were left out because of what is in them; gaps that hold the first token."""
        return impossible_records(self, evidence) or first_token_among_gaps(self, evidence)

    def forbids(self, evidence: EvidenceSet) -> bool:
        """Above 5 % of them; gaps of another thing."""
        if evidence.left_out_rows:
            return evidence.left_out_rows > MOST * (len(evidence.table) + evidence.left_out_rows)
        return first_token_among_gaps(self, evidence) is not None

    def observe(self, observed: Observed) -> Finding | None:
        """The first rule that finds something."""
        return next((found for rule in RULES if (found := rule(self, observed)) is not None), None)
