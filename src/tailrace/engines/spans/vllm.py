"""vLLM's spans: one `llm_request` for each finished request, or its newer split into phases.

Facts are of 0.32.0 (captured) and of the proposed split (read in source): `vllm_queue`, `vllm_async_kv_transfer`,
`vllm_prefill`, `vllm_decode`. Aborted and rejected requests have no span at all, and a trace whose flag says "not
sampled" has none either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from tailrace.engines.spans.reader import SpanFacts, SpanReader, count, covered_ns
from tailrace.engines.vllm import Vllm
from tailrace.model.span import Span

_ROOT: Final = "llm_request"
_QUEUE, _TRANSFER, _PREFILL, _DECODE = "vllm_queue", "vllm_async_kv_transfer", "vllm_prefill", "vllm_decode"
_PHASES: Final = frozenset({_QUEUE, _TRANSFER, _PREFILL, _DECODE})
_OURS: Final = re.compile(r"(?:[a-z]+[-_])?([0-9a-f]{24})(?:-\d+)?(?:-[0-9a-f]{8})?")
"""`chatcmpl-<our id>`, `cmpl-<our id>-0`; the engine's own log adds eight more digits, and so may its spans."""


class VllmSpans(SpanReader):
    """`gen_ai.latency.*` of the request's span, in seconds; the phases where they are spans of their own."""

    engine: ClassVar[str] = "vllm"
    root: ClassVar[str] = _ROOT

    def owns(self, span: Span) -> bool:
        """By its name: the scope's has changed between versions."""
        return span.name == _ROOT or span.name in _PHASES

    def is_root(self, span: Span) -> bool:
        """`llm_request`."""
        return span.name == _ROOT

    def read(self, root: Span, below: Sequence[Span]) -> SpanFacts:
        """The attributes win where both are there: they are the engine's own arithmetic on one clock."""
        out = SpanFacts()
        _phases(out, below)
        said = Vllm().span_timings(root.attributes)
        for stage in ("queue", "prefill", "decode"):
            part = said.part(stage)
            if part is not None:
                setattr(out, f"{stage}_ns", part[0])
                out.sources = {**out.sources, stage: part[1]}
        match = _OURS.fullmatch(str(root.attributes.get("gen_ai.request.id", "")))
        out.request_id = match[1] if match else ""
        out.cached_tokens = count(root.attributes, "gen_ai.usage.cached_tokens")
        return out


def _phases(out: SpanFacts, below: Sequence[Span]) -> None:
    prefills = [span for span in below if span.name == _PREFILL]
    begun = min((span.start_unix_ns for span in prefills), default=None)
    waits = [
        (span.start_unix_ns, span.end_unix_ns)
        for span in below
        if span.name in (_QUEUE, _TRANSFER) and (begun is None or span.start_unix_ns < begun)
    ]
    if waits:
        out.say("queue", covered_ns(waits), f"span.{_QUEUE}")
    transfers = [(span.start_unix_ns, span.end_unix_ns) for span in below if span.name == _TRANSFER]
    if transfers:
        out.say("queue.kv_transfer", covered_ns(transfers), f"span.{_TRANSFER}")
    if prefills:
        # A preempted request is prefilled again, inside its decode: that is no second prefill of the first token.
        decoding = min((span.start_unix_ns for span in below if span.name == _DECODE), default=None)
        first = [
            (span.start_unix_ns, span.end_unix_ns)
            for span in prefills
            if decoding is None or span.start_unix_ns < decoding
        ]
        out.say("prefill", covered_ns(first), f"span.{_PREFILL}")
    decodes = [span for span in below if span.name == _DECODE]
    if decodes:
        whole = max(span.end_unix_ns for span in decodes) - min(span.start_unix_ns for span in decodes)
        out.say("decode", whole, f"span.{_DECODE}")
    again = sum(1 for span in below if span.name == _QUEUE and begun is not None and span.start_unix_ns >= begun)
    if again:
        out.preemptions = again
