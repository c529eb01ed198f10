"""Requests as OpenTelemetry spans in OTLP's JSON form: what a service posts to the gateway's admin port.

One root span a request (`tailrace.request_id`, `tailrace.outcome`, ...) and one span a stage below it, with
`tailrace.stage`. Attributes are listed in the how-to page "Report your own stages".
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from tailrace.stages.collector import Collector, StageSpan
from tailrace.stages.request import ServiceRequest

SCOPE: Final = "tailrace.stages"
_SERVER: Final = 2
_INTERNAL: Final = 1
_ERROR: Final = 2


def export_request(requests: Sequence[ServiceRequest], *, dropped: int = 0) -> dict[str, Any]:
    """The body of one export; `dropped`: requests that were not reported since the process began."""
    services: dict[str, list[dict[str, Any]]] = {}
    for request in requests:
        services.setdefault(request.service, []).extend(_spans(request))
    return {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": _attributes({"service.name": service, "tailrace.reports_dropped": dropped or None})
                },
                "scopeSpans": [{"scope": {"name": SCOPE}, "spans": spans}],
            }
            for service, spans in services.items()
        ]
    }


def _spans(request: ServiceRequest) -> list[dict[str, Any]]:
    collector = request.collector
    offset = request.start_unix_ns - request.received_ns
    end = request.end_ns if request.end_ns is not None else collector.clock()
    streamed = request.bodies > 1
    failed = request.outcome not in ("", "completed")
    root = {
        "traceId": request.trace_id,
        "spanId": request.span_id,
        **({"parentSpanId": request.parent_id} if request.parent_id else {}),
        "name": f"{request.service or 'request'} {request.path}".strip(),
        "kind": _SERVER,
        "startTimeUnixNano": str(request.start_unix_ns),
        "endTimeUnixNano": str(end + offset),
        "attributes": _attributes(
            {
                "tailrace.request_id": request.request_id,
                "tailrace.session_id": request.session_id or None,
                "tailrace.outcome": request.outcome or None,
                "tailrace.reason": request.reason or None,
                "tailrace.died_in": request.died_in or None,
                "tailrace.budget": request.budget or None,
                "tailrace.stages": len(collector.spans),
                "tailrace.stages_dropped": collector.dropped or None,
                "tailrace.stream": streamed,
                "tailrace.first_body_ns": None
                if not streamed or request.first_body_ns is None
                else request.first_body_ns - request.received_ns,
                "url.path": request.path or None,
                "http.response.status_code": request.status,
            }
        ),
        "status": {"code": _ERROR, "message": request.error[:300]} if failed else {},
    }
    return [root, *_stages(request, collector, offset)]


def _stages(request: ServiceRequest, collector: Collector, offset: int) -> list[dict[str, Any]]:
    ids = {span.number: secrets.token_hex(8) for span in collector.spans}
    return [_stage(request, span, ids, offset) for span in collector.spans]


def _stage(request: ServiceRequest, span: StageSpan, ids: dict[int, str], offset: int) -> dict[str, Any]:
    return {
        "traceId": request.trace_id,
        "spanId": ids[span.number],
        "parentSpanId": ids.get(span.parent, request.span_id),
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start + offset),
        "endTimeUnixNano": str(span.end + offset),
        "attributes": _attributes({"tailrace.stage": span.name, "tailrace.over_budget": span.over_budget or None}),
        "status": {"code": _ERROR, "message": span.error} if span.error else {},
    }


def _attributes(values: dict[str, str | int | bool | None]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: str | int | bool) -> dict[str, Any]:  # noqa: FBT001  (an attribute's value, whatever it is)
    if isinstance(value, bool):
        return {"boolValue": value}
    # OTLP's JSON form writes 64-bit integers as text.
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
