"""Whether an engine preempts requests: by its counter, and by the signs that come before the counter moves.

vLLM counts a preemption when the request *resumes*: with four requests thrown out its counter stayed at 0 and jumped
to 4 when they came back. Until then there are only two signs: requests wait although nothing new came, and the KV cache
is full. So a full cache with a waiting line is called suspected, and what the counter says is called counted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.engines.odometer import Reading

FULL: Final = 0.9
"""Share of KV blocks from which a waiting request is waiting for memory rather than for a turn."""


class PreemptionSign(msgspec.Struct, frozen=True):
    """What is known of preemptions at one moment."""

    counted: float | None
    """Since the reading before; `None` where the engine counts none or this is the first reading."""
    suspected: bool
    """Requests wait, some run, the cache is full, and the counter has not moved."""
    since_ns: int | None = None
    """When the suspicion began."""
    waiting: int = 0
    kv_usage: float | None = None

    @property
    def text(self) -> str:
        """For people; empty where there is nothing to say."""
        if self.counted:
            return f"{self.counted:.0f} requests were preempted"
        if self.suspected:
            usage = "" if self.kv_usage is None else f" and {self.kv_usage:.0%} of the KV cache in use"
            return f"preemption is suspected: {self.waiting} requests wait with others running{usage}"
        return ""


class PreemptionWatch:
    """Follows one engine's readings."""

    def __init__(self, *, full: float = FULL) -> None:
        self._full = full
        self._before: float | None = None
        self._since: int | None = None
        self.sign = PreemptionSign(None, suspected=False)
        """What the last reading showed."""

    def look(self, reading: Reading) -> PreemptionSign:
        """One more reading."""
        by = reading.counters.get("preemptions")
        total = None if by is None else sum(by.values())
        counted = None if total is None or self._before is None else total - self._before
        self._before = total
        signs = bool(reading.waiting and reading.running) and (reading.kv_usage or 0.0) >= self._full
        if not signs:
            self._since = None
        elif self._since is None:
            self._since = reading.at_ns
        self.sign = PreemptionSign(
            counted,
            suspected=signs and not counted,
            since_ns=self._since,
            waiting=reading.waiting or 0,
            kv_usage=reading.kv_usage,
        )
        return self.sign
