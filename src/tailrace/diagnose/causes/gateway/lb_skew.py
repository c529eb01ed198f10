"""LB_SKEW: one replica has the queue while others have room."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.skew_on_arms import skew_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.skew import skew_in_records
from tailrace.diagnose.replicas import replicas
from tailrace.model.finding import Finding

__all__ = ["LbSkew"]


class LbSkew(Cause):
    """The balancer gives one replica more than the others, and the slow requests are its."""

    code: ClassVar[str] = "LB_SKEW"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("the replica of each request", "prompt and output tokens")
    disproof: ClassVar[str] = "The skew follows a session affinity that pays off in cache hits, or all get equal work."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs two replicas."""
        return "" if replicas(evidence.now).n >= 2 else "records of at least two replicas (backend)"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return skew_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return skew_in_records(self, evidence)
