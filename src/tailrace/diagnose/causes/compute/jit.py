"""COMPUTE_JIT: a kernel is compiled in the middle of serving, at the first use of a shape."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.compiled_rows import compiled_rows
from tailrace.diagnose.arm_evidence.first_of_several import first_of_several
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.first_uses import first_uses
from tailrace.diagnose.log_evidence.compiling import jit_in_log
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.compiling import jit_in_records
from tailrace.diagnose.series_evidence.jit_in_stacks import jit_in_stacks
from tailrace.model.finding import Action, Finding

__all__ = ["Jit"]


class Jit(Cause):
    """The engine compiles while requests wait, at the first request of a shape."""

    code: ClassVar[str] = "COMPUTE_JIT"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = ("the engine's log or a stack dump from inside the slow window",)
    disproof: ClassVar[str] = "It happens again on a shape that was already used."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines, or the engine's own prefill times."""
        known = evidence.now.gaps.rows or first_uses(evidence.now) is not None
        return "" if known else "timelines of streams (none was kept)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From stops or slow prefills at the first request of a length."""
        return jit_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From the engine's own lines, a stack dump, or a table in which only the first of several is slow."""
        return surest(
            [
                jit_in_log(self, observed),
                jit_in_stacks(self, observed),
                compiled_rows(self, observed),
                first_of_several(self, observed),
            ]
        )
