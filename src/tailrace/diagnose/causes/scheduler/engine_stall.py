"""ENGINE_STALL: requests run, nothing comes out, and no prefill is in progress."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.stall_stated import stall_stated
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.stall import stall_in_load
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.engine_stall import stall_in_records
from tailrace.diagnose.series_evidence.tokens_stand_still import tokens_stand_still
from tailrace.model.finding import Action, Finding

__all__ = ["EngineStall"]


class EngineStall(Cause):
    """Running > 0, KV not full, no prompt in progress, and (nearly) no token comes out."""

    code: ClassVar[str] = "ENGINE_STALL"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "running requests, KV usage, prompt and generation throughput in the slow window (log lines or scrapes)",
        "a stack dump of the engine and its workers while it lasts",
    )
    disproof: ClassVar[str] = "A prefill was in progress, or only the first interval after idle time is slow."
    action: ClassVar[Action] = Action.FIX

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records, scrapes and timelines."""
        return stall_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From an engine's load lines, or the counters of its scrapes."""
        return surest([stall_in_load(self, observed), tokens_stand_still(self, observed), stall_stated(self, observed)])
