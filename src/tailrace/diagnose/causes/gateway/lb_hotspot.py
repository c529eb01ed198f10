"""LB_HOTSPOT: affinity sends one group of requests to one replica, and saves less than it costs."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.hotspot_on_arms import hotspot_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.hotspot import hotspot_in_records
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.reuse import groups
from tailrace.model.finding import Finding

__all__ = ["LbHotspot"]


class LbHotspot(Cause):
    """One prefix group is bound to one replica, which is full; its cache saves less than its queue adds."""

    code: ClassVar[str] = "LB_HOTSPOT"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("the replica of each request", "cached tokens", "the group (tenant, session)")
    disproof: ClassVar[str] = "Several groups share that replica and the load is even."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs two replicas and groups."""
        if replicas(evidence.now).n < 2:
            return "records of at least two replicas (backend)"
        return "" if groups(evidence.now) else "what the requests share (tenant, session or lane)"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return hotspot_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return hotspot_in_records(self, evidence)
