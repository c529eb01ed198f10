"""From spans as they come to amendments: the spans of one request are read together, whichever posts they came in.

A request's first span ends last, and its children may have been sent long before it (a stream of minutes), or after
it (another process of the engine). So spans wait here for their request's first one, bounded in number and time. What
was read is read again when more comes, and given again where it says more: whoever joins amendments takes of two that
say the same thing the first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tailrace.engines.spans.reader import SpanFacts, SpanReader
from tailrace.engines.spans.service import REQUEST, read_stages, stage_of
from tailrace.engines.spans.sglang import SglangSpans
from tailrace.engines.spans.startup import ColdStarts
from tailrace.engines.spans.triton import TritonSpans
from tailrace.engines.spans.vllm import VllmSpans
from tailrace.model.amendment import Amendment
from tailrace.model.span import Span
from tailrace.model.thresholds import S

READERS: Final[tuple[SpanReader, ...]] = (VllmSpans(), SglangSpans(), TritonSpans())
HOLD_NS: Final = 180 * S
"""How long a span waits for its request's first one: the longest request by default (120 s), and its exporter."""
MOST_SPANS: Final = 16_384
"""How many spans are here at once, with what links them: some 20 MB at the very worst."""
MOST_OF_TRACE: Final = 1024
"""Of one trace: each post reads all that is here of it. Above, the older half goes."""
SETTLE_NS: Final = 2 * S
"""How long after a service's entry others of its spans may come: exporters cut what they send into pieces."""
_SERVER: Final = 2
_MOST_STEPS: Final = 64
"""From a span to the first one of its request; a longer chain is a circle."""
_MOST_NAMES: Final = 100
_NAME_LENGTH: Final = 80


class Tally(msgspec.Struct):
    """What became of spans; of all of them, since the start."""

    understood: int = 0
    startup: int = 0
    not_understood: dict[str, int] = {}
    """By name, of at most a hundred; the rest under `other names`."""
    orphaned: int = 0
    """Given up: their request's first span never came."""
    unaddressed: int = 0
    """Requests of an engine that carry neither our id nor a parent: they did not come through a gateway."""
    amendments: int = 0

    def unknown(self, name: str) -> None:
        """One more that nobody understands."""
        name = name[:_NAME_LENGTH]
        if name not in self.not_understood and len(self.not_understood) >= _MOST_NAMES:
            name = "other names"
        self.not_understood[name] = self.not_understood.get(name, 0) + 1


class _Held(msgspec.Struct):
    """A span here. Of one that nobody reads, only what links others through it."""

    parent: str
    kind: int
    reader: SpanReader | None = None
    span: Span | None = None
    stage: bool = False


class _Trace(msgspec.Struct):
    """The spans of one trace."""

    touched_ns: int
    held: dict[str, _Held] = {}
    given: dict[str, Amendment] = {}
    """First span -> the last amendment that was made of what lies below it."""
    due: dict[str, int] = {}
    """First span -> when what belongs to it should be here."""


class SpanAssembly:
    """`take` spans, get amendments. One for all engines and services."""

    def __init__(self, *, most_spans: int = MOST_SPANS) -> None:
        self.cold_starts = ColdStarts()
        self.tally = Tally()
        self._most_spans = most_spans
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        """The one touched last is last."""
        self._count = 0
        self._unsettled: dict[str, _Trace] = {}
        """Traces whose first span is here, and which wait for the rest."""

    @property
    def waiting(self) -> int:
        """Spans here, read or not."""
        return self._count

    def take(self, spans: Sequence[Span], received_unix_ns: int) -> tuple[list[Amendment], int]:
        """The amendments that these spans complete, and how many of the spans were understood."""
        tally = self.tally
        touched: dict[str, _Trace] = {}
        understood = 0
        for span in spans:
            if self.cold_starts.owns(span):
                self.cold_starts.take((span,))
                tally.startup += 1
                understood += 1
                continue
            reader = next((one for one in READERS if one.owns(span)), None)
            stage = reader is None and bool(stage_of(span))
            if reader is not None or stage:
                understood += 1
            elif REQUEST not in span.attributes:
                tally.unknown(span.name)
            self._hold(span, reader, received_unix_ns, touched, stage=stage)
        tally.understood += understood
        amendments: list[Amendment] = []
        for trace_id, trace in touched.items():
            amendments += self._read(trace_id, trace, received_unix_ns)
            self._trim(trace)
        tally.amendments += len(amendments)
        return amendments + self.tick(received_unix_ns), understood

    def tick(self, now_unix_ns: int) -> list[Amendment]:
        """What time brings: the amendments that need not wait any longer. Call it once a second or so."""
        unsettled, self._unsettled = self._unsettled, {}
        out = [one for trace_id, trace in unsettled.items() for one in self._read(trace_id, trace, now_unix_ns)]
        out += self._expire(now_unix_ns)
        self.tally.amendments += len(out)
        return out

    # -- holding

    def _hold(
        self, span: Span, reader: SpanReader | None, now: int, touched: dict[str, _Trace], *, stage: bool
    ) -> None:
        trace = self._traces.get(span.trace_id)
        if trace is None:
            trace = self._traces[span.trace_id] = _Trace(now)
        self._traces.move_to_end(span.trace_id)
        trace.touched_ns = now
        if span.span_id not in trace.held:
            self._count += 1
        read = reader is not None or stage or REQUEST in span.attributes
        trace.held[span.span_id] = _Held(span.parent_span_id, span.kind, reader, span if read else None, stage)
        touched[span.trace_id] = trace

    def _trim(self, trace: _Trace) -> None:
        if len(trace.held) <= MOST_OF_TRACE:
            return
        for span_id in list(trace.held)[: MOST_OF_TRACE // 2]:
            del trace.held[span_id]
            trace.given.pop(span_id, None)
            trace.due.pop(span_id, None)
            self._count -= 1

    def _expire(self, now: int) -> list[Amendment]:
        """Let go of what is too old, or too much."""
        out: list[Amendment] = []
        while self._traces:
            trace_id, trace = next(iter(self._traces.items()))
            if self._count <= self._most_spans and now - trace.touched_ns < HOLD_NS:
                break
            out += self._stages(trace_id, trace, now, last=True)
            self.tally.orphaned += sum(
                1
                for span_id, held in trace.held.items()
                if held.reader is not None and _top(trace, span_id, held.reader) is None
            )
            self._count -= len(trace.held)
            del self._traces[trace_id]
            self._unsettled.pop(trace_id, None)
        return out

    # -- reading

    def _read(self, trace_id: str, trace: _Trace, now: int) -> list[Amendment]:
        below: dict[str, list[Span]] = {}
        for span_id, held in trace.held.items():
            if held.reader is None or held.span is None:
                continue
            top = _top(trace, span_id, held.reader)
            if top is not None:
                found = below.setdefault(top, [])
                if top != span_id:
                    found.append(held.span)
        out: list[Amendment] = []
        for top, spans in below.items():
            held = trace.held[top]
            assert held.reader is not None
            assert held.span is not None
            due = trace.due.setdefault(top, now + held.reader.settle_ns)
            if now < due:
                self._unsettled[trace_id] = trace
                continue
            spans.sort(key=lambda span: span.start_unix_ns)
            facts = held.reader.read(held.span, spans)
            origin = f"{held.reader.engine} span {held.reader.root}"
            if not facts.request_id and not held.parent:
                if top not in trace.given:
                    self.tally.unaddressed += 1
                    trace.given[top] = _amendment(facts, "", "", "", "", now)
                continue
            parent = trace.held[_climb(trace, top, _never)].parent
            self._give(out, trace, top, _amendment(facts, origin, trace_id, parent, top, now))
        out += self._stages(trace_id, trace, now, last=False)
        return out

    def _stages(self, trace_id: str, trace: _Trace, now: int, *, last: bool) -> list[Amendment]:
        """Amendments of the services whose entry is here; `last`: of the others too."""
        by_top: dict[str, list[Span]] = {}
        for span_id, held in trace.held.items():
            if held.stage and held.span is not None:
                by_top.setdefault(_first_of(trace, span_id), []).append(held.span)
        out: list[Amendment] = []
        for top, spans in by_top.items():
            entry = trace.held[top]
            if entry.span is not None and REQUEST in entry.span.attributes:
                continue  # a service before us: it has a record of its own
            parent = trace.held[_climb(trace, top, _never)].parent
            if not parent or not (last or entry.kind == _SERVER):
                continue
            if last or now >= trace.due.setdefault(top, now + SETTLE_NS):
                service = str(spans[0].resource.get("service.name", "")) or "unnamed"
                origin = f"service:{service[:_NAME_LENGTH]} span"
                self._give(out, trace, top, _amendment(read_stages(spans), origin, trace_id, parent, top, now))
            else:
                self._unsettled[trace_id] = trace
        return out

    @staticmethod
    def _give(out: list[Amendment], trace: _Trace, top: str, amendment: Amendment) -> None:
        before = trace.given.get(top)
        if before is not None and amendment == msgspec.structs.replace(
            before, received_unix_ns=amendment.received_unix_ns
        ):
            return
        trace.given[top] = amendment
        out.append(amendment)


def _climb(trace: _Trace, span_id: str, stop: Callable[[_Held], bool]) -> str:
    """The highest ancestor that is here, or the first that `stop` accepts."""
    for _ in range(_MOST_STEPS):
        held = trace.held[span_id]
        if stop(held) or held.parent not in trace.held:
            break
        span_id = held.parent
    return span_id


def _never(_: _Held) -> bool:
    return False


def _top(trace: _Trace, span_id: str, reader: SpanReader) -> str | None:
    """The first span of the engine's request that `span_id` belongs to, if it is here."""
    found = _climb(trace, span_id, lambda held: held.span is not None and reader.is_root(held.span))
    held = trace.held[found]
    return found if held.reader is reader and held.span is not None and reader.is_root(held.span) else None


def _first_of(trace: _Trace, span_id: str) -> str:
    """The entry of the service that a stage's span belongs to."""
    return _climb(
        trace,
        span_id,
        lambda held: held.kind == _SERVER or (held.span is not None and REQUEST in held.span.attributes),
    )


def _amendment(facts: SpanFacts, origin: str, trace_id: str, parent: str, span_id: str, now: int) -> Amendment:
    said: dict[str, Any] = msgspec.structs.asdict(facts)
    return Amendment(
        received_unix_ns=now, origin=origin, trace_id=trace_id, parent_span_id=parent, span_id=span_id, **said
    )
