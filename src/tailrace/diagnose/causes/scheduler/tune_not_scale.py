"""TUNE_NOT_SCALE: the cap on running requests is the limit, and the engine would take more."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.arm_evidence.cap_on_arms import cap_on_arms
from tailrace.diagnose.arm_evidence.cap_reached import cap_reached
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.running_limit import running_limit_in_records
from tailrace.model.finding import Finding

__all__ = ["TuneNotScale"]


class TuneNotScale(Cause):
    """Requests wait behind a cap at which tokens come as fast as below it, and the KV cache has room."""

    code: ClassVar[str] = "TUNE_NOT_SCALE"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("running and waiting requests", "a sweep of the cap with its TPOT", "KV usage")
    disproof: ClassVar[str] = "TPOT rises with the cap, or throughput does not."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """The engine's running requests."""
        known = ~np.isnan(evidence.now.done.column("running_at_admission"))
        return "" if known.any() else "running and waiting requests of the engine (its /metrics)"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return surest([cap_on_arms(self, observed), cap_reached(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return running_limit_in_records(self, evidence)
