"""RETRY_STORM: failed requests come again and again, and the repeats are part of what makes them fail."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.attempts_on_arms import attempts_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.retries import retries_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.retries import retries_in_records
from tailrace.diagnose.series_evidence.retries_in_requests import retries_in_requests
from tailrace.model.finding import Action, Finding

__all__ = ["RetryStorm"]


class RetryStorm(Cause):
    """Attempts over requests of clients above 1.2, and more of them where more fail."""

    code: ClassVar[str] = "RETRY_STORM"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("attempts by request (the gateway's, or an access log's lists)",)
    disproof: ClassVar[str] = "The attempts do not rise with the errors, or the load without repeats is as high."
    action: ClassVar[Action] = Action.FIX

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records, scrapes and timelines."""
        return retries_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From an access log, a table of windows, or attempts that name what they repeat."""
        return surest(
            [retries_in_access(self, observed), attempts_on_arms(self, observed), retries_in_requests(self, observed)]
        )
