"""OTLP trace requests in protobuf: bytes in, spans out, one span a step.

The message is walked here down to the spans, and each is parsed on its own: whoever iterates decides how much is
decoded at a time, which a parser that takes the whole message does not allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from tailrace.measure.otlp_value import OtlpError, span_id, stamp, trace_id
from tailrace.model.span import Span, SpanEvent

_LENGTH_DELIMITED = 2
_MAX_DEPTH = 20
_PASSED = 16


def spans_of_protobuf(body: bytes) -> Iterator[Span | OtlpError | None]:
    """Every span of an `ExportTraceServiceRequest`, or what is wrong with it; `None` for steps that led to no span.

    Raises `OtlpError` where the bytes are no such message, when it comes to that.
    """
    for resource_spans in _fields(memoryview(body), 1):
        yield None
        if resource_spans is not None:
            yield from _of_resource(resource_spans)


def _of_resource(message: memoryview) -> Iterator[Span | OtlpError | None]:
    resource: dict[str, Any] = {}
    for part in _fields(message, 1):
        yield None
        if part is not None:
            resource = _attributes(_parsed(Resource, part).attributes)
    for part in _fields(message, 2):
        yield None
        if part is not None:
            yield from _of_scope(part, resource)


def _of_scope(message: memoryview, resource: dict[str, Any]) -> Iterator[Span | OtlpError | None]:
    scope = ""
    for part in _fields(message, 1):
        yield None
        if part is not None:
            scope = _parsed(InstrumentationScope, part).name
    for part in _fields(message, 2):
        try:
            yield None if part is None else _span(_parsed(trace_pb2.Span, part), scope, resource)
        except OtlpError as error:
            yield error


def reception_message(rejected: int, why: str) -> bytes:
    """An `ExportTraceServiceResponse`; empty where everything was taken, as the protocol asks."""
    answer = ExportTraceServiceResponse()
    if rejected:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = why
    return bytes(answer.SerializeToString())


def _parsed(kind: Any, part: memoryview) -> Any:
    try:
        return kind.FromString(bytes(part))
    except DecodeError:
        raise OtlpError(f"a {kind.DESCRIPTOR.name} cannot be parsed") from None


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview | None]:
    """The contents of the length-delimited fields with number `wanted`, in order; now and then `None` between them.

    Fields that are passed over cost time as well, and a message may consist of nothing else.
    """
    at, end, passed = 0, len(message), 0
    while at < end:
        passed += 1
        if passed % _PASSED == 0:
            yield None
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            size, at = _varint(message, at)
            if size > end - at:
                raise OtlpError("the message ends inside a field")
            if tag >> 3 == wanted:
                yield message[at : at + size]
            at += size
        elif kind == 0:
            _, at = _varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
            if at > end:
                raise OtlpError("the message ends inside a field")
        else:
            raise OtlpError(f"{kind} is no wire type of protobuf here")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise OtlpError("the message ends inside a number")


def _span(said: Any, scope: str, resource: dict[str, Any]) -> Span:
    return Span(
        trace_id=trace_id(said.trace_id),
        span_id=span_id(said.span_id),
        parent_span_id=span_id(said.parent_span_id) if said.parent_span_id else "",
        name=said.name,
        kind=said.kind,
        start_unix_ns=stamp(said.start_time_unix_nano),
        end_unix_ns=stamp(said.end_time_unix_nano),
        attributes=_attributes(said.attributes),
        events=[SpanEvent(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in said.events],
        status_code=said.status.code,
        status_message=said.status.message,
        scope=scope,
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value, 0) for pair in pairs}


def _value(value: AnyValue, depth: int) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which in ("array_value", "kvlist_value"):
        if depth >= _MAX_DEPTH:
            raise OtlpError("an attribute's value is nested too deeply")
        if which == "array_value":
            return [_value(each, depth + 1) for each in value.array_value.values]
        return {pair.key: _value(pair.value, depth + 1) for pair in value.kvlist_value.values}
    found = getattr(value, which)
    return found.hex() if which == "bytes_value" else found
