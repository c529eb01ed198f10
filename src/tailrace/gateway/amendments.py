"""Where late reports go, and the last of them in memory: what the admin port joins to the records that it shows.

A record and what is said of it later may come in either order: an engine's exporter can be faster than the desk at
which our records are made. So an amendment is kept whether its record is here or not, as long as there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from tailrace.measure.amend import amend
from tailrace.measure.lineage import share_out
from tailrace.model.amendment import Amendment
from tailrace.model.record import RequestRecord

KEPT_AMENDMENTS: Final = 16_384
"""About four for each record in memory; some 600 bytes each."""


class AmendmentSink(Protocol):
    """Where amendments go. Never waits."""

    def put(self, amendment: Amendment) -> bool:
        """False when it was dropped (and counted there)."""


class RecentAmendments:
    """The last amendments, by request and by trace; the oldest make room."""

    def __init__(self, kept: int = KEPT_AMENDMENTS) -> None:
        self._kept = kept
        self._all: deque[Amendment] = deque()
        self._by_request: dict[str, list[Amendment]] = {}
        self._by_trace: dict[str, list[Amendment]] = {}
        self.total = 0

    def __bool__(self) -> bool:
        return bool(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def put(self, amendment: Amendment) -> bool:
        """Take one in. Always true: what falls out at the other end is old."""
        if len(self._all) >= self._kept:
            self._forget(self._all.popleft())
        self._all.append(amendment)
        self.total += 1
        for index, key in self._places(amendment):
            index.setdefault(key, []).append(amendment)
        return True

    def amended(self, records: Sequence[RequestRecord], kin: Iterable[RequestRecord] = ()) -> list[RequestRecord]:
        """The records with everything that became known of them later.

        `kin`: all records that are here, those asked for among them; a trace that holds several requests is told from
        one that holds a single one by them.
        """
        mine = [self._about(record) for record in records]
        if not any(mine):
            return list(records)
        traces = {
            record.trace_id
            for record, some in zip(records, mine, strict=True)
            if any(not one.request_id for one in some)
        }
        known = list(records)
        if traces:
            here = {record.request_id for record in records}
            known += [one for one in kin if one.trace_id in traces and one.request_id not in here]
        about: dict[int, Amendment] = {id(one): one for some in mine for one in some}
        shares = share_out(known, about.values()).of
        return [amend(record, shares.get(place, ())) for place, record in enumerate(records)]

    def _about(self, record: RequestRecord) -> list[Amendment]:
        by_trace = self._by_trace.get(record.trace_id, []) if record.trace_id else []
        return [*self._by_request.get(record.request_id, []), *by_trace]

    def _forget(self, amendment: Amendment) -> None:
        for index, key in self._places(amendment):
            index[key].remove(amendment)
            if not index[key]:
                del index[key]

    def _places(self, amendment: Amendment) -> list[tuple[dict[str, list[Amendment]], str]]:
        out = []
        if amendment.request_id:
            out.append((self._by_request, amendment.request_id))
        if amendment.trace_id:
            # One that names its request too: others of its trace may lead to that request through it.
            out.append((self._by_trace, amendment.trace_id))
        return out


class AmendmentFork:
    """One sink before several: what is in memory is shown at once, what is stored stays."""

    def __init__(self, *sinks: AmendmentSink) -> None:
        self._sinks = list(sinks)

    def add(self, sink: AmendmentSink) -> None:
        """From now on to this one too."""
        self._sinks.append(sink)

    def put(self, amendment: Amendment) -> bool:
        """False when any of them dropped it."""
        taken = [sink.put(amendment) for sink in self._sinks]
        return all(taken)
