"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from tailrace.simulate.request import SimRequest, State


class WaitingQueue(ABC):
    """Requests that hold no KV blocks. Removal is lazy: a request that is no longer `WAITING` is skipped."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    @abstractmethod
    def push(self, request: SimRequest) -> None:
        """A new arrival."""

    @abstractmethod
    def push_back(self, request: SimRequest) -> None:
        """A preempted request: before everybody else in first-come order."""

    @abstractmethod
    def head(self) -> SimRequest | None:
        """The next to be admitted."""

    @abstractmethod
    def pop(self) -> None:
        """Remove the head."""

    @abstractmethod
    def __iter__(self) -> Iterator[SimRequest]:
        """Those that wait, in no particular order."""


class FirstCome(WaitingQueue):
    """In order of arrival; preempted requests first."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[SimRequest] = deque()

    def push(self, request: SimRequest) -> None:
        """A new arrival, behind the others."""
        self._queue.append(request)
        self.count += 1

    def push_back(self, request: SimRequest) -> None:
        """A preempted request, before the others."""
        self._queue.appendleft(request)
        self.count += 1

    def head(self) -> SimRequest | None:
        """The earliest."""
        queue = self._queue
        while queue:
            request = queue[0]
            if request.state == State.WAITING:
                return request
            queue.popleft()
        return None

    def pop(self) -> None:
        """Remove the head."""
        self._queue.popleft()
        self.count -= 1

    def __iter__(self) -> Iterator[SimRequest]:
        return (request for request in self._queue if request.state == State.WAITING)


class ByPriority(WaitingQueue):
    """Lower priority number first, then by arrival; a preempted request keeps its place."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, int, SimRequest]] = []

    def push(self, request: SimRequest) -> None:
        """A new arrival or a preempted request, at its place by priority."""
        heappush(self._heap, (request.priority, request.arrival, request.order, request))
        self.count += 1

    def push_back(self, request: SimRequest) -> None:
        """A preempted request keeps its place."""
        self.push(request)

    def head(self) -> SimRequest | None:
        """The most urgent."""
        heap = self._heap
        while heap:
            request = heap[0][3]
            if request.state == State.WAITING:
                return request
            heappop(heap)
        return None

    def pop(self) -> None:
        """Remove the head."""
        heappop(self._heap)
        self.count -= 1

    def __iter__(self) -> Iterator[SimRequest]:
        return (entry[3] for entry in self._heap if entry[3].state == State.WAITING)
