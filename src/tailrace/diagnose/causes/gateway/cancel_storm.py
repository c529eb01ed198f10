"""CANCEL_STORM: clients leave before their answers are done, and the work for them is lost."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.age_cluster import age_cluster
from tailrace.diagnose.arm_evidence.cancelled_on_arms import cancelled_on_arms
from tailrace.diagnose.cancels import cancels
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.symptoms import FAILED_SHARE, more_often_than
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["CancelStorm"]

SHARE: Final = 0.05
MOST: Final = 0.8
WORK: Final = 0.10
SOME_WORK: Final = 0.02
"""Less is no storm's; from here to a tenth it is told as a suspicion, where requests that do not complete are what is
wrong."""
MORE: Final = 2.0


class CancelStorm(Cause):
    """More requests are cancelled than usual, and more than a tenth of the tokens is computed for nobody."""

    code: ClassVar[str] = "CANCEL_STORM"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "outcomes of all requests",
        "tokens of those that were cancelled",
        "a window from before",
    )
    disproof: ClassVar[str] = "Cancelled requests had hardly any tokens computed."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From a table of windows."""
        return cancelled_on_arms(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """The share of cancelled requests, and of the work that was done for them."""
        window = evidence.now
        gone = cancels(window)
        n = len(window.every)
        many = more_often_than(int(gone.rows.size), n, SHARE)
        # Fewer are still what is wrong, where most of the requests that do not complete are theirs.
        most = gone.rows.size > MOST * (n - window.n) and more_often_than(int(gone.rows.size), n, FAILED_SHARE)
        share = gone.rows.size / max(n, 1)
        if not (many or most) or gone.work_share < SOME_WORK:
            return None
        missing, rivals, rise = [], [], ""
        if not many:
            missing.append(f"a longer window: {gone.rows.size} of {n} may be no more than {SHARE:.0%}")
        if gone.work_share < WORK:
            missing.append("what the engine computed for them (its own token counters by outcome)")
        if evidence.before is not None:
            old = cancels(evidence.before).rows.size / max(len(evidence.before.every), 1)
            rise = f", {old:.1%} before"
            if share < MORE * old:
                return None
        else:
            missing.append("the share of cancelled requests in a usual window (--before FILE)")
        if age_cluster(gone.age_ms) is not None:
            rivals.append("CLIENT_TIMEOUT_BUDGET")
        silent = float(np.isnan(gone.ttft_ms).mean())
        waited = float(np.median(gone.age_ms))
        lost = window.tail_lost_ms * gone.work_share
        return self.finding(
            statement=f"Clients leave: {share:.1%} of the requests are cancelled{rise}, and {gone.work_share:.0%} of "
            f"the "
            "tokens were computed for them.",
            evidence=[
                Evidence(
                    f"{gone.rows.size} of {n} requests were cancelled by their clients ({share:.1%}{rise})",
                    "record:outcome, record:reason",
                    "cancelled_share",
                    round(share, 4),
                ),
                Evidence(
                    f"{gone.work_share:.0%} of all prompt and output tokens were computed for them",
                    "record:prompt_tokens, record:output_tokens",
                    "lost_work",
                    round(gone.work_share, 4),
                ),
                Evidence(
                    f"they leave after {waited:,.0f} ms (median), {silent:.0%} of them before the first token",
                    "record:e2e_ns, record:ttft_ns",
                    "age_ms",
                    round(waited, 1),
                    "ms",
                ),
            ],
            explains_ms=lost,
            relation=f"tokens for cancelled / all tokens = {gone.work_share:.0%}; {WORK:.0%} are a storm's",
            n=int(gone.rows.size),
            advice="See that a cancel reaches the engine at once, cap outputs that are mostly not read to their end, "
            "and "
            "find what makes users leave (a first token that comes too late, a stop button that restarts); refuse "
            "early with 429 rather than late.",
            price="A cap cuts answers that somebody would have read.",
            verify="tailrace records query --ask failures && " + evidence.verify_command,
            missing=missing,
            rivals=rivals,
            disproof_checked=[f"{gone.work_share:.0%} of the tokens were computed for cancelled requests"],
        )
