"""MIX_DECODING_OPTIONS: more sequences are decoded for each request than before."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.options_on_arms import options_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.options import options_in_records
from tailrace.diagnose.series_evidence.options_in_requests import options_in_requests
from tailrace.model.finding import Action, Finding

__all__ = ["DecodingOptions"]


class DecodingOptions(Cause):
    """n, best_of or beams rose between the windows; or, in one window, the requests with several are the slow ones."""

    code: ClassVar[str] = "MIX_DECODING_OPTIONS"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "n, best_of and beams by request",
        "a window from before, or requests of both kinds",
    )
    disproof: ClassVar[str] = "Requests with one sequence are as slow when no other is decoded beside them."
    action: ClassVar[Action] = Action.TUNE

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return options_on_arms(self, observed) or options_in_requests(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return options_in_records(self, evidence)
