"""A span: one timed operation of a trace, as OpenTelemetry tells it, whoever sent it."""

from __future__ import annotations

from typing import Any

import msgspec


class SpanEvent(msgspec.Struct, frozen=True):
    """A moment inside a span."""

    name: str
    at_unix_ns: int
    attributes: dict[str, Any] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span. Stamps are wall clock (ns) of the process that sent it: only differences within it mean anything."""

    trace_id: str
    """32 hexadecimal digits, lower case."""
    span_id: str
    """16 hexadecimal digits, lower case."""
    parent_span_id: str = ""
    """Empty for the first span of a trace."""
    name: str
    kind: int = 0
    """OTLP's number: 1 internal, 2 server, 3 client, 4 producer, 5 consumer; 0 not said."""
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, Any] = {}
    """Values are str, bool, int, float, or lists and dicts of them."""
    events: list[SpanEvent] = []
    status_code: int = 0
    """0 unset, 1 ok, 2 error."""
    status_message: str = ""
    scope: str = ""
    """Name of the instrumentation."""
    resource: dict[str, Any] = {}
    """Attributes of the process: `service.name`, ..."""
