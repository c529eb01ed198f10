"""GW_UPSTREAM_TIMEOUT: a proxy's timer ends requests that the engine still works on."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.timer_on_arms import timer_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.configured.cut_mid_answer import cut_mid_answer
from tailrace.diagnose.configured.idle_timeouts import upstream_timeout_in_requests
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.timeouts import timeout_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.timeouts import timeout_in_records
from tailrace.model.finding import Action, Finding

__all__ = ["UpstreamTimeout"]


class UpstreamTimeout(Cause):
    """Failed requests whose upstream time is one configured timer, to the millisecond, without a byte."""

    code: ClassVar[str] = "GW_UPSTREAM_TIMEOUT"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = (
        "an access log with upstream times and statuses",
        "the proxy's configured timers",
    )
    disproof: ClassVar[str] = "The ages of the failed requests differ from every configured timer."
    action: ClassVar[Action] = Action.TUNE

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines; of somebody's own table `observe` knows bytes and whose timer it was."""
        return None if evidence.observed.table("requests") else timeout_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From an access log, and from failures of one age that a proxy answered."""
        return surest(
            [
                timeout_in_access(self, observed),
                upstream_timeout_in_requests(self, observed),
                cut_mid_answer(self, observed),
                timer_on_arms(self, observed, kinds=("read", "total")),
            ]
        )
