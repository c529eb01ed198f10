"""What admission answers to an arrival."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from tailrace.govern.wait_model import WaitPrediction
from tailrace.model.outcome import Reason

_DEFAULT_RETRY_S: Final = 1
"""Retry-After before any request has finished and a drain rate is known."""
_NO_BACKEND_RETRY_S: Final = 5
"""Retry-After where no backend is up: nobody knows when one will be."""


class DecisionKind(StrEnum):
    """What admission decided."""

    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an arrival."""

    kind: DecisionKind
    lane: str
    position: int = 0
    """Place in the lane's queue, 1 is next; 0 when admitted."""
    predicted_wait_ns: int | None = None
    """Absent until a request of the lane has finished."""
    predicted: WaitPrediction | None = None
    """The same with its range."""
    work: float | None = None
    """What the request is worth in its lane (`WaitModel.duration`); absent where it was refused unread."""
    reason: Reason = Reason.NONE
    http_status: int = 200
    retry_after_s: int | None = None
    retry_after_ns: int | None = None
    """The predicted wait from which `retry_after_s` was rounded up, where there is one."""


def refused(
    lane: str,
    reason: Reason,
    position: int,
    predicted: WaitPrediction | None,
    *,
    status: int,
    work: float | None = None,
) -> Decision:
    """A refusal, with when to come back: after the predicted wait where there is capacity, and it is contended."""
    retry = _NO_BACKEND_RETRY_S if status == 503 else _DEFAULT_RETRY_S if predicted is None else predicted.retry_after_s
    wait_ns = None if predicted is None else predicted.expected_ns
    return Decision(
        kind=DecisionKind.REFUSE,
        lane=lane,
        position=position,
        predicted_wait_ns=wait_ns,
        predicted=predicted,
        work=work,
        reason=reason,
        http_status=status,
        retry_after_s=retry,
        retry_after_ns=wait_ns,
    )
