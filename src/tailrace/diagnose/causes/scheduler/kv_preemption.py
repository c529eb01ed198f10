"""SCHED_KV_PREEMPTION: the KV cache is full, running requests are thrown out and computed again."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.preemption_on_arms import preemption_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.preemption import preemption_in_log
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.prefill_stalls import prefill_stalls
from tailrace.diagnose.series_evidence.preempted_in_scrapes import preempted_in_scrapes
from tailrace.model.finding import Evidence, Finding

__all__ = ["KvPreemption"]

KV_FULL: Final = 0.98
NEAR_FULL: Final = 0.85
"""The next request asks for blocks in one piece: it waits before the last one is given."""
MOST: Final = 0.93
ROOM: Final = 0.6
WAITS_FULL: Final = 0.7
LATE_MS: Final = 100.0
LEAST: Final = 10
RATE: Final = 0.01
"""Preemptions a request from which they matter."""


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
            return self._waits_for_blocks(evidence, count)
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

    def _waits_for_blocks(self, evidence: EvidenceSet, count: float) -> Finding | None:
        """Hardly anybody is thrown out, because nobody more is let in: requests wait while the cache is full, and only
        then, and fewer run than at other times.
        """
        window = evidence.now
        done = window.done
        kv, waiting, running = (done.column(f"{name}_at_admission") for name in ("kv_usage", "waiting", "running"))
        known = ~np.isnan(kv) & ~np.isnan(waiting)
        full = known & (kv >= NEAR_FULL)
        queue = np.nan_to_num(done.ms("queue_engine"), nan=0.0)
        late = (waiting > 0) | (queue >= max(LATE_MS, 8.0 * np.nan_to_num(window.median_gap_ms)))
        waits = known & late
        if full.sum() < LEAST or waits.sum() < LEAST or float(np.nanmax(np.where(known, kv, 0.0))) < MOST:
            return None
        hit = float((kv[waits] >= NEAR_FULL).mean())
        free = known & (kv < ROOM)
        outside = float(late[free].mean()) if free.any() else 0.0
        if hit < WAITS_FULL or outside > 0.1 * float(late[full].mean()) + 0.02:
            return None
        explains = window.explain(self.code, np.where(waits | full, queue, 0.0))
        if not self.carries(evidence, explains):
            return None
        most = float(np.nanmax(kv))
        ran = float(np.nanmedian(running[waits]))
        return self.finding(
            statement=f"The KV cache is too small for what comes: {hit:.0%} of the requests that wait find "
            f"it at least {NEAR_FULL:.0%} full (up to {most:.0%}), and hardly any waits at other times.",
            evidence=[
                Evidence(
                    f"{hit:.0%} of {int(waits.sum())} requests that wait find the cache at least "
                    f"{NEAR_FULL:.0%} full, with {ran:.0f} running (median)",
                    "record:kv_usage_at_admission, record:waiting_at_admission",
                    "full_when_waiting",
                    round(hit, 4),
                ),
                Evidence(f"KV usage reached {most:.0%}", "record:kv_usage", "kv_usage", round(most, 4)),
                Evidence(f"{count:.0f} preemptions", evidence.preemptions_source, "preemptions", count),
            ],
            explains_ms=explains,
            relation=f"waiting > 0 where KV >= {NEAR_FULL:.0%}: {hit:.0%}; where KV < {ROOM:.0%}: {outside:.0%}",
            n=int(waits.sum()),
            advice="Give the cache more memory (gpu_memory_utilization, a smaller KV data type), shorten prompts and "
            "outputs, or admit fewer at once (the lane's running limit).",
            price="Memory that nothing else can have; a limit makes requests wait at the gateway instead.",
            verify=evidence.verify_command,
            disproof_checked=[f"counter delta {count:.0f}", f"KV usage {most:.0%}"],
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
        the engine queue where the cache was full at admission.
        """
        window = evidence.now
        stall = window.lost.stall
        if window.stalls.row.size and window.long.any() and not window.long.all():
            stall = np.maximum(stall - prefill_stalls(window).excess_by_row, 0.0)
        kv = window.done.column("kv_usage_at_admission")
        if np.isnan(kv).all():
            # Only scrapes saw the cache: it was full or it was not.
            kv = np.full(window.n, evidence.kv_usage or 0.0)
        with np.errstate(invalid="ignore"):
            queued = np.where(kv >= 0.9, window.lost.engine_queue, 0.0)
        preempted = window.preempted
        if preempted is None:
            return window.explain("SCHED_KV_PREEMPTION", stall + queued), None
        victims = preempted > 0
        share = float(victims[window.tail].mean()) if window.tail.size else 0.0
        # A preempted request stalls for its whole wait and recomputation, also where a prefill ran meanwhile.
        return window.explain("SCHED_KV_PREEMPTION", np.where(victims, window.lost.stall, 0.0) + queued), share
