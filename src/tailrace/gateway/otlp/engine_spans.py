"""The taker of what engines and services behind us report: spans become amendments, and an engine's cold start."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from tailrace.engines.spans.assembly import SpanAssembly
from tailrace.engines.spans.startup import ColdStart
from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.history import Address
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.amendment import Amendment
from tailrace.model.span import Span
from tailrace.model.thresholds import S

Holds = Callable[[Sequence[Address]], Awaitable[Sequence[bool]]]
"""Whether the record that each address speaks of is known."""
_MOST_UNSURE: Final = 4096
_PATIENCE_NS: Final = 2 * S


class EngineSpans:
    """A `SpanTaker` before an `AmendmentSink`."""

    def __init__(self, sink: AmendmentSink) -> None:
        self._sink = sink
        self._assembly = SpanAssembly()
        self.kept = 0
        self.dropped = 0
        """Amendments that the sink had no room for."""
        self.joined = 0
        self.unjoined = 0
        """Amendments whose record was not found, soon after they came, among those in memory."""
        self._unsure: deque[Amendment] = deque(maxlen=_MOST_UNSURE)
        self.earlier: list[ColdStart] = []
        """Starts that another life of this process has seen."""

    def take(self, spans: Sequence[Span], received_unix_ns: int) -> int:
        """See `SpanTaker`."""
        amendments, understood = self._assembly.take(spans, received_unix_ns)
        self._put(amendments)
        return understood

    def tick(self, now_unix_ns: int) -> None:
        """Once a second or so."""
        self._put(self._assembly.tick(now_unix_ns))

    def _put(self, amendments: Sequence[Amendment]) -> None:
        for amendment in amendments:
            if self._sink.put(amendment):
                self.kept += 1
                self._unsure.append(amendment)
            else:
                self.dropped += 1

    async def look_for_records(self, holds: Holds, now_unix_ns: int) -> None:
        """Find out whose records the last amendments belong to; a record may be a moment later than its spans."""
        looked_for = []
        while self._unsure and now_unix_ns - self._unsure[0].received_unix_ns >= _PATIENCE_NS:
            looked_for.append(self._unsure.popleft())
        if looked_for:
            found = await holds([(one.request_id, one.trace_id, one.parent_span_id) for one in looked_for])
            self.joined += sum(found)
            self.unjoined += len(found) - sum(found)

    @property
    def cold_starts(self) -> list[ColdStart]:
        """The last starts of engines, oldest first."""
        here = self._assembly.cold_starts.all()
        began = {start.started_unix_ns for start in here}
        return [start for start in self.earlier if start.started_unix_ns not in began] + here

    @property
    def counts(self) -> dict[str, int]:
        """What became of the spans that an engine's request consists of."""
        tally = self._assembly.tally
        return {
            "amendments": self.kept,
            "amendments_dropped": self.dropped,
            "joined": self.joined,
            "unjoined": self.unjoined,
            "orphaned": tally.orphaned,
            "unaddressed": tally.unaddressed,
            "waiting": self._assembly.waiting,
        }

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        tally = self._assembly.tally
        names = sorted(tally.not_understood.items(), key=lambda item: -item[1])
        return {
            **self.counts,
            "startup": tally.startup,
            "not_understood_by_name": dict(names),
        }


def cold_start_view(starts: Sequence[ColdStart]) -> dict[str, Any]:
    """The last start, and those before it."""
    if not starts:
        return {"cold_start_ms": None, "cold_starts": []}
    whole = [start for start in starts if start.complete]
    return {
        "cold_start_ms": whole[-1].total_ns / 1e6 if whole else None,
        "cold_starts": [start.view() for start in starts],
    }


def encode_starts(starts: Sequence[ColdStart]) -> bytes:
    """As the file of a data directory keeps them."""
    return msgspec.json.encode(list(starts))


def decode_starts(text: bytes) -> list[ColdStart]:
    """What `encode_starts` made; nothing where it is damaged."""
    try:
        return msgspec.json.decode(text, type=list[ColdStart])
    except UNREADABLE:
        return []
