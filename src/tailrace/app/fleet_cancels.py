"""Cancelled requests of all workers, followed into the engine by the one process that sees them all.

The engine's count covers the requests of every worker, so one worker's view proves nothing. The supervisor has the one
watch on the engine, and asks the workers after each of its scrapes which requests they have there; a worker that does
not answer at once makes that scrape say nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.cancels import Cancel, CancelWatch
from tailrace.model.engine_state import EngineState

PATIENCE_S: Final = 0.1


class FleetCancels:
    """The reader of the supervisor's scrapes.

    `at_engine` asks all workers when those requests were sent that the engine works on now (ns); `None`: not all of
    them answered.
    """

    def __init__(
        self,
        at_engine: Callable[[], Awaitable[list[int] | None]],
        *,
        wake: Callable[[], None],
        period_ns: int,
        amendments: AmendmentSink,
        metrics: GatewayMetrics,
    ) -> None:
        self._ask = at_engine
        self._ours: list[int] = []
        self._asking: asyncio.Task[None] | None = None
        self.watch = CancelWatch(lambda: self._ours, wake=wake, period_ns=period_ns, amendments=amendments)
        self.watch.on_slot = lambda cancel: count_slot(metrics, cancel)

    def pause_s(self, usual_s: float, cost_s: float) -> float:
        """How long to wait for the next scrape."""
        return self.watch.pause_s(usual_s, cost_s)

    def scraped(self, state: EngineState | None, asked: int, now: int) -> None:
        """One was answered; what it proves is known once the workers have said what they have there."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._look(state, asked, now))

    async def _look(self, state: EngineState | None, asked: int, now: int) -> None:
        try:
            ours = await self._ask() if state is not None else None
            self._ours = ours or []
            # Links keep their order: every cancel of before these answers is known by now.
            self.watch.scraped(None if ours is None else state, asked, now)
        finally:
            self._asking = None

    async def close(self) -> None:
        """Stop asking."""
        asking = self._asking
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


def count_slot(metrics: GatewayMetrics, cancel: Cancel) -> None:
    """A cancel's slot was seen free, or is known to stay unseen."""
    if cancel.slot_ns is None:
        metrics.add("tailrace_cancel_slot_unseen_total", 1, reason=cancel.reason)
    else:
        metrics.show("tailrace_cancel_slot_seconds", cancel.slot_ns, reason=cancel.reason)
