"""The last records in memory: what the admin port answers from without touching the store."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Final

import msgspec

from tailrace.gateway.amendments import RecentAmendments
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import Timeline

Address = tuple[str, str, str]
"""Whose request something is: our id, or, where that is empty, its trace and our span."""
KEPT_RECORDS: Final = 4096
KEPT_TIMELINES: Final = 512
"""A timeline of 2,048 events is about 150 kB of Python integers: 512 of them stay under 80 MB at the very worst."""
FOLLOWER_BACKLOG: Final = 1000
"""Records that may wait for one reader of `/events`; a slower reader misses some, and is told how many."""


class Follower:
    """One reader of the live record stream."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[RequestRecord] = asyncio.Queue(FOLLOWER_BACKLOG)
        self.missed = 0

    def offer(self, record: RequestRecord) -> None:
        """Never waits."""
        try:
            self.queue.put_nowait(record)
        except asyncio.QueueFull:
            self.missed += 1


class Followers:
    """Those who want every record from now on."""

    def __init__(self) -> None:
        self._all: set[Follower] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def offer(self, record: RequestRecord) -> None:
        """Hand it to everybody."""
        for follower in self._all:
            follower.offer(record)

    def missed(self, count: int) -> None:
        """Records were lost on their way here."""
        for follower in self._all:
            follower.missed += count

    @contextmanager
    def follow(self) -> Iterator[Follower]:
        """Receive every record from now on."""
        follower = Follower()
        self._all.add(follower)
        try:
            yield follower
        finally:
            self._all.discard(follower)


class History:
    """A ring of finished requests, newest last, and those who follow it live.

    Whoever reads it sees the records with their amendments; those who follow it, with the amendments that came first.
    """

    def __init__(self) -> None:
        self.amendments = RecentAmendments()
        self._records: deque[RequestRecord] = deque(maxlen=KEPT_RECORDS)
        self._by_id: dict[str, RequestRecord] = {}
        self._timelines: OrderedDict[str, Timeline] = OrderedDict()
        self._followers = Followers()
        self.total = 0

    def add(self, record: RequestRecord) -> None:
        """Take one finished request."""
        if self._followers:
            self._followers.offer(self._amended([record])[0] if self.amendments else record)
        if record.timeline is not None:
            self._timelines[record.request_id] = record.timeline
            if len(self._timelines) > KEPT_TIMELINES:
                self._timelines.popitem(last=False)
            record = msgspec.structs.replace(record, timeline=None)
        if len(self._records) == KEPT_RECORDS:
            oldest = self._records[0]
            self._by_id.pop(oldest.request_id, None)
        self._records.append(record)
        self._by_id[record.request_id] = record
        self.total += 1

    def get(self, request_id: str) -> RequestRecord | None:
        """One record by our id or the client's, with its timeline where that is still here."""
        record = self._by_id.get(request_id)
        if record is None:
            record = next((r for r in reversed(self._records) if r.client_request_id == request_id), None)
        return None if record is None else self._whole(self._amended([record])[0])

    def since(self, unix_ns: int | None, limit: int) -> list[RequestRecord]:
        """The newest `limit` records that began after `unix_ns`, oldest first."""
        newest_first = (r for r in reversed(self._records) if unix_ns is None or r.start_unix_ns > unix_ns)
        found = list(islice(newest_first, limit))[::-1]
        return [self._whole(record) for record in self._amended(found)]

    def reaches_back_to(self, unix_ns: int) -> bool:
        """Whether nothing that began after `unix_ns` has been pushed out of the ring."""
        return self.total <= len(self._records) or (bool(self._records) and self._records[0].start_unix_ns <= unix_ns)

    def holds(self, addresses: Sequence[Address]) -> list[bool]:
        """Whether the record that each address speaks of is in memory."""
        spans = {(record.trace_id, record.span_id) for record in self._records} if addresses else set()
        return [
            request_id in self._by_id if request_id else (trace_id, span_id) in spans
            for request_id, trace_id, span_id in addresses
        ]

    def follow(self) -> AbstractContextManager[Follower]:
        """Receive every record from now on."""
        return self._followers.follow()

    def _amended(self, records: list[RequestRecord]) -> list[RequestRecord]:
        return self.amendments.amended(records, self._records) if self.amendments else records

    def _whole(self, record: RequestRecord) -> RequestRecord:
        timeline = self._timelines.get(record.request_id)
        return record if timeline is None else msgspec.structs.replace(record, timeline=timeline)
