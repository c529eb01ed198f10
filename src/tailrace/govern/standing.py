"""What is held of one backend: how much work is with it, and whether it may get more."""

from __future__ import annotations

from typing import Final

from tailrace.govern.breaker import Breaker, BreakerPolicy
from tailrace.model.thresholds import S

COLD: Final = 0.1
"""The share of its weight with which a backend comes back: enough to show how it does, too little to matter."""

MOST_ALONE_NS: Final = 300 * S
"""The longest that a `Retry-After` of the whole engine keeps requests away from it. One of 10^12 seconds, from a bug or
a wrong clock, would take it out of the fleet until the gateway's next start."""


class Standing:
    """One backend as the balancer sees it. All stamps are the monotonic clock of `now` (ns)."""

    __slots__ = (
        "breaker",
        "ejected_until",
        "max_prompt_tokens",
        "name",
        "not_before",
        "ramp_ns",
        "requests",
        "retried",
        "since",
        "tokens",
        "weight",
    )

    def __init__(
        self,
        name: str,
        breaker: BreakerPolicy,
        *,
        weight: float = 1.0,
        max_prompt_tokens: int | None = None,
        ramp_ns: int = 10 * S,
    ) -> None:
        self.name = name
        self.weight = weight
        self.max_prompt_tokens = max_prompt_tokens
        """Longer prompts are kept away from it."""
        self.ramp_ns = ramp_ns
        """How long a backend that comes back takes to get its whole share."""
        self.breaker = Breaker(breaker)
        self.requests = 0
        """Requests that are with it, or on their way to it."""
        self.tokens = 0
        """Their work: prompt and output tokens, as far as they can be told beforehand."""
        self.retried = 0
        """Attempts that failed here and were made again."""
        self.since: int | None = None
        """When it came back; `None` for one that has been there all along."""
        self.ejected_until = 0
        """Outlier ejection: how long it gets nothing while others can serve."""
        self.not_before = 0
        """A `Retry-After` of the whole engine: how long it wants to be left alone."""

    # -- work

    def took(self, tokens: int) -> None:
        """A request of so much work goes to it."""
        self.requests += 1
        self.tokens += tokens

    def gave_back(self, tokens: int) -> None:
        """That request works there no longer."""
        self.requests -= 1
        self.tokens -= tokens

    # -- usable or not

    def why_not(self, now: int) -> str:
        """Why it should get no request at the moment; empty where it may."""
        if not self.breaker.allows(now):
            return "breaker"
        if now < self.ejected_until:
            return "ejected"
        return "retry_after" if now < self.not_before else ""

    def usable(self, now: int) -> bool:
        """Whether it may get a request."""
        return self.breaker.allows(now) and now >= self.ejected_until and now >= self.not_before

    def came_back(self, now: int) -> None:
        """It serves again (healed, admitted again, added): its share grows slowly."""
        self.since = now

    def share(self, now: int) -> float:
        """Its weight now: during the slow start a part of it."""
        since = self.since
        if since is None:
            return self.weight
        if now - since >= self.ramp_ns:
            self.since = None
            return self.weight
        return self.weight * (COLD + (1 - COLD) * max(0, now - since) / self.ramp_ns)

    # -- what became of requests

    def succeeded(self, begun: int, now: int) -> None:
        """A request that was sent at `begun` was served."""
        if self.breaker.succeeded(begun, now):
            self.came_back(now)

    def failed(self, begun: int, now: int) -> bool:
        """A request that was sent at `begun` failed through its fault. True where its breaker opened."""
        return self.breaker.failed(begun, now)

    def leave_alone(self, until: int, now: int) -> None:
        """It asked for it. Not for longer than any engine is ever left out: what it says may be nonsense."""
        self.not_before = max(self.not_before, min(until, now + MOST_ALONE_NS))
