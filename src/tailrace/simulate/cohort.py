"""The decoding requests: they advance together, so they are described by sums instead of being touched one by one.

After `step` steps of the engine, a decoding request has computed `step + base` tokens. The sum of contexts is then
`count * step + bases`, the blocks that a step needs are counted by phase, and the next request to finish is the top
of a heap: a step costs O(1) however many requests decode.
"""

from __future__ import annotations

from heapq import heappop, heappush

from tailrace.simulate.request import SimRequest, State


class Cohort:
    """Requests in state `DECODE`."""

    __slots__ = ("_finishing", "bases", "count", "grow", "size")

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.count = 0
        self.bases = 0
        self.grow = [0] * block_size
        """By phase: how many requests need a block in a step with `step % block_size` equal to it."""
        self._finishing: list[tuple[int, int, SimRequest]] = []
        """Heap of (finish_at, seq, request); entries of requests that were preempted, starved or left are stale."""

    def context(self, step: int) -> int:
        """Tokens that all requests together attend to in the step after `step` steps, the new ones included."""
        return self.count * (step + 1) + self.bases

    def growth(self, step: int) -> int:
        """Blocks that the step after `step` steps needs."""
        return self.grow[step % self.size]

    def join(self, request: SimRequest, step: int) -> bool:
        """A request's prompt was complete with step `step`, its token is out. True: that was its last one."""
        base = request.computed - step
        request.base = base
        request.state = State.DECODE
        request.run_from = step
        request.finish_at = step + request.output - request.generated
        self.count += 1
        self.bases += base
        self.grow[-base % self.size] += 1
        if request.finish_at == step:
            return True
        heappush(self._finishing, (request.finish_at, request.seq, request))
        return False

    def leave(self, request: SimRequest, step: int) -> int:
        """A request leaves after `step` steps; returns the tokens it has computed, and settles what it generated."""
        self.count -= 1
        self.bases -= request.base
        self.grow[-request.base % self.size] -= 1
        if request.run_from <= step:
            request.spans.append((request.run_from, step))
        computed = step + request.base
        request.generated = computed - request.prompt + 1
        return computed

    def starve(self, request: SimRequest, step: int) -> None:
        """A request got nothing in step number `step`: the others have moved on without it."""
        self.grow[-request.base % self.size] -= 1
        request.base -= 1
        self.bases -= 1
        self.grow[-request.base % self.size] += 1
        request.finish_at += 1
        heappush(self._finishing, (request.finish_at, request.seq, request))
        if request.run_from < step:
            request.spans.append((request.run_from, step - 1))
        request.run_from = step + 1

    def next_finish(self) -> int:
        """The count of steps after which the next request finishes; there must be one."""
        heap = self._finishing
        while not _is_live(heap[0]):
            heappop(heap)
        return heap[0][0]

    def finished(self, step: int) -> list[SimRequest]:
        """Requests whose last token came out with step `step`; they are still in the cohort."""
        heap = self._finishing
        out: list[SimRequest] = []
        while heap and heap[0][0] <= step:
            entry = heappop(heap)
            if _is_live(entry):
                out.append(entry[2])
        return out


def _is_live(entry: tuple[int, int, SimRequest]) -> bool:
    finish_at, seq, request = entry
    return request.seq == seq and request.finish_at == finish_at and request.state == State.DECODE
