"""SCHED_HOL_LONG_PREFILL: short requests wait for their first token behind the prefill of long ones."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.hol_by_class import hol_by_class
from tailrace.diagnose.arm_evidence.hol_on_arms import hol_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.first_uses import first_uses
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.series_evidence.hol_behind_one import hol_behind_one
from tailrace.diagnose.series_evidence.hol_in_requests import hol_in_requests
from tailrace.diagnose.shorter_prompts import shorter_prompts_of
from tailrace.diagnose.window import Window, once_a_window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.quantiles import quantile
from tailrace.stats.rank_correlation import spearman

__all__ = ["HolLongPrefill", "Waits", "waits_behind_prefill"]

COVERED: Final = 0.5
CORRELATED: Final = 0.3
MIN_WAITERS: Final = 10
MIN_LONG: Final = 3
BUSY: Final = 0.85
"""Where inferred prefills fill more of the time than this, lying inside one says nothing."""


class Waits(NamedTuple):
    """Waits of short requests for their first token."""

    wait_ms: NDArray[np.float64]
    """By row of `done`: time lost before the first token at the engine (0 for long prompts)."""
    behind_ms: NDArray[np.float64]
    """Of it, the part that lies inside the prefill of a long prompt."""
    waiters: int
    """Short requests that waited more than 50 ms."""
    covered_share: float
    correlation: float
    """Spearman's, between the wait and the long-prompt tokens that were ahead."""
    tokens_ahead: float
    """Median among the waiters that had any."""


@once_a_window
def waits_behind_prefill(window: Window) -> Waits:
    """How much of the short requests' wait lies inside the prefill of long prompts, and what stood ahead of them."""
    short = ~window.long & ~np.isnan(window.first)
    lost = window.lost
    wait = np.where(short, lost.engine_queue + lost.first_token, 0.0)
    uses = first_uses(window)
    if uses is not None and uses.holds:
        # A step that takes seconds at its first use only is no longer for the length of a prompt.
        wait = np.maximum(wait - uses.waits, 0.0)
    # The wait begins when the request leaves the gateway's own queue.
    begin = window.start + lost.gateway_queue * 1e6
    first = np.where(np.isnan(window.first), begin, window.first)
    behind = np.minimum(np.where(short, window.prefills.covered_ms(begin, first), 0.0), wait)
    ahead = _tokens_ahead(window, begin, first)
    waiters = short & (wait > 50.0)
    total = float(wait[waiters].sum())
    return Waits(
        wait_ms=wait,
        behind_ms=behind,
        waiters=int(waiters.sum()),
        covered_share=float(behind[waiters].sum()) / total if total > 0 else 0.0,
        correlation=spearman(wait[short], ahead[short]),
        tokens_ahead=float(np.median(ahead[waiters & (ahead > 0)])) if (waiters & (ahead > 0)).any() else 0.0,
    )


def _tokens_ahead(window: Window, begin: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.float64]:
    """Long-prompt tokens that were there before each row's first token, and not done when its wait began."""
    intervals = window.prefills
    there = np.maximum(intervals.begin, window.start[intervals.row])

    def until(at: NDArray[np.float64], asked: NDArray[np.float64], side: Literal["left", "right"]) -> Any:
        order = np.argsort(at, kind="stable")
        total = np.concatenate([[0.0], np.cumsum(intervals.tokens[order])])
        return total[np.searchsorted(at[order], asked, side=side)]

    # Whatever was done by then had come before the first token as well.
    ahead: NDArray[np.float64] = np.maximum(until(there, first, "left") - until(intervals.end, begin, "right"), 0.0)
    return ahead


class HolLongPrefill(Cause):
    """Short requests wait while a long prompt is computed, the longer the more tokens stand ahead of them."""

    code: ClassVar[str] = "SCHED_HOL_LONG_PREFILL"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = (
        "prompt tokens",
        "queue and prefill times from the engine",
        "KV usage or the preemption counter",
    )
    disproof: ClassVar[str] = "The wait of short requests does not depend on the long-prompt tokens ahead of them."

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return surest(
            [
                hol_in_requests(self, observed),
                hol_behind_one(self, observed),
                hol_on_arms(self, observed),
                hol_by_class(self, observed),
            ]
        )

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs prompt lengths."""
        return "" if evidence.now.long.any() else "prompt lengths"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """The waits lie inside long prefills and grow with the tokens ahead."""
        window = evidence.now
        if self.cannot_run(evidence) or window.outsized.sum() < MIN_LONG:
            return None
        if not window.reported and window.prefills.share_of(float(np.nanmax(window.end))) > BUSY:
            return None
        waits = waits_behind_prefill(window)
        explains = window.explain(self.code, waits.behind_ms)
        if (
            waits.waiters < MIN_WAITERS
            or waits.covered_share < COVERED
            or waits.correlation < CORRELATED
            or not self.carries(evidence, explains)
        ):
            return None
        missing = [] if window.reported else ["queue and prefill times from the engine"]
        rivals = []
        if evidence.kv_usage is None and evidence.preemptions is None:
            # A full cache holds requests back behind a long prompt as well: it waits for blocks, not for the step.
            missing.append("KV usage or the preemption counter (two scrapes of /metrics)")
        elif (evidence.kv_usage or 0.0) >= KV_FULL:
            rivals.append("SCHED_KV_PREEMPTION")
        ttft = window.done.ms("ttft")
        short99, long50 = quantile(ttft[~window.long & ~np.isnan(ttft)], 0.99), quantile(ttft[window.long], 0.5)
        source = "record:queue_ns, record:prefill_ns" if window.reported else "record:ttft_ns (inferred)"
        return self.finding(
            statement=f"Short requests wait for their first token behind the prefill of long prompts: "
            f"{waits.covered_share:.0%} of their wait lies inside one (n = {waits.waiters} that waited).",
            evidence=[
                Evidence(
                    text=f"{waits.covered_share:.0%} of the wait of {waits.waiters} short requests lies inside the "
                    "prefill of a long prompt",
                    source=source,
                    name="covered_share",
                    value=round(waits.covered_share, 4),
                ),
                Evidence(
                    text=f"the wait grows with the long-prompt tokens ahead (rank correlation {waits.correlation:.2f})",
                    source="record:prompt_tokens",
                    name="correlation",
                    value=round(waits.correlation, 3),
                ),
                Evidence(
                    text=f"TTFT p99 of short prompts {short99:.0f} ms, TTFT p50 of long prompts {long50:.0f} ms",
                    source="record:ttft_ns",
                    name="short_ttft_p99_ms",
                    value=round(short99, 1),
                    unit="ms",
                ),
            ],
            explains_ms=explains,
            relation=f"wait of a short request ~ long-prompt tokens ahead / prefill rate: {waits.tokens_ahead:,.0f} "
            f"tokens ahead (median), {float(np.median(waits.wait_ms[waits.wait_ms > 50])):.0f} ms waited (median)",
            n=waits.waiters,
            advice="Give long prompts a lane of their own with a small running limit (lanes: long_document), so that "
            "short ones are not queued behind them; or serve the shortest first with a bounded wait. "
            + shorter_prompts_of(window),
            price="Long prompts wait in their own lane: their TTFT rises.",
            verify=evidence.verify_command,
            missing=missing,
            rivals=rivals,
            disproof_checked=[f"rank correlation of wait and tokens ahead is {waits.correlation:.2f}"],
        )
