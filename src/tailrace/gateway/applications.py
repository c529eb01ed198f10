"""Requests as services before the gateway report them: their spans, assembled, are records of a vantage of their own.

They go where records go, and into no number of the gateway's: whoever asks for records gets the gateway's, unless it
asks for these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tailrace.gateway.history import History
from tailrace.gateway.record_desk import RecordSink
from tailrace.measure.application import COUNT, VANTAGE, application_record, is_whole, stage_name
from tailrace.model.record import RequestRecord
from tailrace.model.span import Span
from tailrace.model.thresholds import S

GATEWAY: Final = "gateway"
VANTAGES: Final = (GATEWAY, VANTAGE)
"""What a reader of records may ask for."""
SETTLE_NS: Final = 2 * S
"""How long a request waits for stages that come in another post than its own span, where it does not say how many."""
HOLD_NS: Final = 180 * S
"""How long a stage waits for its request's own span, which ends last and may be sent last."""
MOST_SPANS: Final = 32_768
"""How many spans, with what links them, are here at once."""
_MOST_STEPS: Final = 64


class ApplicationRecords:
    """The last of these records in memory, on their way to the store."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.history = History()
        self.records = 0
        self.dropped = 0
        """Records that the sink had no room for."""

    def put(self, record: RequestRecord) -> None:
        """Take one. Never waits."""
        self.records += 1
        if not self._sink.put(record):
            self.dropped += 1
        self.history.add(record)


class _Whole(msgspec.Struct):
    """A request whose own span is here."""

    span: Span
    due: int


class _Trace(msgspec.Struct):
    """The spans of one trace."""

    touched_ns: int
    parents: dict[str, str] = {}
    stages: dict[str, Span] = {}
    whole: dict[str, _Whole] = {}
    done: set[str] = set()
    """Requests that have their record: an exporter that got no answer sends them again."""


class ApplicationSpans:
    """A `SpanTaker` before `ApplicationRecords`: spans in, in any order and any number of posts, records out."""

    def __init__(self, records: ApplicationRecords) -> None:
        self.records = records
        self.reports_lost: dict[str, int] = {}
        """Service -> requests that it could not report, as it last said."""
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        """The one touched last is last."""
        self._count = 0
        self._unsettled: set[str] = set()

    def take(self, spans: Sequence[Span], received_unix_ns: int) -> int:
        """See `SpanTaker`. Stages are counted by whoever reads those of services behind us."""
        understood = 0
        touched: dict[str, _Trace] = {}
        for span in spans:
            trace = self._traces.get(span.trace_id)
            if trace is None:
                trace = self._traces[span.trace_id] = _Trace(received_unix_ns)
            self._traces.move_to_end(span.trace_id)
            trace.touched_ns = received_unix_ns
            self._count += span.span_id not in trace.parents
            trace.parents[span.span_id] = span.parent_span_id
            if is_whole(span):
                understood += 1
                if span.span_id in trace.done:
                    continue
                trace.whole[span.span_id] = _Whole(span, received_unix_ns + SETTLE_NS)
                self._note_losses(span)
            elif stage_name(span):
                trace.stages[span.span_id] = span
            touched[span.trace_id] = trace
        for trace_id, trace in touched.items():
            if trace.whole:
                self._settle(trace_id, trace, received_unix_ns)
        self._expire(received_unix_ns)
        return understood

    def tick(self, now_unix_ns: int) -> None:
        """Once a second or so: make the records that need not wait any longer."""
        for trace_id in list(self._unsettled):
            self._settle(trace_id, self._traces[trace_id], now_unix_ns)
        self._expire(now_unix_ns)

    def close(self) -> None:
        """Make the records of all that is here."""
        for trace_id in list(self._unsettled):
            self._settle(trace_id, self._traces[trace_id], 1 << 62)

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        return {
            "records": self.records.records,
            "records_dropped": self.records.dropped,
            "waiting": self._count,
            "reports_lost": dict(self.reports_lost),
        }

    def _note_losses(self, span: Span) -> None:
        lost = span.resource.get("tailrace.reports_dropped")
        if isinstance(lost, int) and (service := str(span.resource.get("service.name", ""))[:80]):
            self.reports_lost[service] = lost

    def _settle(self, trace_id: str, trace: _Trace, now: int) -> None:
        """Make the records whose stages are all here, or have had their time."""
        below: dict[str, list[Span]] = {span_id: [] for span_id in trace.whole}
        for span_id, span in trace.stages.items():
            top = self._top(trace, span_id)
            if top:
                below[top].append(span)
        for span_id, stages in below.items():
            whole = trace.whole[span_id]
            said = whole.span.attributes.get(COUNT)
            if now < whole.due and not (isinstance(said, int) and len(stages) >= said):
                continue
            del trace.whole[span_id]
            trace.done.add(span_id)
            for span in stages:
                # Their links stay, so that what comes late still finds its way and is not taken for somebody else's.
                del trace.stages[span.span_id]
            self.records.put(application_record(whole.span, stages))
        if trace.whole:
            self._unsettled.add(trace_id)
        else:
            self._unsettled.discard(trace_id)

    @staticmethod
    def _top(trace: _Trace, span_id: str) -> str:
        """The request that a stage lies below; empty where it is not here."""
        for _ in range(_MOST_STEPS):
            span_id = trace.parents.get(span_id, "")
            if not span_id or span_id in trace.whole:
                return span_id
        return ""

    def _expire(self, now: int) -> None:
        while self._traces:
            trace_id, trace = next(iter(self._traces.items()))
            if self._count <= MOST_SPANS and now - trace.touched_ns < HOLD_NS:
                break
            if trace.whole:
                self._settle(trace_id, trace, 1 << 62)
            self._count -= len(trace.parents)
            del self._traces[trace_id]
