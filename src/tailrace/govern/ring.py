"""A consistent hash ring: a key meets the members always in the same order; a member that leaves moves only its own.

Keys of whoever is absent go to the next on the ring; all others stay where they are (Karger et al., 1997).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

POINTS: Final = 160
"""Points of a member of weight 1: the shares of equal members then differ by some 8 % (one over the root of it)."""


def key_of(data: bytes) -> int:
    """64 bits that depend on `data` alone: the same in every process, unlike `hash`."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class Ring:
    """Members by name. `walk` is a key's order of preference."""

    __slots__ = ("_names", "_owners", "_points")

    def __init__(self, weights: Sequence[tuple[str, float]]) -> None:
        """`weights`: name and weight; a member of weight 2 owns twice the keys of one of weight 1."""
        self._names = [name for name, _ in weights]
        points = sorted(
            (key_of(b"%b#%d" % (name.encode(), number)), index)
            for index, (name, weight) in enumerate(weights)
            for number in range(max(1, round(POINTS * weight)))
        )
        self._points = [point for point, _ in points]
        self._owners = [owner for _, owner in points]

    def walk(self, key: int) -> Iterator[str]:
        """Every member once, the nearest behind `key` first."""
        owners, count = self._owners, len(self._owners)
        start = bisect_right(self._points, key)
        seen: set[int] = set()
        for step in range(count):
            owner = owners[(start + step) % count]
            if owner not in seen:
                seen.add(owner)
                yield self._names[owner]
                if len(seen) == len(self._names):
                    return
