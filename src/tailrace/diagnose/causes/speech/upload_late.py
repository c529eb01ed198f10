"""CLIENT_UPLOAD_LATE: what the client sends comes late; nobody could begin earlier."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.upload import upload_in_records
from tailrace.diagnose.speech_evidence.speech_on_arms import late_upload_on_arms
from tailrace.diagnose.speech_evidence.uploads import late_upload
from tailrace.model.finding import Action, Finding

__all__ = ["UploadLate"]


class UploadLate(Cause):
    """A request's body takes long to come in, or received audio falls behind its own time line."""

    code: ClassVar[str] = "CLIENT_UPLOAD_LATE"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = (
        "records of the gateway (ingress), or received audio with positions and receive times",
        "the gateway's event-loop lag, or results with positions",
    )
    disproof: ClassVar[str] = "The audio came in time, or the gateway's own loop stood still meanwhile."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Only a gateway sees a request come in."""
        known = ~np.isnan(evidence.now.done.column("ingress_ns"))
        gateway = evidence.vantage == "gateway"
        return "" if known.any() and gateway else "records of the gateway (how long a request took to come in)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return upload_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From audio that falls behind its own time line."""
        return late_upload(self, observed) or late_upload_on_arms(self, observed)
