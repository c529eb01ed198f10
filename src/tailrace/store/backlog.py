"""The bounded queue between request path and writer: never waits, gives up normal records before slow ones."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord

__all__ = ["NORMAL", "Backlog", "record_class"]

NORMAL: Final = "normal"


def record_class(record: RequestRecord) -> str:
    """The class by which drops are counted: `normal`, `slow`, or the outcome of a request that did not complete."""
    if record.outcome is not OutcomeKind.COMPLETED:
        return record.outcome.value
    return "slow" if record.slow or record.stall_count else NORMAL


class Backlog:
    """At most `capacity` records, and at most `event_capacity` timeline events among them.

    `put` takes no lock unless it drops: both ends of a deque are atomic under the interpreter, and the bound may be
    passed by as many records as threads put at once, which is one in a gateway.
    """

    def __init__(self, capacity: int, event_capacity: int) -> None:
        self.capacity = capacity
        self.event_capacity = event_capacity
        self._normal: deque[RequestRecord] = deque()
        self._notable: deque[RequestRecord] = deque()
        self._events = 0
        self._lock = threading.Lock()
        self.dropped: dict[str, int] = {}
        """Class -> records given up because the queue was full."""

    def __len__(self) -> int:
        return len(self._normal) + len(self._notable)

    def put(self, record: RequestRecord) -> bool:
        """Take a record in, never waiting. False when it was dropped.

        When full, a notable record takes the place of the newest normal one; a normal record is dropped itself.
        """
        kind = record_class(record)
        events = 0 if record.timeline is None else len(record.timeline.at_ns)
        full = len(self) >= self.capacity or self._events + events > self.event_capacity
        if full and (kind == NORMAL or not self._make_room(events)):
            self.count_drop(kind)
            return False
        self._events += events
        (self._normal if kind == NORMAL else self._notable).append(record)
        return True

    def _make_room(self, events: int) -> bool:
        while len(self) >= self.capacity or self._events + events > self.event_capacity:
            try:
                victim = self._normal.pop()
            except IndexError:
                return False
            self._release(victim)
            self.count_drop(NORMAL)
        return True

    def _release(self, record: RequestRecord) -> None:
        if record.timeline is not None:
            self._events -= len(record.timeline.at_ns)

    def count_drop(self, kind: str, n: int = 1) -> None:
        """Count `n` records of a class as lost."""
        with self._lock:
            self.dropped[kind] = self.dropped.get(kind, 0) + n

    def take(self, limit: int) -> list[RequestRecord]:
        """Remove and return up to `limit` records, notable ones first. For the writer thread."""
        out: list[RequestRecord] = []
        for queue in (self._notable, self._normal):
            while len(out) < limit:
                try:
                    out.append(queue.popleft())
                except IndexError:
                    break
        for record in out:
            self._release(record)
        return out
