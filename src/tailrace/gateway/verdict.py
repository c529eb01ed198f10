"""How a request ended, and where it is until then."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tailrace.model.outcome import OutcomeKind, Reason


class Verdict(NamedTuple):
    """How a request ended."""

    outcome: OutcomeKind
    reason: Reason
    stage: str = ""
    """The stage in which it died; empty lets the ledger derive it."""
    error: str = ""
    budget: str = ""


COMPLETED: Final = Verdict(OutcomeKind.COMPLETED, Reason.NONE)


class Phase(Enum):
    """Where a request is. The value is the stage that its time belongs to."""

    UPLOAD = "ingress"
    QUEUED = "queue"
    CONNECTING = "connect"
    """Admitted; no connection yet."""
    WAITING = "prefill"
    """Sent; no token yet."""
    STREAMING = "decode"
    DRAINING = "response"
    """All is written; the client has not taken all of it."""
    DONE = "done"
