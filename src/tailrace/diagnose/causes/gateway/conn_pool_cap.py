"""GW_CONN_POOL_CAP: requests wait for a connection, not for the engine."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.arm_evidence.pool_cap_observed import pool_cap_observed
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.proxy_stages import server_queue_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.pool import pool_in_records
from tailrace.model.finding import Finding

__all__ = ["ConnPoolCap"]


class ConnPoolCap(Cause):
    """What is with the engine is flat at one number, more of ours is under way, and the engine has nobody waiting."""

    code: ClassVar[str] = "GW_CONN_POOL_CAP"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = (
        "the gateway's wait for a connection, or the engine's running requests",
        "the engine's waiting requests",
    )
    disproof: ClassVar[str] = "The engine has waiting requests at the same time."

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Either the pool's own wait, or what the engine held."""
        done = evidence.now.done
        known = ~np.isnan(done.column("pool_wait_ns")) | ~np.isnan(done.column("running_at_admission"))
        return "" if known.any() else "the gateway's wait for a connection, or the engine's running requests"

    def observe(self, observed: Observed) -> Finding | None:
        """From series, tables, forms, and the access log of a balancer that tells its queue."""
        return surest([pool_cap_observed(self, observed), server_queue_in_access(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return pool_in_records(self, evidence)
