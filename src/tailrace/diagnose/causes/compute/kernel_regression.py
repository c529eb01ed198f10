"""COMPUTE_KERNEL_REGRESSION: another version computes the same work slower."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.versions_on_arms import versions_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.regression import regression_in_windows
from tailrace.model.finding import Action, Finding

__all__ = ["KernelRegression"]


class KernelRegression(Cause):
    """TPOT or the prefill rate moved at equal batch and lengths, and the engine's version or precision with it."""

    code: ClassVar[str] = "COMPUTE_KERNEL_REGRESSION"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "a window from before",
        "running requests (the batch)",
        "the engine's version, precision and settings of both",
    )
    disproof: ClassVar[str] = "The batch or the mix changed as well, or the old version is as slow now."
    action: ClassVar[Action] = Action.ROLLBACK
    only_with_before: ClassVar[bool] = True

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return versions_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return regression_in_windows(self, evidence)
