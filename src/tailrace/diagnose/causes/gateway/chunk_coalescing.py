"""GW_CHUNK_COALESCING: a timer in a hop groups what the engine streams."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.coalescing_on_arms import coalescing_on_arms
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.coalescing import coalesced_in_records
from tailrace.model.finding import Action, Finding

__all__ = ["ChunkCoalescing"]


class ChunkCoalescing(Cause):
    """Events bring several tokens on the beat of a timer, the same for all streams; the whole answer is not later."""

    code: ClassVar[str] = "GW_CHUNK_COALESCING"
    stage: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = (
        "chunk gaps and tokens as the engine counts them",
        "a window (or a path) without the hop",
    )
    disproof: ClassVar[str] = "What is added to the first token grows with the load."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return coalescing_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return coalesced_in_records(self, evidence)
