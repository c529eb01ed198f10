"""What stands still while it is in flight: stalls, marked at the sweep that sees them, and objectives that are passed.

A summary at the end of a request is too late for either: a stream that hangs for ten minutes has no end yet.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from tailrace.gateway.in_flight import InFlight
    from tailrace.gateway.lanes import LaneDesk

_KEPT: Final = 64
_MARKED: Final = 10_000
"""Streams with a mark; more than are ever in flight."""


class Stall(msgspec.Struct, frozen=True):
    """A stream that stood still: seen while it did."""

    request_id: str
    lane: str
    backend: str
    gap_ns: int
    """How long it had stood when it was seen."""
    usual_ns: int
    """Mean of the last gaps before."""
    at: int


class Standstill:
    """Marks streams that stall, and counts objectives that requests in flight have passed."""

    def __init__(self) -> None:
        self.marked: dict[str, tuple[int, int]] = {}
        """Request -> (when its last token had come, when the stall after it was seen). Gone with the next token."""
        self.counts: Counter[str] = Counter()
        """Lane -> stalls seen in flight."""
        self._recent: deque[Stall] = deque(maxlen=_KEPT)

    def look(self, in_flight: Collection[InFlight], now: int) -> None:
        """Called by every sweep: a stall is marked within one of its periods."""
        marked = self.marked
        for exchange in in_flight:
            meter = exchange.transit.meter
            if meter is None:
                continue
            last = meter.last_token_ns
            if last is None or now - last <= meter.watch_ns:
                continue  # the usual case, and all that it costs
            seen = marked.get(exchange.ledger.request_id)
            if seen is not None and seen[0] == last:
                continue
            if exchange.connection.blocked_since is None and meter.stands_still(now):
                self._mark(exchange, last, now)

    def _mark(self, exchange: InFlight, last: int, now: int) -> None:
        meter = exchange.transit.meter
        assert meter is not None
        if len(self.marked) >= _MARKED:
            self.marked.clear()
        self.marked[exchange.ledger.request_id] = (last, now)
        self.counts[exchange.lane] += 1
        gaps = meter.recent_gaps
        self._recent.append(
            Stall(
                request_id=exchange.ledger.request_id,
                lane=exchange.lane,
                backend=exchange.backend.name,
                gap_ns=now - last,
                usual_ns=sum(gaps) // len(gaps) if gaps else 0,
                at=now,
            )
        )

    def alarm(self, request_id: str, last_token_ns: int | None) -> int | None:
        """When the stall that a stream is in was seen; `None` where it is in none."""
        seen = self.marked.get(request_id)
        return seen[1] if seen is not None and seen[0] == last_token_ns else None

    def view(self, now: int) -> dict[str, Any]:
        """Counts by lane, and the last ones, oldest first (times in ms)."""
        return {
            "total": dict(self.counts),
            "recent": [
                {
                    "ago_ms": (now - stall.at) / 1e6,
                    "request_id": stall.request_id,
                    "lane": stall.lane,
                    "backend": stall.backend,
                    "stood_ms": stall.gap_ns / 1e6,
                    "usual_gap_ms": stall.usual_ns / 1e6,
                }
                for stall in self._recent
            ],
        }

    def pass_objectives(self, in_flight: Collection[InFlight], lanes: LaneDesk, now: int) -> None:
        """Count what has passed an objective without having ended; and forget what has ended. Once a second."""
        alive = {exchange.ledger.request_id for exchange in in_flight}
        for request_id in [one for one in self.marked if one not in alive]:
            del self.marked[request_id]
        for exchange in in_flight:
            account = lanes.account(exchange.lane) if exchange.lane else None
            if account is None or not account.objectives.bounds:
                continue
            request_id, age = exchange.ledger.request_id, now - exchange.received
            account.passed(request_id, "e2e", age, now)
            if exchange.waits_for_token:
                account.passed(request_id, "ttft", age, now)
            meter = exchange.transit.meter
            if meter is not None and meter.last_token_ns is not None:
                account.passed(request_id, "chunk_gap", now - meter.last_token_ns, now)
        for account in lanes.attainment.values():
            account.forget(alive)
