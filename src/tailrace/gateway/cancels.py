"""How fast a cancelled request's work really ends: its connection to the engine, then the engine's slot.

Closing the connection is ours and known at once; it stands in the record. That the engine stopped can only be seen in
its metrics, after the record was written: it becomes an amendment to it. What could not be proved is kept here, for
metrics, and for the admin port while it is recent.

The slot is called free when the engine's count of running and waiting requests is, twice in a row, no more than those
of ours that it counted before and still works on. That proves it only if the engine was seen to count the request in
the first place, and if nobody else keeps it busy; whatever cannot be proved stays absent. A burst of scrapes follows a
cancel, at most once in a usual scrape period, and grows slower where a scrape is costly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.verdict import Phase
from tailrace.model.amendment import Amendment
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import Reason

if TYPE_CHECKING:
    from tailrace.gateway.in_flight import InFlight

KEPT: Final = 512
"""Cancels that the admin port can still show."""
BURST_NS: Final = 1_000_000_000
"""How long an engine is looked at after a cancel: one that takes longer has not noticed it."""
_ORIGIN: Final = "the engine's count of its requests"
_FIRST_PAUSE_S: Final = 0.004
_GROWTH: Final = 1.15
_LAST_PAUSE_S: Final = 0.1
_SHARE_OF_COST: Final = 20
"""A pause is at least this many times what reading the last scrape cost: at most a twentieth of the loop."""


def at_engine(exchanges: Iterable[InFlight]) -> list[int]:
    """When those of our requests were sent that the engine works on now (ns)."""
    return [
        exchange.ledger.sent
        for exchange in exchanges
        if exchange.phase in (Phase.WAITING, Phase.STREAMING) and exchange.ledger.sent is not None
    ]


class Cancel(msgspec.Struct, kw_only=True):
    """One cancelled request that had reached the engine. Stamps are our monotonic clock (ns)."""

    request_id: str
    reason: str
    stage: str
    since: int
    """Why it is over was seen."""
    sent: int
    upstream_ns: int
    """`since` -> its connection to the engine was closed."""
    slot_ns: int | None = None
    """`since` -> a scrape showed the slot free."""
    unseen: str = ""
    """Why `slot_ns` is absent for good; empty while it is looked for or known."""
    backend: str = ""
    """The engine that it was sent to."""
    worker: int = 0
    """The process that served it, where there are several."""
    counted_at: int | None = None
    """A scrape asked at this instant counted all our requests, this one among them."""
    free_at: int | None = None

    def view(self) -> dict[str, Any]:
        """For the admin port (ms)."""
        out = {
            "request_id": self.request_id,
            "reason": self.reason,
            "stage": self.stage,
            "cancel_upstream_ms": self.upstream_ns / 1e6,
            "cancel_slot_ms": None if self.slot_ns is None else self.slot_ns / 1e6,
            "unseen": self.unseen,
            "backend": self.backend,
        }
        return {**out, "worker": self.worker} if self.worker else out


class CancelWatch:
    """Follows cancelled requests into the engine.

    `at_engine` names the instants at which our requests that the engine works on now were sent. `wake` asks for a
    scrape at once. `on_slot` is told of each cancel once its slot is known to be free or known to stay unseen.
    """

    def __init__(
        self,
        at_engine: Callable[[], Iterable[int]],
        *,
        wake: Callable[[], None],
        period_ns: int,
        amendments: AmendmentSink | None = None,
        backend: str = "",
    ) -> None:
        self._backend = backend
        self._at_engine = at_engine
        self._wake = wake
        self._amendments = amendments
        self._period_ns = period_ns
        self._pending: list[Cancel] = []
        self._counted_at: int | None = None
        """The last scrape that counted all our requests, by the instant at which it was asked."""
        self._burst_until = 0
        self._rests_until = 0
        self._pause_s = _FIRST_PAUSE_S
        self.elsewhere: Callable[[Cancel], None] | None = None
        """Who follows the cancels of this process: another one, which sees the requests of all to the same engine."""
        self.recent: deque[Cancel] = deque(maxlen=KEPT)
        self.on_slot: Callable[[Cancel], None] | None = None

    def find(self, request_id: str) -> Cancel | None:
        """A recent cancel by our id."""
        return next((cancel for cancel in reversed(self.recent) if cancel.request_id == request_id), None)

    def add(
        self, *, request_id: str, reason: Reason, stage: str, since: int, sent: int, closed: int, metrics: bool
    ) -> None:
        """A request was cancelled and its connection to the engine closed. `metrics`: whether the engine has some."""
        cancel = Cancel(
            request_id=request_id,
            reason=reason.value,
            stage=stage,
            since=since,
            sent=sent,
            upstream_ns=max(0, closed - since),
            backend=self._backend,
        )
        if self.elsewhere is not None:
            self.elsewhere(cancel)
        else:
            self.follow(cancel, metrics=metrics)

    def follow(self, cancel: Cancel, *, metrics: bool) -> None:
        """Look for its slot."""
        self.recent.append(cancel)
        if not metrics:
            self._ends(cancel, "the engine shows no count of its requests")
            return
        closed = cancel.since + cancel.upstream_ns
        if not self._pending or closed > self._burst_until:
            if closed < self._rests_until:
                # However many leave, the engine has a usual period to itself between two bursts.
                self._ends(cancel, "not looked at: the engine's metrics had just been read in a burst")
                return
            self._burst_until = closed + BURST_NS
            self._pause_s = _FIRST_PAUSE_S
        if self._counted_at is not None and self._counted_at > cancel.sent:
            cancel.counted_at = self._counted_at
        self._pending.append(cancel)
        self._wake()

    def pause_s(self, usual_s: float, cost_s: float) -> float:
        """How long to wait before the next scrape, whose last one cost `cost_s` of our time."""
        if not self._pending:
            return usual_s
        pause = max(self._pause_s, _SHARE_OF_COST * cost_s)
        self._pause_s = min(self._pause_s * _GROWTH, _LAST_PAUSE_S)
        return min(pause, usual_s)

    def scraped(self, state: EngineState | None, asked: int, now: int) -> None:
        """A scrape that was asked at `asked` was answered at `now`; `None`: it failed."""
        pending = self._pending
        if state is not None and state.running is not None:
            inside = state.running + (state.waiting or 0)
            ours = list(self._at_engine())
            whole = inside >= len(ours) + len(pending)
            if whole:
                self._counted_at = asked
            for cancel in pending:
                self._look(cancel, inside, ours, asked, now, whole=whole)
        if not pending:
            return
        over = now > self._burst_until
        still = []
        for cancel in pending:
            if cancel.slot_ns is not None:
                self._ends(cancel, "")
            elif cancel.unseen or over:
                self._ends(cancel, cancel.unseen or f"the engine's count did not fall within {BURST_NS / 1e9:g} s")
            else:
                still.append(cancel)
        self._pending = still
        if not still:
            self._rests_until = now + self._period_ns

    def _look(self, cancel: Cancel, inside: int, ours: list[int], asked: int, now: int, *, whole: bool) -> None:
        if asked < cancel.since:
            return  # asked before it was cancelled: it says nothing about the end
        if whole:
            cancel.counted_at, cancel.free_at = asked, None
            return
        if cancel.counted_at is None:
            if inside <= len(ours):
                cancel.unseen = "the engine was never seen to count it"
            return
        before = cancel.counted_at
        if inside > sum(1 for sent in ours if sent < before):
            cancel.free_at = None
        elif cancel.free_at is None:
            cancel.free_at = now
        else:
            # The second time: a request that was just ending while the first was rendered cannot have feigned it.
            cancel.slot_ns = max(0, cancel.free_at - cancel.since)

    def _ends(self, cancel: Cancel, unseen: str) -> None:
        cancel.unseen = unseen
        if cancel.slot_ns is not None and self._amendments is not None:
            self._amendments.put(
                Amendment(
                    received_unix_ns=time_ns(),
                    origin=_ORIGIN,
                    request_id=cancel.request_id,
                    cancel_slot_ns=cancel.slot_ns,
                )
            )
        if self.on_slot is not None:
            self.on_slot(cancel)
