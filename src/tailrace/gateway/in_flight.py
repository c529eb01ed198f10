"""A request in flight as the gateway's table, its sweeper and its views know it, by whatever protocol it came."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.gateway.budget_clock import BudgetClock
from tailrace.gateway.hop import TcpReading
from tailrace.gateway.routes import Route
from tailrace.gateway.verdict import Phase
from tailrace.gateway.work import Work
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import Reason

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend


class Transport(Protocol):
    """One end of a hop."""

    transport: asyncio.Transport | None
    """`None` where there is no socket of ours to ask."""


class ClientEnd(Transport, Protocol):
    """What is known of a request's client."""

    blocked_since: int | None

    @property
    def pipeline(self) -> Sequence[Any]:
        """The requests on its connection, the one that is answered first; empty where they do not wait for another."""


class _Transit(Protocol):
    @property
    def meter(self) -> StreamMeter | None: ...


class InFlight(Protocol):
    """A request that has not ended."""

    ledger: RequestLedger
    backend: Backend
    """The engine that it was sent to last; until then, whichever."""
    received: int
    lane: str
    work: Work
    route: Route
    phase: Phase
    clock: BudgetClock
    next_check: int
    """Earliest instant at which a budget may be over; the sweeper looks no closer before it."""
    loop_lag_ns: int | None
    dropped: tuple[int, int] | None
    """When it was seen that the engine's work is not wanted any more, and when its connection was closed."""
    cancel_ns: int | None
    """The time between the two, once it has ended."""
    readings: tuple[TcpReading | None, TcpReading | None] | None
    """TCP's view of the engine's hop and the client's, read as it ended."""

    @property
    def hop(self) -> Transport | None:
        """The connection to the engine that it used, or none of our own."""

    @property
    def keep_alive(self) -> bool:
        """Whether its connection outlives it."""

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None: ...

    @property
    def transit(self) -> _Transit:
        """What is measured of its answer."""

    @property
    def connection(self) -> ClientEnd:
        """What is known of its client's end."""

    @property
    def waits_for_token(self) -> bool:
        """A stream whose first token has not come."""

    def stage(self, now: int) -> str:
        """The stage that it is in."""

    def sweep(self, now: int) -> None:
        """A budget may be over."""

    def cancel(self, now: int, reason: Reason, why: str) -> None:
        """Somebody other than its client ends it."""

    def broken(self, now: int) -> None:
        """We failed over it."""
