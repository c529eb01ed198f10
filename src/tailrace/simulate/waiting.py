"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from tailrace.simulate.request import SimRequest, State


class WaitingQueue(Protocol):
    """Requests that hold no KV blocks. Removal is lazy: a request that is no longer `WAITING` is skipped."""

    count: int

    def push(self, request: SimRequest) -> None:
        """A new arrival."""
        ...

    def push_back(self, request: SimRequest) -> None:
        """A preempted request: before everybody else in first-come order."""
        ...

    def head(self) -> SimRequest | None:
        """The next to be admitted."""
        ...

    def pop(self) -> None:
        """Remove the head."""
        ...

    def __iter__(self) -> Iterator[SimRequest]:
        """Those that wait, in no particular order."""
        ...


class FirstCome:
    """In order of arrival; preempted requests first."""

    __slots__ = ("_queue", "count")

    def __init__(self) -> None:
        self._queue: deque[SimRequest] = deque()
        self.count = 0

    def push(self, request: SimRequest) -> None:
        self._queue.append(request)
        self.count += 1

    def push_back(self, request: SimRequest) -> None:
        self._queue.appendleft(request)
        self.count += 1

    def head(self) -> SimRequest | None:
        queue = self._queue
        while queue:
            request = queue[0]
            if request.state == State.WAITING:
                return request
            queue.popleft()
        return None

    def pop(self) -> None:
        self._queue.popleft()
        self.count -= 1

    def __iter__(self) -> Iterator[SimRequest]:
        return (request for request in self._queue if request.state == State.WAITING)


class ByPriority:
    """Lower priority number first, then by arrival; a preempted request keeps its place."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, SimRequest]] = []
        self.count = 0

    def push(self, request: SimRequest) -> None:
        heappush(self._heap, (request.priority, request.arrival, request.order, request))
        self.count += 1

    push_back = push

    def head(self) -> SimRequest | None:
        heap = self._heap
        while heap:
            request = heap[0][3]
            if request.state == State.WAITING:
                return request
            heappop(heap)
        return None

    def pop(self) -> None:
        heappop(self._heap)
        self.count -= 1

    def __iter__(self) -> Iterator[SimRequest]:
        return (entry[3] for entry in self._heap if entry[3].state == State.WAITING)
