"""CLIENT_TIMEOUT_BUDGET: the client's timeout is shorter than what its answer needs at the engine's pace."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.arm_evidence.timeout_budget_observed import timeout_budget_observed
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.client_timer import client_timer_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.client_timeout import client_timeout_in_records
from tailrace.model.finding import Action, Finding

__all__ = ["ClientTimeoutBudget"]


class ClientTimeoutBudget(Cause):
    """Clients leave at one age, before the tokens that they asked for can be there."""

    code: ClassVar[str] = "CLIENT_TIMEOUT_BUDGET"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("ages of the cancelled requests", "max_tokens and pace", "the client's timeout")
    disproof: ClassVar[str] = "They leave at random ages."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks; from an access log."""
        return surest([timeout_budget_observed(self, observed), client_timer_in_access(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return client_timeout_in_records(self, evidence)
