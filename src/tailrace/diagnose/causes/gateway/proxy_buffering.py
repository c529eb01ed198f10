"""GW_PROXY_BUFFERING: a hop gathers the stream into blocks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.arm_evidence.buffer_stated import buffer_stated
from tailrace.diagnose.arm_evidence.whole_at_once import whole_at_once
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.configured.buffering import buffering_on_paths
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.buffering import buffering_in_timelines
from tailrace.diagnose.series_evidence.held_in_requests import held_in_requests
from tailrace.diagnose.series_evidence.proxy_bursts import proxy_bursts
from tailrace.model.finding import Action, Finding

__all__ = ["ProxyBuffering"]


class ProxyBuffering(Cause):
    """Chunks that left the engine one by one reach the client in bursts."""

    code: ClassVar[str] = "GW_PROXY_BUFFERING"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "when each chunk left the engine and when it reached the client",
        "bytes of each chunk",
    )
    disproof: ClassVar[str] = "Only the tail is slow: buffering shifts every stream of that path."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """It needs gaps between events: timelines, or what each record says of its own."""
        window = evidence.now
        known = window.gaps.rows or not np.isnan(window.done.column("chunk_gap_p50_ns")).all()
        return "" if known else "timelines of streams (none was kept), or their gaps' median and maximum"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return buffering_in_timelines(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From chunks, from two paths in a table, and from the configuration of the hop."""
        return surest(
            [
                proxy_bursts(self, observed),
                buffering_on_paths(self, observed),
                whole_at_once(self, observed),
                held_in_requests(self, observed),
                buffer_stated(self, observed),
            ]
        )
