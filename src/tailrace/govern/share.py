"""One process's part of a shared lane: the places it holds, and what it owes the keeper of the limits an answer to."""

from __future__ import annotations

from typing import Final

from tailrace.govern.shared_state import Order, Report

_KNOWN_NS: Final = 1_000_000_000
"""How long the number of requests that wait elsewhere says anything."""


class Share:
    """Leases of one lane. The lane says how many of its requests run and wait; who waits stands in `unseated` while
    it holds no place in the queue.
    """

    __slots__ = (
        "_answer",
        "_elsewhere",
        "_elsewhere_at",
        "_given_queued",
        "_given_running",
        "_heard",
        "_number",
        "_said",
        "queued",
        "running",
        "tight",
        "unseated",
    )

    def __init__(self) -> None:
        self.running = 0
        """Places to run that are ours."""
        self.queued = 0
        """Places in the queue that are ours."""
        self.tight = False
        """Idle places go back at once."""
        self.unseated: dict[str, int] = {}
        """Those who wait without a place in the queue, oldest first -> the report that said so; 0 while none has."""
        self._given_running = 0
        self._given_queued = 0
        self._heard = 0
        self._number = 0
        self._said = (0, 0, 0)
        self._answer = False
        self._elsewhere = 0
        self._elsewhere_at = 0

    # -- the lane's side

    def seat(self, request_id: str, waiting: int) -> None:
        """It is now the last of `waiting` requests."""
        if self.unseated or waiting > self.queued:
            self.unseated[request_id] = 0

    def unseat(self, request_id: str, waiting: int) -> None:
        """It waits no longer; `waiting` are left. Its place passes to the first that has none."""
        if self.unseated.pop(request_id, None) is None:
            self.seat_more(waiting)
        self._spare_queued(waiting)

    def keep_seat(self, request_id: str) -> None:
        """It had a place in the queue before the lanes changed: it is not refused now."""
        self.unseated.pop(request_id, None)

    def empty_queue(self) -> None:
        """All who wait are about to be sorted into lanes again."""
        self.unseated.clear()

    def seat_more(self, waiting: int) -> None:
        """Give places in the queue that became free to those without, oldest first."""
        while self.unseated and waiting - len(self.unseated) < self.queued:
            del self.unseated[next(iter(self.unseated))]

    def spare(self, running: int, waiting: int) -> None:
        """Where places are scarce, lay aside what nobody here uses: the next report gives it back."""
        if self.tight and self.running > running:
            self._given_running += self.running - running
            self.running = running
        self._spare_queued(waiting)

    def _spare_queued(self, waiting: int) -> None:
        used = waiting - len(self.unseated)
        if self.tight and self.queued > used:
            self._given_queued += self.queued - used
            self.queued = used

    def waiting_elsewhere(self, now: int) -> int:
        """Requests that wait in other processes, as far as that is known."""
        return self._elsewhere if now - self._elsewhere_at <= _KNOWN_NS else 0

    # -- the keeper's side

    def obey(self, order: Order, now: int) -> None:
        """Take an order in. The lane then admits, seats and lays aside."""
        self._heard = order.number
        self.running += order.running
        self.queued += order.queued
        self._answer |= order.tight or bool(order.running or order.queued)
        self.tight = order.tight
        self._elsewhere, self._elsewhere_at = order.elsewhere, now

    def settled(self, report: int) -> list[str]:
        """Those who lacked a place in the queue when `report` was made, and still do."""
        return [request_id for request_id, said in self.unseated.items() if 0 < said <= report]

    def report(self, lane: str, *, waiting: int, oldest_ns: int, wanted: int | None = None) -> Report | None:
        """What has changed since the last report, if anything has. `wanted`: places to run, if not one for each."""
        wanted = waiting if wanted is None else wanted
        now = (wanted, len(self.unseated), oldest_ns)
        newcomer = next(reversed(self.unseated.values()), 1) == 0
        given = self._given_running or self._given_queued
        if now == self._said and not (newcomer or given or self._answer):
            return None
        self._number += 1
        report = Report(
            lane=lane,
            number=self._number,
            heard=self._heard,
            given_running=self._given_running,
            given_queued=self._given_queued,
            need_running=wanted,
            need_queued=len(self.unseated),
            oldest_ns=oldest_ns,
        )
        self._given_running = self._given_queued = 0
        self._said, self._answer = now, False
        for request_id, said in self.unseated.items():
            if not said:
                self.unseated[request_id] = self._number
        return report
