"""FE_EVENTLOOP_BLOCK: one thread that serves every stream does the work of one request, and all of them stop."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.gateway.blocked_health import blocked_health
from tailrace.diagnose.causes.gateway.blocked_streams import blocked_streams
from tailrace.diagnose.causes.gateway.session_lock import session_lock
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.verdict import surest
from tailrace.model.finding import Action, Finding

__all__ = ["EventLoopBlock"]


class EventLoopBlock(Cause):
    """Tokenising, images, audio, or a lock around them stop the front end's loop."""

    code: ClassVar[str] = "FE_EVENTLOOP_BLOCK"
    stage: ClassVar[str] = "preprocess"
    needs: ClassVar[tuple[str, ...]] = (
        "a stall that all streams share, or the round trip of a trivial endpoint (/health), or the loop's lag",
        "what the front end did meanwhile (prompt tokens, images, audio seconds), or the same work off the loop",
    )
    disproof: ClassVar[str] = "The loop's lag (or the round trip of /health) is low during the stall."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """Shared stalls, /health, or sessions that slow each other down while the device idles."""
        return surest(
            blocked_streams(self, observed), blocked_health(self, observed), session_lock(self, observed)
        )
