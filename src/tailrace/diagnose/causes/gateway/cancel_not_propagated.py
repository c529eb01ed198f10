"""CANCEL_NOT_PROPAGATED: the client is gone and the engine goes on."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.gateway.cancel_in_arms import cancel_in_arms
from tailrace.diagnose.causes.gateway.cancel_in_series import cancel_in_series
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.verdict import surest
from tailrace.model.finding import Action, Finding

__all__ = ["CancelNotPropagated"]


class CancelNotPropagated(Cause):
    """Running requests, or a busy device, more than a second after the socket was closed."""

    code: ClassVar[str] = "CANCEL_NOT_PROPAGATED"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "when the client left",
        "running requests or GPU utilisation of the engine 1-2 s later",
        "that no other request kept it busy",
    )
    disproof: ClassVar[str] = "Other work keeps the engine busy."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """What ran after the disconnect, in a table, a form, or an engine's log."""
        return surest(cancel_in_arms(self, observed), cancel_in_series(self, observed))
