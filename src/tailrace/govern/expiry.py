"""When whoever waits has waited long enough: the earliest instants first, without looking at everybody."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Entry = tuple[int, str, int]
"""(instant, request id, arrival number): the number tells a request from a later one of the same id."""


class Expiry:
    """A heap in which those who no longer wait lie until they come up, or until they are the most of it."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Expires at the entry's instant, if it still waits then."""
        heapq.heappush(self._heap, entry)

    def due(self, now: int) -> list[Entry]:
        """Take out all whose instant has come, waiting or not."""
        out = []
        while self._heap and self._heap[0][0] <= now:
            out.append(heapq.heappop(self._heap))
        return out

    def tidy(self, waiting: int, waits: Callable[[Entry], bool]) -> None:
        """Forget those who do not wait, where they are three in four; `waiting` says how many do."""
        if len(self._heap) > 4 * waiting + 64:
            self._heap = [entry for entry in self._heap if waits(entry)]
            heapq.heapify(self._heap)
