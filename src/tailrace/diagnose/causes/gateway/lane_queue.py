"""GW_LANE_QUEUE: requests wait in the gateway's own lane while the engine has room."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.lane_queue_observed import lane_queue_observed
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_ROOM
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.quantiles import median, or_zero

__all__ = ["LaneQueue"]

SHARE: Final = 0.5


class LaneQueue(Cause):
    """The lane's running limit holds requests back although the engine would take them."""

    code: ClassVar[str] = "GW_LANE_QUEUE"
    stage: ClassVar[str] = "queue.gateway"
    needs: ClassVar[tuple[str, ...]] = ("queue times of the gateway", "waiting requests and KV usage of the engine")
    disproof: ClassVar[str] = "The engine itself has waiting requests or a full KV cache when the lane holds some back."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Only a gateway's records know its queue."""
        known = ~np.isnan(evidence.now.done.column("queue_gateway_ns"))
        return "" if known.any() else "records of the gateway (its own queue)"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables and forms."""
        return lane_queue_observed(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Gateway queue above half of the slow requests' TTFT while the engine has room."""
        window = evidence.now
        if self.cannot_run(evidence) or not window.n:
            return None
        queue = window.lost.gateway_queue
        explains = window.explain(self.code, queue)
        share = explains / max(window.in_tail(or_zero(window.done.ms("ttft"))), 1e-9)
        if share < SHARE or not self.carries(evidence, explains):
            return None
        held = queue > 10.0
        waiting = window.done.column("waiting_at_admission")[held]
        kv = window.done.column("kv_usage_at_admission")[held]
        waiting, kv = waiting[~np.isnan(waiting)], kv[~np.isnan(kv)]
        missing = []
        checked = []
        if waiting.size:
            idle = float((waiting == 0).mean())
            checked.append(f"the engine had nobody waiting for {idle:.0%} of the requests that were held")
            if idle < 0.5:
                return None
        else:
            missing.append("waiting requests of the engine (its /metrics)")
        if kv.size:
            high = median(kv)
            checked.append(f"KV usage {high:.0%} (median)")
            if high >= KV_ROOM:
                return None
        else:
            missing.append("KV usage of the engine (its /metrics)")
        lanes = window.done.column("lane").astype(str)
        names, counts = np.unique(lanes[held], return_counts=True)
        lane = str(names[int(np.argmax(counts))])
        return self.finding(
            statement=f"Requests wait in the gateway's lane {lane!r}: {share:.0%} of the slow requests' time to first "
            "token, while the engine has room.",
            evidence=[
                Evidence(
                    text=f"{share:.0%} of the time to first token of the slowest requests is the gateway's queue",
                    source="record:queue_gateway_ns",
                    name="queue_share",
                    value=round(share, 4),
                ),
                Evidence(
                    text=f"{int(counts.max())} of {int(held.sum())} held requests were in lane {lane!r}",
                    source="record:lane",
                    name="held",
                    value=float(held.sum()),
                ),
                *(Evidence(text=text, source="record:waiting_at_admission, record:kv_usage") for text in checked),
            ],
            explains_ms=explains,
            relation=f"gateway queue / TTFT = {explains:.0f} / "
            f"{window.in_tail(or_zero(window.done.ms('ttft'))):.0f} ms = {share:.0%} in the tail",
            n=int(held.sum()),
            advice=f"Raise the running limit of lane {lane!r}; the engine takes more.",
            price="More requests share the engine's steps: TPOT rises a little for everybody.",
            verify=evidence.verify_command,
            missing=missing,
            disproof_checked=checked,
        )
