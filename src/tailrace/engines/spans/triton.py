"""Triton's spans in its `opentelemetry` mode: `InferRequest`, below it a span a model, below that `compute`.

Facts are of 2.51 (captured). The stamps are events. For a decoupled model `compute` ends when `execute()` returns, long
before the last token, so that only what lies before the first response is read of it. Nothing is sampled by the
trace's flag: every request that brings a `traceparent` is traced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from tailrace.engines.spans.reader import SpanFacts, SpanReader, covered_ns
from tailrace.model.span import Span

_SCOPE: Final = "triton-server"
_ROOT: Final = "InferRequest"
_COMPUTE: Final = "compute"
_RESPONSE: Final = "INFER_RESPONSE_COMPLETE"
_OURS: Final = re.compile(r"[0-9a-f]{24}(?:-\d+)?")


class TritonSpans(SpanReader):
    """From the events; also of the spans that `triton_file` makes of the server's own trace file."""

    engine: ClassVar[str] = "triton"
    root: ClassVar[str] = _ROOT

    def owns(self, span: Span) -> bool:
        """By its scope or service, and what its spans are called or carry: one is named after the model."""
        if span.scope != _SCOPE and span.resource.get("service.name") != "triton-inference-server":
            return False
        return span.name in (_ROOT, _COMPUTE) or "triton.model_name" in span.attributes

    def is_root(self, span: Span) -> bool:
        """`InferRequest`."""
        return span.name == _ROOT

    def read(self, root: Span, below: Sequence[Span]) -> SpanFacts:
        """An ensemble has several models: its queue is the time in which one waited and none computed."""
        out = SpanFacts()
        models = [span for span in below if "triton.model_name" in span.attributes]
        computes = [span for span in below if span.name == _COMPUTE]
        phases = _phases(models, computes)
        arrived = [at for at in (_at(span, "QUEUE_START") for span in models) if at is not None]
        if arrived:
            received = _at(root, "HTTP_RECV_START") or _at(root, "GRPC_WAITREAD_END") or root.start_unix_ns
            phases.inputs.append((received, min(arrived)))
            out.say("preprocess.receive", min(arrived) - received, "triton.QUEUE_START - HTTP_RECV_START")
        busy = [*phases.infers, *phases.inputs]
        if phases.queues:
            waited = covered_ns([*phases.queues, *busy]) - covered_ns(busy)
            out.say("queue", waited, "triton.COMPUTE_START - QUEUE_START")
        if phases.inputs:
            out.say("preprocess", covered_ns(phases.inputs), "triton.COMPUTE_INPUT_END - COMPUTE_START")
        _work(out, root, computes, phases)
        for span in models:
            said = str(span.attributes.get("triton.request_id", ""))
            if _OURS.fullmatch(said):
                out.request_id = said
        return out


class _Phases(msgspec.Struct):
    """(start, end) of each, over all models of the request."""

    queues: list[tuple[int, int]] = []
    inputs: list[tuple[int, int]] = []
    infers: list[tuple[int, int]] = []
    outputs: list[tuple[int, int]] = []


def _phases(models: Sequence[Span], computes: Sequence[Span]) -> _Phases:
    out = _Phases()
    for compute in computes:
        model = next((span for span in models if span.span_id == compute.parent_span_id), None)
        began, loaded = _at(compute, "COMPUTE_START"), _at(compute, "COMPUTE_INPUT_END")
        computed, done = _at(compute, "COMPUTE_OUTPUT_START"), _at(compute, "COMPUTE_END")
        queued = None if model is None else _at(model, "QUEUE_START")
        for found, start, end in (
            (out.queues, queued, began),
            (out.inputs, began, loaded),
            (out.infers, loaded, computed),
            (out.outputs, computed, done),
        ):
            if start is not None and end is not None:
                found.append((start, end))
    return out


def _work(out: SpanFacts, root: Span, computes: Sequence[Span], phases: _Phases) -> None:
    responses = [event.at_unix_ns for event in root.events if event.name == _RESPONSE]
    if _streamed(responses, computes):
        # `execute()` has returned, or not: the first response is the only end of the prefill that means anything.
        loaded = max((end for _, end in phases.inputs), default=None)
        if loaded is not None:
            out.say("prefill", min(responses) - loaded, f"triton.{_RESPONSE} - COMPUTE_INPUT_END")
        return
    if phases.infers:
        out.say("prefill", covered_ns(phases.infers), "triton.COMPUTE_OUTPUT_START - COMPUTE_INPUT_END")
    if phases.outputs:
        sent = max(root.end_unix_ns, *(end for _, end in phases.outputs))
        began = max(start for start, _ in phases.outputs)
        out.say("postprocess", sent - began, "triton.HTTP_SEND_END - COMPUTE_OUTPUT_START")


def _at(span: Span, name: str) -> int | None:
    """When an event happened. A stamp that Triton did not take is zero, which its exporter moves out of the span."""
    for event in span.events:
        if event.name == name and event.at_unix_ns > 0:
            return event.at_unix_ns
    return None


def _streamed(responses: Sequence[int], computes: Sequence[Span]) -> bool:
    """Several responses, or the one of a single model left outside its output phase: it answers when it likes."""
    if len(responses) != 1 or len(computes) > 1:
        return len(responses) > 1
    output = min((at for span in computes if (at := _at(span, "COMPUTE_OUTPUT_START")) is not None), default=None)
    done = max((at for span in computes if (at := _at(span, "COMPUTE_END")) is not None), default=None)
    return output is None or done is None or not output <= responses[0] <= done
