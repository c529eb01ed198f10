"""Hedging: a request that waits for its first byte longer than nearly all others do is sent a second time, elsewhere.

The first answer is taken and the other attempt cancelled (Dean & Barroso, The Tail at Scale, 2013). It buys the tail
with work, so it is off by default, and its share of the traffic is bounded like that of retries.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tailrace.govern.retry_policy import RetryBudget, RetryPolicy
from tailrace.model.thresholds import MS, S

LEAST: Final = 50
"""Waits to have seen before a quantile of them says anything."""
_BASE_NS: Final = MS // 8
_PER_OCTAVE: Final = 8
"""Buckets a doubling: the quantile is known to 9 %."""
_BUCKETS: Final = 24 * _PER_OCTAVE
FADE_NS: Final = 60 * S
"""After this time what was seen counts half."""


class HedgePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a second attempt is made."""

    quantile: float = 0.95
    """Of the waits for the first byte of the same lane; a request that waits longer is hedged."""
    least_ns: int = 50 * MS
    """Never sooner than this."""
    budget: float = 0.05
    """Second attempts as a share of the requests of the last 10 s, or one, where that is more."""


class Waits:
    """Waits for the first byte, as counts in buckets that fade."""

    __slots__ = ("_counts", "_delay", "_delay_at", "_faded_at", "n")

    def __init__(self) -> None:
        self._counts = [0.0] * _BUCKETS
        self._faded_at = 0
        self._delay: tuple[float, int] | None = None
        self._delay_at = 0
        self.n = 0.0

    def add(self, wait_ns: int, now: int) -> None:
        """One more."""
        if now - self._faded_at >= FADE_NS:
            halves = min(60, (now - self._faded_at) // FADE_NS) if self._faded_at else 0
            self._faded_at = now
            if halves:
                keep = 0.5**halves
                self._counts = [count * keep for count in self._counts]
                self.n *= keep
        self._counts[_bucket(wait_ns)] += 1
        self.n += 1

    def delay(self, share: float, now: int) -> int | None:
        """`quantile` as of the last second: it is asked for by every request."""
        known = self._delay
        if known is not None and known[0] == share and now - self._delay_at < S:
            return known[1]
        found = self.quantile(share)
        self._delay, self._delay_at = None if found is None else (share, found), now
        return found

    def quantile(self, share: float) -> int | None:
        """Upper edge of the bucket (ns) in which it lies; `None` for too few."""
        if self.n < LEAST:
            return None
        left = share * self.n
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return round(_BASE_NS * math.exp2((bucket + 1) / _PER_OCTAVE))
        return None


def _bucket(wait_ns: int) -> int:
    return min(_BUCKETS - 1, int(_PER_OCTAVE * math.log2(max(1.0, wait_ns / _BASE_NS))))


class Hedger:
    """When the requests of each lane are sent a second time."""

    def __init__(self, policy: HedgePolicy) -> None:
        self._policy = policy
        self._lanes: dict[str, Waits] = {}
        self._budget = RetryBudget(RetryPolicy(budget=policy.budget, reserve=1))
        self.won = 0
        """Second attempts that answered first."""

    @property
    def policy(self) -> HedgePolicy:
        """When and how many; a change applies to the requests that come."""
        return self._policy

    @policy.setter
    def policy(self, policy: HedgePolicy) -> None:
        self._policy = policy
        self._budget.policy = RetryPolicy(budget=policy.budget, reserve=1)

    @property
    def made(self) -> int:
        """Second attempts."""
        return self._budget.taken

    @property
    def denied(self) -> int:
        """Second attempts that the budget had no room for."""
        return self._budget.denied

    def sent(self, lane: str, now: int) -> int | None:
        """A request is sent: when (ns) it is to be hedged unless its first byte is here; `None`: never."""
        self._budget.request(now)
        waits = self._lanes.get(lane)
        delay = None if waits is None else waits.delay(self._policy.quantile, now)
        return None if delay is None else now + max(delay, self._policy.least_ns)

    def answered(self, lane: str, wait_ns: int, now: int) -> None:
        """The first byte came after `wait_ns`; of a hedged request, counted from its first attempt."""
        waits = self._lanes.get(lane)
        if waits is None:
            waits = self._lanes[lane] = Waits()
        waits.add(wait_ns, now)

    def go(self, now: int) -> bool:
        """The time has come, and there is somebody else: whether the second attempt is made."""
        return self._budget.take(now)
