"""CANCEL_NOT_PROPAGATED: the client has left, and the engine goes on."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.arm_evidence.cancel_by_flights import cancel_by_flights
from tailrace.diagnose.arm_evidence.cancel_in_arms import cancel_in_arms
from tailrace.diagnose.arm_evidence.cancel_in_series import cancel_in_series
from tailrace.diagnose.cancels import cancels
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.ghosts import cancelled_still_runs
from tailrace.model.finding import Action, Finding

__all__ = ["CancelNotPropagated"]

FEWEST = 5


class CancelNotPropagated(Cause):
    """The engine's slot is freed late after a client left, or the engine holds as many as were cancelled too much."""

    code: ClassVar[str] = "CANCEL_NOT_PROPAGATED"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "when the engine's slot was seen free after a cancel, or its running requests beside ours",
    )
    disproof: ClassVar[str] = "Other work keeps the engine busy: it holds more than ours without any cancel, too."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """There must be cancels, and something that says what the engine did then."""
        window = evidence.now
        if cancels(window).rows.size < FEWEST:
            return f"at least {FEWEST} requests that were cancelled"
        every = window.every
        known = ~np.isnan(every.column("cancel_slot_ns")) | ~np.isnan(every.column("running_at_admission"))
        return "" if known.any() else "the engine's running requests (its /metrics), or when its slot was seen free"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return surest(
            [cancel_in_arms(self, observed), cancel_in_series(self, observed), cancel_by_flights(self, observed)]
        )

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return cancelled_still_runs(self, evidence)
