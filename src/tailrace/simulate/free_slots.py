"""What a refused request would have waited: when its lane next had a free slot for it.

A request that is refused at position p of its lane's queue would have been served by the p-th slot that the lane gave
from then on. Whoever stood before it and left without one (its time was over, its client went) moves it up by one. A
lane in which nobody waits any more has a slot for whoever comes.
"""

from __future__ import annotations

import msgspec

from tailrace.model.outcome import Reason


class RefusedTry(msgspec.Struct, kw_only=True):
    """One refusal, and what became of the lane. Times in ns of the simulation's clock."""

    at_ns: int
    request_id: str
    lane: str
    reason: Reason
    position: int
    predicted_wait_ns: int | None
    """Unrounded; `None` where the governor could not know."""
    retry_after_s: int | None
    http_status: int
    free_at_ns: int | None = None
    """When the lane had a slot for it; `None` if that was not seen before the end."""

    @property
    def wait_ns(self) -> int | None:
        """What it would have waited."""
        return None if self.free_at_ns is None else self.free_at_ns - self.at_ns

    @property
    def error(self) -> float | None:
        """|predicted - actual| / actual, `None` where one of them is not known or the actual wait is 0."""
        actual = self.wait_ns
        if self.predicted_wait_ns is None or not actual:
            return None
        return abs(self.predicted_wait_ns - actual) / actual


class _Lane:
    __slots__ = ("pending", "queued")

    def __init__(self) -> None:
        self.queued: dict[str, int] = {}
        self.pending: list[list[int]] = []
        """[index of the refusal, arrivals before it, slots still to come]."""


class FreeSlots:
    """Follows every lane's queue beside the governor, and settles what each refusal would have waited."""

    def __init__(self) -> None:
        self.refusals: list[RefusedTry] = []
        self._lanes: dict[str, _Lane] = {}
        self._arrivals = 0

    def queued(self, lane: str, request_id: str) -> None:
        """A request waits in the lane from now on."""
        self._arrivals += 1
        self._of(lane).queued[request_id] = self._arrivals

    def refused(self, refusal: RefusedTry) -> None:
        """A request was not let in."""
        self._arrivals += 1
        self._of(refusal.lane).pending.append([len(self.refusals), self._arrivals, max(1, refusal.position)])
        self.refusals.append(refusal)

    def granted(self, lane: str, request_id: str, now: int) -> None:
        """The lane gave a slot to a waiting request."""
        state = self._of(lane)
        state.queued.pop(request_id, None)
        if state.pending:
            for entry in state.pending:
                entry[2] -= 1
            self._settle(state, now)

    def gone(self, lane: str, request_id: str) -> None:
        """A waiting request left without a slot. Those behind it move up, but still need a slot themselves."""
        state = self._of(lane)
        since = state.queued.pop(request_id, 0)
        for entry in state.pending:
            if entry[1] > since:
                entry[2] = max(1, entry[2] - 1)

    def open(self, lane: str, now: int) -> None:
        """The lane let in one that came, or one ended and nobody took its slot: where nobody waits, one is free."""
        state = self._of(lane)
        if state.pending and not state.queued:
            for entry in state.pending:
                entry[2] = 0
            self._settle(state, now)

    def _of(self, lane: str) -> _Lane:
        return self._lanes.setdefault(lane, _Lane())

    def _settle(self, state: _Lane, now: int) -> None:
        left = []
        for entry in state.pending:
            if entry[2] > 0:
                left.append(entry)
            else:
                self.refusals[entry[0]].free_at_ns = now
        state.pending = left
