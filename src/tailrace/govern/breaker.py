"""A circuit breaker: an engine that fails request after request gets none for a moment, and is tried again early.

It counts client requests, each once, by how they ended; what it never hears of (4xx, 429, a client that left) neither
opens nor closes it. It holds nothing back by itself: whoever chooses asks `allows`, and sends to a backend all the same
where no other is left (`balance`), so that an engine is never shut out for having been the last.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from tailrace.model.thresholds import MS, S


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When it opens, and how soon it tries again."""

    enabled: bool = True
    failures: int = 5
    """This many in a row open it ..."""
    share: float = 0.5
    """... and so does this share of failures ..."""
    requests: int = 20
    """... among at least so many requests ..."""
    window_ns: int = 10 * S
    """... of this time."""
    probe_ns: int = 500 * MS
    """While it is open, one request in this time goes through and shows whether the engine is back. Half a second, so
    that a healed engine is in service again within one: a minute of 503 after healing is worse than no breaker."""


class BreakerState(StrEnum):
    """What `allows` says at an instant."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """The next request is a probe."""


STATE_CODES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
"""As a gauge shows it."""


class Breaker:
    """One backend's. Every stamp is the monotonic clock of `now` (ns)."""

    __slots__ = (
        "_counted",
        "_counted_before",
        "_failed",
        "_failed_before",
        "_half",
        "_probe_at",
        "changed_at",
        "in_a_row",
        "opened",
        "opened_total",
        "policy",
    )

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.opened = False
        self.opened_total = 0
        self.changed_at: int | None = None
        """When it opened or closed last."""
        self.in_a_row = 0
        """Failures since the last success."""
        self._probe_at = 0
        # Two halves of the window: the share is that of both, so it looks back between half and all of it.
        self._half = 0
        self._counted = self._failed = self._counted_before = self._failed_before = 0

    def state(self, now: int) -> BreakerState:
        """For a view."""
        if not self.opened:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self._probe_at else BreakerState.OPEN

    def allows(self, now: int) -> bool:
        """Whether a request may be sent: always while closed, else if a probe is due."""
        return not self.opened or now >= self._probe_at

    def sent(self, now: int) -> None:
        """A request goes to the backend. While open it is a probe, and the next is due in `probe_ns`.

        Not one at a time: a probe that hangs until its budget is over must not keep the next from finding the engine
        healed. So nothing has to be given back either.
        """
        if self.opened:
            self._probe_at = max(self._probe_at, now) + self.policy.probe_ns

    def succeeded(self, begun: int, now: int) -> bool:
        """A request that was sent at `begun` was served. True where that closed it.

        One that was sent before the breaker opened says nothing of the engine since.
        """
        if self.opened:
            if begun < (self.changed_at or 0):
                return False
            self._turn(now, opened=False)
            return True
        self.in_a_row = 0
        self._count(now, failed=False)
        return False

    def failed(self, begun: int, now: int) -> bool:
        """A request that was sent at `begun` failed through the engine's fault. True where that opened it.

        One that was sent before the breaker closed again has died with what the engine was then.
        """
        if self.opened or begun < (self.changed_at or 0) or not self.policy.enabled:
            return False
        self.in_a_row += 1
        self._count(now, failed=True)
        counted = self._counted + self._counted_before
        failed = self._failed + self._failed_before
        policy = self.policy
        if self.in_a_row < policy.failures and (counted < policy.requests or failed < policy.share * counted):
            return False
        self._turn(now, opened=True)
        self.opened_total += 1
        self._probe_at = now + policy.probe_ns
        return True

    def _turn(self, now: int, *, opened: bool) -> None:
        self.opened = opened
        self.changed_at = now
        self.in_a_row = 0
        self._counted = self._failed = self._counted_before = self._failed_before = 0

    def _count(self, now: int, *, failed: bool) -> None:
        half = 2 * now // self.policy.window_ns
        if half != self._half:
            kept = half == self._half + 1
            self._counted_before = self._counted if kept else 0
            self._failed_before = self._failed if kept else 0
            self._counted = self._failed = 0
            self._half = half
        self._counted += 1
        self._failed += failed
