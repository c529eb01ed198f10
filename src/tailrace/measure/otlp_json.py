"""OTLP trace requests in JSON: bytes in, spans out, one span a step.

The mapping is protobuf's with OTLP's own changes (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding):
ids are hexadecimal, enums are numbers. Both are taken as the plain mapping has them too, ids in base64 and enums by
name, because exporters exist that write them so. 64-bit numbers come as text or as numbers. Unknown members are
ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.measure.otlp_value import OtlpError, span_id, stamp, trace_id
from tailrace.model.span import Span, SpanEvent

_KINDS: Final = {
    "SPAN_KIND_UNSPECIFIED": 0,
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
_STATUS: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_MAX_DEPTH: Final = 20


class _Said(msgspec.Struct, rename="camel"):
    """As the sender spells it; every member may be absent, and `null` means the same."""


class _Pair(_Said):
    key: str = ""
    value: dict[str, Any] | None = None


class _Resource(_Said):
    attributes: list[_Pair] | None = None


class _Scope(_Said):
    name: str | None = None


class _Event(_Said):
    name: str | None = None
    time_unix_nano: int | str | None = None
    attributes: list[_Pair] | None = None


class _Status(_Said):
    code: int | str | None = None
    message: str | None = None


class _Span(_Said):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str | None = None
    kind: int | str | None = None
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: list[_Pair] | None = None
    events: list[_Event] | None = None
    status: _Status | None = None


class _ScopeSpans(_Said):
    scope: _Scope | None = None
    spans: list[msgspec.Raw] | None = None


class _ResourceSpans(_Said):
    resource: _Resource | None = None
    scope_spans: list[msgspec.Raw] | None = None


class _Request(_Said):
    resource_spans: list[msgspec.Raw] | None = None


_read_request: Final = msgspec.json.Decoder(_Request).decode
_read_resource_spans: Final = msgspec.json.Decoder(_ResourceSpans).decode
_read_scope_spans: Final = msgspec.json.Decoder(_ScopeSpans).decode
_read_span: Final = msgspec.json.Decoder(_Span).decode
_Read = TypeVar("_Read")


def spans_of_json(body: bytes) -> Iterator[Span | OtlpError | None]:
    """Every span of an `ExportTraceServiceRequest`, or what is wrong with it; `None` for a step that led to no span.

    Raises `OtlpError` where the text is no such message, when it comes to that.
    """
    for part in _message(_read_request, body).resource_spans or ():
        resource_spans = _message(_read_resource_spans, part)
        resource = _attributes(resource_spans.resource.attributes if resource_spans.resource else None)
        yield None
        for piece in resource_spans.scope_spans or ():
            scope_spans = _message(_read_scope_spans, piece)
            scope = (scope_spans.scope.name if scope_spans.scope else "") or ""
            yield None
            for raw in scope_spans.spans or ():
                try:
                    yield _span(_read_span(raw), scope, resource)
                except OtlpError as error:
                    yield error
                except UNREADABLE as error:
                    yield OtlpError(f"a span cannot be read: {error}")


def _message(read: Callable[[bytes | msgspec.Raw], _Read], text: bytes | msgspec.Raw) -> _Read:
    try:
        return read(text)
    except UNREADABLE as error:
        raise OtlpError(f"is no OTLP request: {error}") from None


def _span(said: _Span, scope: str, resource: dict[str, Any]) -> Span:
    status = said.status or _Status()
    return Span(
        trace_id=trace_id(_id(said.trace_id, 16)),
        span_id=span_id(_id(said.span_id, 8)),
        parent_span_id=span_id(_id(said.parent_span_id, 8)) if said.parent_span_id else "",
        name=said.name or "",
        kind=_enum(said.kind, _KINDS),
        start_unix_ns=stamp(_integer(said.start_time_unix_nano)),
        end_unix_ns=stamp(_integer(said.end_time_unix_nano)),
        attributes=_attributes(said.attributes),
        events=[
            SpanEvent(event.name or "", _integer(event.time_unix_nano), _attributes(event.attributes))
            for event in said.events or ()
        ],
        status_code=_enum(status.code, _STATUS),
        status_message=status.message or "",
        scope=scope,
        resource=resource,
    )


def _id(text: str, size: int) -> bytes:
    """Hexadecimal as OTLP asks; base64 as plain protobuf JSON has it. Their lengths tell them apart."""
    try:
        if len(text) == 2 * size:
            return bytes.fromhex(text)
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise OtlpError(f"{text[:64]!r} is no id") from None


def _integer(said: int | str | None) -> int:
    if said is None:
        return 0
    if isinstance(said, int):
        return said
    if len(said) <= 20 and said.isascii() and said.lstrip("-").isdigit():
        return int(said)
    raise OtlpError(f"{said[:64]!r} is no whole number")


def _enum(said: int | str | None, names: dict[str, int]) -> int:
    """A name or number that is not known is 0: a newer sender may have more of them."""
    if isinstance(said, str):
        return int(said) if said.isascii() and said.isdigit() and len(said) < 4 else names.get(said, 0)
    return said if said is not None and 0 <= said < len(names) else 0


def _attributes(pairs: list[_Pair] | None) -> dict[str, Any]:
    return {pair.key: _value(pair.value, 0) for pair in pairs or ()}


def _value(said: Any, depth: int) -> Any:
    """An `AnyValue`: an object with one member that names its type."""
    for kind, value in said.items() if isinstance(said, dict) else ():
        read = _SCALARS.get(kind)
        if read is not None:
            return read(value)
        if kind in ("arrayValue", "kvlistValue"):
            return _several(kind, value, depth)
    return None


def _several(kind: str, said: Any, depth: int) -> Any:
    if depth >= _MAX_DEPTH:
        raise OtlpError("an attribute's value is nested too deeply")
    values = (said.get("values") if isinstance(said, dict) else None) or ()
    if kind == "arrayValue":
        return [_value(each, depth + 1) for each in values]
    return {str(pair.get("key", "")): _value(pair.get("value"), depth + 1) for pair in values if isinstance(pair, dict)}


def _double(said: Any) -> float | None:
    """`NaN` and the infinities come as text."""
    try:
        return float(said)
    except (TypeError, ValueError):
        return None


def _hex(said: Any) -> str:
    try:
        return base64.b64decode(said).hex()
    except (TypeError, ValueError):
        return ""


_SCALARS: Final[dict[str, Callable[[Any], Any]]] = {
    "stringValue": lambda said: said if isinstance(said, str) else str(said),
    "intValue": lambda said: _integer(said) if isinstance(said, int | str) else None,
    "doubleValue": _double,
    "boolValue": bool,
    "bytesValue": _hex,
}
