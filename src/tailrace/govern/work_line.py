"""A line of requests in the order of a key, which knows at once how much is ahead of any key.

A sorted list in buckets: at 10,000 entries a bucket's insertion moves some hundred references, and the sum of the
buckets before it is some dozen additions. A heap knows only its head, and marks left behind by those who leave make it
grow; a place in the queue could then only be found by looking at everybody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

FULL: Final = 256
"""Entries of a bucket before it is split: about the square root of the longest queues."""

Key = tuple[float, int, str]
"""(what is ordered by, arrival number, request id)."""


class WorkLine:
    """Keys and their work, smallest first."""

    __slots__ = ("_buckets", "_full", "_lasts", "_sums", "_works")

    def __init__(self, full: int = FULL) -> None:
        """`full`: entries of a bucket before it is split."""
        self._full = full
        self._buckets: list[list[Key]] = []
        self._works: list[dict[Key, float]] = []
        self._sums: list[float] = []
        self._lasts: list[Key] = []

    def add(self, key: Key, work: float) -> None:
        """Into its place."""
        if not self._buckets:
            self._buckets.append([key])
            self._works.append({key: work})
            self._sums.append(work)
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        bucket = self._buckets[at]
        insort(bucket, key)
        self._works[at][key] = work
        self._sums[at] += work
        self._lasts[at] = bucket[-1]
        if len(bucket) > self._full:
            self._split(at)

    def _split(self, at: int) -> None:
        bucket, works = self._buckets[at], self._works[at]
        half = len(bucket) // 2
        upper = bucket[half:]
        del bucket[half:]
        moved = {key: works.pop(key) for key in upper}
        self._buckets.insert(at + 1, upper)
        self._works.insert(at + 1, moved)
        self._lasts[at] = bucket[-1]
        self._lasts.insert(at + 1, upper[-1])
        # Added up anew: what rounding has left in the sum goes with it.
        self._sums[at] = sum(works.values())
        self._sums.insert(at + 1, sum(moved.values()))

    def remove(self, key: Key) -> None:
        """Out of its place; `KeyError` where it has none."""
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            raise KeyError(key)
        bucket = self._buckets[at]
        self._sums[at] -= self._works[at].pop(key)  # its KeyError is ours
        del bucket[bisect_left(bucket, key)]
        if bucket:
            self._lasts[at] = bucket[-1]
        else:
            del self._buckets[at], self._works[at], self._sums[at], self._lasts[at]

    def head(self) -> Key | None:
        """The smallest."""
        return self._buckets[0][0] if self._buckets else None

    def ahead(self, key: Key) -> tuple[int, float]:
        """(how many, how much work) is before `key`, which need not be here itself."""
        at = bisect_left(self._lasts, key)
        count = sum(map(len, self._buckets[:at]))
        work = sum(self._sums[:at])
        if at == len(self._lasts):
            return count, max(0.0, work)
        bucket = self._buckets[at]
        within = bisect_left(bucket, key)
        # By the mean of the bucket: its 256 neighbours in the order are much alike, and adding them up one by one
        # would be most of the cost.
        return count + within, max(0.0, work + self._sums[at] * within / len(bucket))
