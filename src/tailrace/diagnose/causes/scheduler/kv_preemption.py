"""SCHED_KV_PREEMPTION: the KV cache is full, running requests are thrown out and computed again."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.preemption_on_arms import preemption_on_arms
from tailrace.diagnose.caps import counted_cap
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_CLEAR, KV_FULL
from tailrace.diagnose.log_evidence.preemption import preemption_in_log
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.prefill_stalls import prefill_stalls
from tailrace.diagnose.series_evidence.preempted_in_scrapes import preempted_in_scrapes
from tailrace.model.finding import Evidence, Finding

__all__ = ["KvPreemption"]

RATE: Final = 0.01
"""Preemptions a request from which they matter."""
OFTEN: Final = 0.05
"""Preemptions a request from which the cache is what the engine runs into."""


class KvPreemption(Cause):
    """Preemptions happened (or KV is full) and the tail lost its time in stalls or queues that go with them."""

    code: ClassVar[str] = "SCHED_KV_PREEMPTION"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("the preemption counter (two scrapes) or preemptions by request",)
    disproof: ClassVar[str] = "The preemption counter does not move and KV usage stays under 90 %."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs the counter, or at least KV usage."""
        if evidence.preemptions is None and evidence.kv_usage is None:
            return "the engine's preemption counter or KV usage (two scrapes of /metrics)"
        return ""

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Counter delta above 1 % of the requests; or, without a counter, KV at 98 %."""
        window = evidence.now
        if self.cannot_run(evidence) or not window.n:
            return None
        count, kv = evidence.preemptions, evidence.kv_usage
        if count is not None and count < max(1.0, RATE * window.n):
            return None
        if count is None and (kv is None or kv < KV_FULL):
            return None
        explains, victims = self._explains(evidence)
        if not self.carries(evidence, explains):
            return None
        missing = [] if count is not None else ["the preemption counter (two scrapes of /metrics)"]
        facts = []
        if count is not None:
            facts.append(
                Evidence(
                    text=f"{count:.0f} preemptions in {window.n} requests",
                    source=evidence.preemptions_source,
                    name="preemptions",
                    value=count,
                )
            )
        if kv is not None:
            facts.append(
                Evidence(
                    text=f"KV usage reached {kv:.0%}", source="record:kv_usage", name="kv_usage", value=round(kv, 4)
                )
            )
        if victims is not None:
            facts.append(
                Evidence(
                    text=f"{victims:.0%} of the slowest requests were preempted",
                    source="record:preemptions",
                    name="tail_preempted",
                    value=round(victims, 4),
                )
            )
        head = f"{count:.0f} preemptions in {window.n} requests" if count is not None else f"KV usage at {kv:.0%}"
        return self.finding(
            statement=f"The KV cache is too small for what runs: {head}; requests lose their blocks and are computed "
            "again.",
            evidence=facts,
            explains_ms=explains,
            relation=f"{count / window.n * 100:.0f} preemptions per 100 requests"
            if count is not None
            else f"KV {kv:.0%} >= {KV_FULL:.0%}",
            n=window.n,
            advice="Admit fewer requests at once (max_num_seqs, or the lane's running limit) so that their KV fits, "
            "shorten outputs, or give the cache more memory (gpu_memory_utilization).",
            price="Requests wait in the queue instead of being preempted: TTFT rises, ITL and throughput gain.",
            verify=evidence.verify_command,
            missing=missing,
            disproof_checked=[
                f"counter delta {count:.0f}" if count is not None else "no counter",
                f"KV usage {kv:.0%}" if kv is not None else "KV usage unknown",
            ],
        )

    def observe(self, observed: Observed) -> Finding | None:
        """From scrapes, or from an engine's log: lines of preemption, swapped requests, a full cache."""
        return surest(
            [
                preemption_in_log(self, observed),
                preempted_in_scrapes(self, observed),
                preemption_on_arms(self, observed),
            ]
        )

    @staticmethod
    def _explains(evidence: EvidenceSet) -> tuple[float, float | None]:
        """(ms in the tail, share of the tail that was preempted): stalls of victims that no prefill explains, and
        the engine queue where the cache was full at admission or at the first token. A prompt that needs more blocks
        than are free waits beside a cache that is not full, and all behind it: where many are preempted and the engine
        runs into no other limit, whoever queues waits for blocks.
        """
        window = evidence.now
        stall = window.lost.stall
        if window.stalls.row.size and window.long.any() and not window.long.all():
            stall = np.maximum(stall - prefill_stalls(window).excess_by_row, 0.0)
        kv = window.done.column("kv_usage_at_admission")
        if np.isnan(kv).all():
            # Only scrapes saw the cache: it was full or it was not.
            kv = np.full(window.n, evidence.kv_usage or 0.0)
        kv = np.fmax(kv, window.done.column("kv_usage_at_first_token"))
        often = evidence.preemptions is not None and evidence.preemptions >= OFTEN * window.n
        with np.errstate(invalid="ignore"):
            full = np.ones(window.n, dtype=bool) if often and counted_cap(window) is None else kv >= KV_CLEAR
        queued = np.where(full, window.lost.engine_queue, 0.0)
        preempted = window.preempted
        if preempted is None:
            return window.explain("SCHED_KV_PREEMPTION", stall + queued), None
        victims = preempted > 0
        share = float(victims[window.tail].mean()) if window.tail.size else 0.0
        # A preempted request stalls for its whole wait and recomputation, also where a prefill ran meanwhile.
        return window.explain("SCHED_KV_PREEMPTION", np.where(victims, window.lost.stall, 0.0) + queued), share
