"""Captured and made spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.measure.otlp_json import spans_of_json
from tailrace.model.span import Span, SpanEvent

TRACE = "ab" * 16
OURS = "1122334455667788"
"""Our span: the parent of whatever the engine reports."""
REQUEST_ID = "0123456789abcdef01234567"
MS = 1_000_000
START = 1_795_951_512_000_000_000


def vllm_capture(shared: Path) -> list[Span]:
    lines = (shared / "data/engine_samples/vllm/otlp_spans_0.32.0.jsonl").read_text().splitlines()
    resource_spans = [
        {"resource": one["resource"], "scopeSpans": [{"scope": one["scope"], "spans": [one["span"]]}]}
        for one in map(json.loads, lines)
    ]
    return _spans(json.dumps({"resourceSpans": resource_spans}).encode())


def triton_capture(shared: Path) -> list[Span]:
    return _spans((shared / "data/engine_samples/triton/otlp_traces.json").read_bytes())


def _spans(body: bytes) -> list[Span]:
    return [one for one in spans_of_json(body) if isinstance(one, Span)]


def span(
    name: str,
    number: int,
    parent: int | str,
    begin_ms: float = 0,
    end_ms: float = 0,
    *,
    events: dict[str, float] | None = None,
    trace_id: str = TRACE,
    scope: str = "",
    kind: int = 1,
    resource: dict[str, Any] | None = None,
    **attributes: Any,
) -> Span:
    """Times in ms after `START`; ids are made of numbers."""
    return Span(
        trace_id=trace_id,
        span_id=f"{number:016x}",
        parent_span_id=f"{parent:016x}" if isinstance(parent, int) else parent,
        name=name,
        kind=kind,
        start_unix_ns=START + round(begin_ms * MS),
        end_unix_ns=START + round(end_ms * MS),
        events=[SpanEvent(event, START + round(at * MS)) for event, at in (events or {}).items()],
        scope=scope,
        resource=resource or {},
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
    )


def sglang_read_in_source() -> list[Span]:
    """One request as the source of 0.5.23 makes its spans: three processes, slices below a span a thread."""
    scope = "sglang server"

    def slice_(name: str, number: int, parent: int, begin: float, end: float) -> Span:
        return span(name, number, parent, begin, end, scope=scope)

    return [
        slice_("tokenize", 10, 2, 0, 3),
        slice_("dispatch", 11, 2, 3, 4),
        span("Tokenizer (host:abcdef01 | pid:7)", 2, 1, 0, 4, scope=scope, thread_label="Tokenizer"),
        slice_("request_process", 12, 3, 4, 5),
        slice_("prefill_waiting", 13, 3, 5, 45),
        slice_("chunked_prefill", 14, 15, 45, 60),
        slice_("chunked_prefill", 16, 15, 60, 70),
        slice_("prefill_forward", 15, 3, 45, 70),
        slice_("decode_loop", 17, 18, 70, 80),
        slice_("decode_forward", 18, 3, 70, 150),
        span("Scheduler [TP 0] (host:abcdef01 | pid:8)", 3, 1, 4, 150, scope=scope, thread_label="Scheduler"),
        span(
            " Req 12345678",
            1,
            OURS,
            0,
            151,
            scope=scope,
            rid="1234567890",
            module="sglang::request",
            gen_ai__latency__time_in_model_prefill=0.066,
            gen_ai__latency__time_to_first_token=0.070,
        ),
    ]
