"""Gaps in mid-stream that a lane does not allow: who hears of them, and how many there were."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tailrace.govern.stream_guard import StreamGuard, StreamWatch
from tailrace.model.gap_event import GapEvent

if TYPE_CHECKING:
    from tailrace.gateway.in_flight import InFlight

_KEPT: Final = 64


class GapDesk:
    """Takes the gaps that the sweeper finds, and hands each on as an event."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[GapEvent], None]] = []
        """Called in the event loop with every gap beyond its lane's limit; must not wait."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """(lane, action) -> events."""
        self._recent: deque[GapEvent] = deque(maxlen=_KEPT)

    def watch(self, exchange: InFlight, guard: StreamGuard) -> StreamWatch:
        """What watches the stream of a request whose lane demands something of it."""

        def tell(gap_ns: int, at: int) -> None:
            self._tell(
                GapEvent(
                    request_id=exchange.ledger.request_id,
                    lane=exchange.lane,
                    backend=exchange.backend.name,
                    gap_ns=gap_ns,
                    at=at,
                    action=guard.gap_action.value,
                )
            )

        return StreamWatch(guard, tell)

    def _tell(self, event: GapEvent) -> None:
        self.counts[event.lane, event.action] += 1
        self._recent.append(event)
        for listener in self.listeners:
            listener(event)

    def view(self, now: int) -> dict[str, Any]:
        """Counts by lane and action, and the last ones, oldest first (times in ms)."""
        counts: dict[str, dict[str, int]] = {}
        for (lane, action), count in self.counts.items():
            counts.setdefault(lane, {})[action] = count
        recent = [
            {
                "ago_ms": (now - event.at) / 1e6,
                "request_id": event.request_id,
                "lane": event.lane,
                "backend": event.backend,
                "gap_ms": event.gap_ns / 1e6,
                "action": event.action,
            }
            for event in self._recent
        ]
        return {"total": counts, "recent": recent}
