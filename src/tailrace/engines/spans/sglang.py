"""SGLang's spans: `Req <first 8 of its id>`, below it a span a thread, below these the slices of its stages.

Facts are of 0.5.23, read in source, not run. The request's own attribute `gen_ai.latency.time_in_model_prefill` is
first token - dispatch and so contains the scheduler's queue, unlike vLLM's of the same name; `time_in_queue` is
defined there and never set. The slices say what the attribute does not: `prefill_waiting` is the queue and
`prefill_forward` the prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from tailrace.engines.sglang import Sglang
from tailrace.engines.spans.reader import SpanFacts, SpanReader, count, covered_ns
from tailrace.model.span import Span
from tailrace.model.thresholds import S

_SCOPE: Final = "sglang server"
_PREPROCESS: Final = frozenset(
    {"tokenize", "dispatch", "api_server_dispatch", "dc_dispatch", "dpc_dispatch", "request_process", "mm_encode"}
)
_QUEUE: Final = frozenset({"prefill_waiting", "prefill_prepare", "prefill_bootstrap"})
_PREFILL: Final = frozenset({"prefill_forward"})
_CHUNK: Final = "chunked_prefill"
_DECODE: Final = frozenset({"decode_forward", "decode_loop"})
_KNOWN: Final = (
    _PREPROCESS
    | _QUEUE
    | _PREFILL
    | _DECODE
    | {
        _CHUNK,
        "prefill_transfer_kv_cache",
        "decode_prepare",
        "decode_bootstrap",
        "decode_waiting",
        "decode_transferred",
        "fake_output",
        "quick_finish",
        "spec_draft",
        "spec_verify",
        "run_batch_cpu",
    }
)


class SglangSpans(SpanReader):
    """From the slices; the attributes only where the queue is among them."""

    engine: ClassVar[str] = "sglang"
    root: ClassVar[str] = "Req"
    settle_ns: ClassVar[int] = 6 * S
    """The scheduler's process exports on its own: every 0.5 s, or every 5 s where its exporter has the usual delay."""

    def owns(self, span: Span) -> bool:
        """By its scope: the names of its slices are anybody's."""
        return span.scope == _SCOPE and (span.name in _KNOWN or self.is_root(span) or "thread_label" in span.attributes)

    def is_root(self, span: Span) -> bool:
        """`Req 1234abcd`, `prefill Req …`, `decode Req …`: with the whole id as `rid`."""
        return span.scope == _SCOPE and "rid" in span.attributes and "Req " in span.name

    def read(self, root: Span, below: Sequence[Span]) -> SpanFacts:
        """Stages are what their slices cover, once, whatever runs in parallel or again after a retraction."""
        out = SpanFacts()
        # A chunk is inside the forward it belongs to; alone, it is what there is.
        forward = _PREFILL if any(span.name in _PREFILL for span in below) else frozenset({_CHUNK})
        decoding = min((span.start_unix_ns for span in below if span.name in _DECODE), default=None)
        for stage, names in (("preprocess", _PREPROCESS), ("queue", _QUEUE), ("prefill", forward)):
            found = [
                (span.start_unix_ns, span.end_unix_ns)
                for span in below
                if span.name in names and (decoding is None or span.start_unix_ns < decoding)
            ]
            if found:
                said = sorted({span.name for span in below if span.name in names})
                out.say(stage, covered_ns(found), f"span.{'+'.join(said)}")
        decodes = [(span.start_unix_ns, span.end_unix_ns) for span in below if span.name in _DECODE]
        if decodes:
            out.say(
                "decode", max(end for _, end in decodes) - min(start for start, _ in decodes), "span.decode_forward"
            )
        tokenize = [(span.start_unix_ns, span.end_unix_ns) for span in below if span.name == "tokenize"]
        if tokenize:
            out.say("preprocess.tokenize", covered_ns(tokenize), "span.tokenize")
        if out.prefill_ns is None or out.queue_ns is None:
            said_by_root = Sglang().span_timings(root.attributes)
            for stage in ("queue", "prefill"):
                part = said_by_root.part(stage)
                if part is not None and getattr(out, f"{stage}_ns") is None:
                    setattr(out, f"{stage}_ns", part[0])
                    out.sources = {**out.sources, stage: part[1]}
        retractions = sum(1 for span in below for event in span.events if event.name == "retract")
        if retractions:
            out.preemptions = retractions
        out.cached_tokens = count(root.attributes, "gen_ai.usage.cached_tokens")
        return out
