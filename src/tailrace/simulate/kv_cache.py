"""The KV blocks of requests: what a prompt hits, what it holds, what it leaves behind.

A request's leading blocks may belong to shared units (stretches of prompt that other requests hash alike); the rest
is its own. What it leaves in the free queue when it is preempted can be hit again by itself.
"""

from __future__ import annotations

from tailrace.simulate.blocks import BlockPool, Unit
from tailrace.simulate.request import SimRequest


class KvCache(BlockPool):
    """A block pool that knows requests. `sharing` off: nothing is ever hit."""

    __slots__ = ("block_size", "sharing")

    def __init__(self, total: int, block_size: int, *, sharing: bool) -> None:
        super().__init__(total)
        self.block_size = block_size
        self.sharing = sharing

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0..1; cached blocks of nobody count as free."""
        return 1 - self.free / self.total

    def hits(self, request: SimRequest, total: int) -> tuple[int, int]:
        """Blocks that the request, `total` tokens long, would hit now, and how many of those lie in the free queue.

        At least the last token is always computed.
        """
        if not self.sharing:
            return 0, 0
        limit = (total - 1) // self.block_size
        hits = queued = 0
        for key in self._shareable(request):
            unit = self.units.get(key)
            found = min(self.hittable(unit), limit - hits) if unit is not None else 0
            if unit is None or not found:
                return hits, queued
            hits += found
            if not unit.refs:
                queued += found
            if found < unit.size:
                return hits, queued
        if request.run_count:
            found = min(self.left(request.run_at, request.run_count), request.run_full, limit - hits)
            hits += found
            queued += found
        return hits, queued

    def hold(self, request: SimRequest, hits: int) -> None:
        """Take hold of `hits` blocks, and lay out which units the request will compute and share."""
        private = 0
        for key in self._shareable(request) if self.sharing else ():
            unit = self.units.get(key)
            found = min(self.hittable(unit), hits) if unit is not None else 0
            if unit is not None and found:
                hits -= found
                request.units.append(unit)
                if unit.refs:
                    unit.refs += 1
                    private += found
                    if found < unit.size:
                        break
                    continue
                self.revive(unit, found)
            elif unit is not None and (unit.refs or self.hittable(unit)):
                # Somebody else's copy stays the shared one; what we compute from here on is ours alone.
                break
            else:
                unit = self.units[key] = Unit(key, request.prefix_tokens // self.block_size)
                request.units.append(unit)
            request.owns.append((unit, private))
            private += unit.size
        request.private_from = private
        if hits:
            self.recall(request.run_at, request.run_count, hits)

    def cover(self, request: SimRequest, tokens: int) -> None:
        """The blocks of the first `tokens` tokens are allocated and, where full, hashed."""
        held = (tokens + self.block_size - 1) // self.block_size
        full = tokens // self.block_size
        for unit, before in request.owns:
            unit.count = min(max(held - before, unit.count), unit.size)
            unit.full = min(max(full - before, unit.full), unit.size)

    def give_back(self, request: SimRequest, computed: int, allocated: int) -> None:
        """Free all blocks, tail first: `allocated` tokens have one, `computed` of them are valid."""
        size = self.block_size
        own = (allocated + size - 1) // size - request.private_from
        if own > 0:
            request.run_at = self.put(own)
            request.run_count = own
            request.run_full = max(computed // size - request.private_from, 0)
        if request.units:
            for unit, before in request.owns:
                unit.full = min(unit.full, max(computed // size - before, 0))
            for unit in reversed(request.units):
                self.release(unit)
            request.units.clear()
            request.owns.clear()
        request.private_from = 0

    def _shareable(self, request: SimRequest) -> tuple[int, ...]:
        """The hashes of the whole stretches of prompt that other requests may share."""
        if not request.prefix or request.prefix_tokens % self.block_size:
            return ()
        return request.prefix[: request.prompt // request.prefix_tokens]
