"""The exact response cache: answers by question, bounded in bytes and in time, the least recently used going first.

Knows nothing of HTTP: what an answer is, is its owner's business (`Answer`). Sans-IO; `now` is monotonic (ns).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

Answer = TypeVar("Answer")

ENTRY_OVERHEAD = 512
"""Bytes that an entry costs beside its answer: the key, the entry, its places in two tables."""


class CacheCounters(msgspec.Struct):
    """What became of the questions so far."""

    hits: int = 0
    misses: int = 0
    shared: int = 0
    """Answers taken from another request in flight."""
    semantic: int = 0
    """Hits by meaning."""
    stores: int = 0
    evictions: int = 0
    """Entries that went for want of room."""
    expired: int = 0
    too_large: int = 0
    """Whole answers above the bound of an entry."""
    not_whole: int = 0
    """Answers that were not kept: an error, a cut, a cancel, a degraded answer."""
    bypassed: int = 0
    """Requests that said `no-store`, or `no-cache` and so were not looked up."""


class Entry(msgspec.Struct, Generic[Answer]):
    """One answer."""

    answer: Answer
    size: int
    """Bytes that it counts for, its overhead included."""
    stored_at: int
    expires_at: int

    def age_ns(self, now: int) -> int:
        """How long ago the answer was whole."""
        return max(0, now - self.stored_at)


class ResponseCache(Generic[Answer]):
    """Question -> answer. `bound` bytes in all, `entry_bound` bytes an answer.

    `on_drop` hears of each key whose entry is gone, for whoever keeps an index beside.
    """

    def __init__(self, bound: int, entry_bound: int, *, on_drop: Callable[[bytes], None] | None = None) -> None:
        self.bound = bound
        self.entry_bound = entry_bound
        self.counters = CacheCounters()
        self.bytes = 0
        self.grace_ns = 0
        """How long an answer is kept past its time, for when `give_late` is on."""
        self.give_late = False
        """Answers past their time are given within the grace: somebody gives up their freshness under load."""
        self._entries: OrderedDict[bytes, Entry[Answer]] = OrderedDict()
        self._on_drop = on_drop

    def __len__(self) -> int:
        return len(self._entries)

    def look(self, key: bytes, now: int, *, max_age_ns: int | None = None) -> Entry[Answer] | None:
        """The answer, if it is here and young enough; it is now the most recently used. Counts nothing.

        `max_age_ns`: what this client takes at most (`cache-control: max-age`).
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at <= now and not (self.give_late and now < entry.expires_at + self.grace_ns):
            if entry.expires_at + self.grace_ns <= now:
                self._drop(key, entry)
                self.counters.expired += 1
            return None
        if max_age_ns is not None and entry.age_ns(now) > max_age_ns:
            return None
        self._entries.move_to_end(key)
        return entry

    def store(self, key: bytes, answer: Answer, size: int, now: int, ttl_ns: int) -> bool:
        """Keep a whole answer for `ttl_ns`; an older one to the same question goes. False where it is too large."""
        size += ENTRY_OVERHEAD
        if size > self.entry_bound or size > self.bound:
            self.counters.too_large += 1
            return False
        old = self._entries.get(key)
        if old is not None:
            self._drop(key, old)
        self._make_room(self.bound - size)
        self._entries[key] = Entry(answer, size, now, now + ttl_ns)
        self.bytes += size
        self.counters.stores += 1
        return True

    def resize(self, bound: int, entry_bound: int) -> None:
        """New bounds; what no longer fits goes."""
        self.bound, self.entry_bound = bound, entry_bound
        self._make_room(bound)

    def sweep(self, now: int, limit: int = 1000) -> int:
        """Drop what is too old, looking at the `limit` least recently used; returns how many went.

        An entry that is asked for is judged when it is asked for, so this only gives memory back.
        """
        old = []
        for seen, (key, entry) in enumerate(self._entries.items()):
            if seen >= limit:
                break
            if entry.expires_at + self.grace_ns <= now:
                old.append((key, entry))
        for key, entry in old:
            self._drop(key, entry)
        self.counters.expired += len(old)
        return len(old)

    def purge(self) -> int:
        """Forget everything; returns how many answers that were."""
        gone = list(self._entries.items())
        for key, entry in gone:
            self._drop(key, entry)
        return len(gone)

    def _make_room(self, bound: int) -> None:
        while self.bytes > bound:
            key = next(iter(self._entries))
            self._drop(key, self._entries[key])
            self.counters.evictions += 1

    def _drop(self, key: bytes, entry: Entry[Answer]) -> None:
        del self._entries[key]
        self.bytes -= entry.size
        if self._on_drop is not None:
            self._on_drop(key)
