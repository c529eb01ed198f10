"""FE_GC_PAUSE: a garbage collector stops the engine's process at its own times."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.gc_on_arms import gc_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.collector import pauses_in_timelines
from tailrace.diagnose.series_evidence.gc_in_series import ADVICE, PRICE, VERIFY, gc_in_series
from tailrace.diagnose.series_evidence.gc_in_stacks import gc_in_stacks
from tailrace.diagnose.series_evidence.gc_stated import gc_stated
from tailrace.diagnose.summary_stops import summary_stops
from tailrace.model.finding import Action, Finding

__all__ = ["GcPause"]


class GcPause(Cause):
    """Stops common to all streams keep a beat, grow with age, or come ever rarer by a quarter."""

    code: ClassVar[str] = "FE_GC_PAUSE"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("gaps of several streams over at least six pauses",)
    disproof: ClassVar[str] = "The stops follow the batch or the prompts' size, or stay when the collector is frozen."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines, or the longest gaps of streams that overlap."""
        known = evidence.now.gaps.rows or summary_stops(evidence.now) is not None
        return "" if known else "timelines of streams (none was kept)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return pauses_in_timelines(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        stated = gc_stated(self, observed, advice=ADVICE, price=PRICE, verify=VERIFY)
        stacks = gc_in_stacks(self, observed, advice=ADVICE, price=PRICE, verify=VERIFY)
        arms = gc_on_arms(self, observed, advice=ADVICE, price=PRICE)
        return surest([stacks, gc_in_series(self, observed), stated, arms])
