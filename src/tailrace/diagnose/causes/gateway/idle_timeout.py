"""GW_IDLE_TIMEOUT: a hop closes connections on which nothing came for a while, although the engine still works."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.timer_on_arms import timer_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.configured.idle_timeouts import idle_timeout_in_requests
from tailrace.diagnose.configured.stated_ages import idle_timeout_in_ages
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.idle_timer import idle_timer_in_records
from tailrace.model.finding import Action, Finding

__all__ = ["IdleTimeout"]


class IdleTimeout(Cause):
    """Streams that are cut at one age with no byte of an answer, or at one time after their last token."""

    code: ClassVar[str] = "GW_IDLE_TIMEOUT"
    stage: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = ("ages of the requests that failed", "the idle timers of every hop")
    disproof: ClassVar[str] = "The ages spread, or bytes had come shortly before."
    action: ClassVar[Action] = Action.TUNE

    def observe(self, observed: Observed) -> Finding | None:
        """From failures of one age."""
        return surest(
            [
                idle_timeout_in_requests(self, observed),
                idle_timeout_in_ages(self, observed),
                timer_on_arms(self, observed, kinds=("idle",)),
            ]
        )

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines; of somebody's own table `observe` knows bytes and whose timer it was."""
        return None if evidence.observed.table("requests") else idle_timer_in_records(self, evidence)
