"""What is said in mid-stream of an answer that stands still for longer than its lane allows."""

from __future__ import annotations

import msgspec


class GapEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One gap between two token events, once it is longer than the lane's limit; at most one event a gap."""

    request_id: str
    lane: str
    backend: str
    gap_ns: int
    """How long it had lasted when it was noticed; whole, where the next token came first."""
    at: int
    """When that was, on our monotonic clock (ns)."""
    action: str
    """What the lane has done then: `warn`, `degrade` or `abort`."""
