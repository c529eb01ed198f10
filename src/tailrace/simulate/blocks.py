"""KV blocks: how many are free, and which freed ones still hold what their prefix can hit.

A freed block stays hittable until it is handed out again, in the order of freeing (LRU); the blocks of a request are
freed tail first. So the free list is a queue, and what a request (or a shared unit of prompt) left in it is one run
of positions in that queue, its prefix last. Two running counters, *freed* and *taken*, say how much of a run is still
there: every operation is O(1) arithmetic, whatever the number of blocks. Blocks that are hit leave the queue from its
middle; they become holes, over which the *taken* counter jumps.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Unit:
    """A shared stretch of prompt under one hash: several consecutive KV blocks that are hit from their start on.

    `count` blocks are allocated, the first `full` of them are computed and hashed. With `refs` 0 the unit lies in the
    free queue from position `position` on, tail first.
    """

    __slots__ = ("count", "full", "key", "position", "refs", "size")

    def __init__(self, key: int, size: int) -> None:
        self.key = key
        self.size = size
        self.count = 0
        self.full = 0
        self.refs = 1
        self.position = 0


class BlockPool:
    """Counts of blocks, and the free queue as arithmetic."""

    __slots__ = ("_sweep_at", "free", "freed", "holes", "taken", "total", "units")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.freed = total
        """Position after the queue's last block: blocks ever put into the queue."""
        self.taken = 0
        """Position of the queue's first block."""
        self.holes: list[tuple[int, int]] = []
        """Heap of (position, length) of blocks that left the queue from its middle."""
        self.units: dict[int, Unit] = {}
        """By hash; units whose blocks were all handed out again are swept now and then."""
        self._sweep_at = 1024

    def take(self, count: int) -> None:
        """Hand out `count` blocks from the head of the queue. The caller has checked `free`."""
        self.free -= count
        head = self.taken + count
        holes = self.holes
        while holes and holes[0][0] < head:
            head += heappop(holes)[1]
        self.taken = head

    def put(self, count: int) -> int:
        """Put `count` blocks at the queue's tail; returns the position of the first."""
        position = self.freed
        self.freed = position + count
        self.free += count
        return position

    def left(self, position: int, count: int) -> int:
        """How many blocks of the run put at `position` have not been handed out since."""
        gone = self.taken - position
        if gone <= 0:
            return count
        return count - gone if gone < count else 0

    def recall(self, position: int, count: int, wanted: int) -> None:
        """Take the prefix (`wanted` blocks) of the run of `count` blocks at `position` out of the queue's middle."""
        if wanted:
            self.free -= wanted
            heappush(self.holes, (position + count - wanted, wanted))

    # -- shared units

    def hittable(self, unit: Unit) -> int:
        """Blocks of the unit that a request may hit now, from its start."""
        if unit.refs:
            return unit.full
        return min(self.left(unit.position, unit.count), unit.full)

    def revive(self, unit: Unit, wanted: int) -> None:
        """Take a unit that nobody holds out of the queue, with its first `wanted` blocks; the caller now owns it."""
        self.recall(unit.position, unit.count, wanted)
        unit.count = wanted
        unit.full = wanted
        unit.refs = 1

    def release(self, unit: Unit) -> None:
        """Give up one hold; the last one puts the unit's blocks into the queue."""
        unit.refs -= 1
        if unit.refs == 0:
            unit.position = self.put(unit.count)
            if len(self.units) > self._sweep_at:
                self._forget_evicted()

    def _forget_evicted(self) -> None:
        taken = self.taken
        self.units = {key: unit for key, unit in self.units.items() if unit.refs or unit.position + unit.count > taken}
        # Doubling keeps the cost of sweeping constant a unit.
        self._sweep_at = max(1024, 2 * len(self.units))
