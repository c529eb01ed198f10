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

Key = tuple[float, int, str, float]
"""(what is ordered by, arrival number, request id, work)."""


class WorkLine:
    """Keys, smallest first."""

    __slots__ = ("_buckets", "_full", "_lasts", "_sums")

    def __init__(self, full: int = FULL) -> None:
        """`full`: entries of a bucket before it is split."""
        self._full = full
        self._buckets: list[list[Key]] = []
        self._sums: list[float] = []
        self._lasts: list[Key] = []

    def add(self, key: Key) -> None:
        """Into its place."""
        lasts = self._lasts
        if not lasts:
            self._buckets.append([key])
            self._sums.append(key[3])
            lasts.append(key)
            return
        at = bisect_left(lasts, key)
        if at == len(lasts):
            at -= 1
            lasts[at] = key
        bucket = self._buckets[at]
        insort(bucket, key)
        self._sums[at] += key[3]
        if len(bucket) > self._full:
            self._split(at)

    def _split(self, at: int) -> None:
        bucket = self._buckets[at]
        half = len(bucket) // 2
        upper = bucket[half:]
        del bucket[half:]
        self._buckets.insert(at + 1, upper)
        self._lasts[at] = bucket[-1]
        self._lasts.insert(at + 1, upper[-1])
        # Added up anew: what rounding has left in the sum goes with it.
        self._sums[at] = sum(key[3] for key in bucket)
        self._sums.insert(at + 1, sum(key[3] for key in upper))

    def remove(self, key: Key) -> None:
        """Out of its place; `KeyError` where it has none."""
        at = bisect_left(self._lasts, key)
        bucket = self._buckets[at] if at < len(self._lasts) else []
        within = bisect_left(bucket, key)
        if within == len(bucket) or bucket[within] != key:
            raise KeyError(key)
        del bucket[within]
        self._sums[at] -= key[3]
        if bucket:
            self._lasts[at] = bucket[-1]
        else:
            del self._buckets[at], self._sums[at], self._lasts[at]

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
        work += self._sums[at] * within / len(bucket)
        return count + within, max(0.0, work)
