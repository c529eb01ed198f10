"""LB_CACHE_AFFINITY_LOST: the turns of a session go to other replicas than the one that has their history cached."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.affinity_on_arms import affinity_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.affinity import affinity_in_records
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.reuse import LEAST, reuse
from tailrace.model.finding import Finding

__all__ = ["CacheAffinityLost"]


class CacheAffinityLost(Cause):
    """Turns that move to another replica find no cache there, and are computed from their beginning."""

    code: ClassVar[str] = "LB_CACHE_AFFINITY_LOST"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = (
        "sessions with their replicas",
        "cached tokens",
        "a window from before the change",
    )
    disproof: ClassVar[str] = "The hit rate within sessions is unchanged."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs sessions over at least two replicas."""
        if replicas(evidence.now).n < 2:
            return "records of at least two replicas (backend)"
        return (
            "" if reuse(evidence.now).later.sum() >= LEAST else f"at least {LEAST} later turns of sessions (session_id)"
        )

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return affinity_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return affinity_in_records(self, evidence)
