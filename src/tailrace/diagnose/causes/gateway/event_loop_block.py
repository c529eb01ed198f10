"""FE_EVENTLOOP_BLOCK: work of one request runs on the front end's event loop."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.blocked_health import blocked_health
from tailrace.diagnose.arm_evidence.blocked_streams import blocked_streams
from tailrace.diagnose.arm_evidence.session_lock import session_lock
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.loop_work import loop_work
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.blocked_loop import blocked_in_timelines
from tailrace.diagnose.series_evidence.blocked_in_series import blocked_in_series
from tailrace.diagnose.series_evidence.profile_on_top import work_on_top
from tailrace.model.finding import Action, Finding

__all__ = ["EventLoopBlock"]


class EventLoopBlock(Cause):
    """The loop lags while all streams stand still together."""

    code: ClassVar[str] = "FE_EVENTLOOP_BLOCK"
    stage: ClassVar[str] = "preprocess"
    needs: ClassVar[tuple[str, ...]] = (
        "lag of the event loop (or the round trip of a trivial page)",
        "chunk gaps of several streams",
    )
    disproof: ClassVar[str] = "The loop's lag is low during the gap."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs timelines, or the waits and longest gaps of requests whose prefill is reported."""
        known = evidence.now.gaps.rows or loop_work(evidence.now) is not None
        return "" if known else "timelines of streams (none was kept)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return blocked_in_timelines(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest(
            [
                blocked_in_series(self, observed),
                blocked_streams(self, observed),
                blocked_health(self, observed),
                session_lock(self, observed),
                work_on_top(self, observed),
            ]
        )
