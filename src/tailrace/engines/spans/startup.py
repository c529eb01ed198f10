"""What an engine did before it served: its start-up spans, and the cold start that they add up to.

vLLM sends them (0.32.0; one captured, the names read in its log of a start): they share a trace over all its processes.
The time before the first of them, in which Python and the libraries are loaded, is in none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tailrace.engines.spans.reader import covered_ns
from tailrace.model.span import Span

WHOLE: Final = "Overall Loading"
"""The span around all the others."""
NAMES: Final = frozenset(
    {
        WHOLE,
        "AsyncMPClient init",
        "EngineCoreProc init",
        "Prepare model",
        "Worker init",
        "Load model",
        "Load weights",
        "Allocate KV cache",
        "Executor init",
        "Loading (CPU)",
        "Loading (GPU)",
        "Initialize model",
        "Warmup (GPU)",
        "Capture model",
    }
)
_KEPT: Final = 8
_MOST_SPANS: Final = 512
"""Of one start: a large tensor-parallel group sends some ten a worker."""


class ColdStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start of an engine. Parts overlap: one contains another, and processes work at the same time."""

    engine: str
    service: str
    started_unix_ns: int
    total_ns: int
    """First span's start -> last one's end, on the engine's clock."""
    complete: bool
    """Whether the span around all the others is there."""
    parts_ns: dict[str, int]
    """By the engine's own names; of several processes, what at least one of them spent."""

    def view(self) -> dict[str, Any]:
        """For people."""
        return {
            "engine": self.engine,
            "service": self.service,
            "started_unix_ns": self.started_unix_ns,
            "cold_start_ms": self.total_ns / 1e6,
            "complete": self.complete,
            "parts_ms": {name: value / 1e6 for name, value in self.parts_ns.items()},
        }


class ColdStarts:
    """The last starts, by their trace."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, list[Span]] = OrderedDict()

    def owns(self, span: Span) -> bool:
        """Whether it is about a start. Other programs have a span named `Load model` too."""
        return span.name in NAMES and (
            span.scope.startswith("vllm.") or "vllm.instrumenting_module_name" in span.resource
        )

    def take(self, spans: Iterable[Span]) -> bool:
        """Note what came; whether there was anything."""
        found = False
        for span in spans:
            found = True
            kept = self._spans.setdefault(span.trace_id, [])
            if len(kept) < _MOST_SPANS:
                kept.append(span)
            if len(self._spans) > _KEPT:
                self._spans.popitem(last=False)
        return found

    def all(self) -> list[ColdStart]:
        """Oldest first."""
        return sorted((_start(spans) for spans in self._spans.values()), key=lambda start: start.started_unix_ns)


def _start(spans: list[Span]) -> ColdStart:
    parts: dict[str, list[tuple[int, int]]] = {}
    for span in spans:
        parts.setdefault(span.name, []).append((span.start_unix_ns, span.end_unix_ns))
    begin = min(span.start_unix_ns for span in spans)
    end = max(span.end_unix_ns for span in spans)
    return ColdStart(
        engine="vllm",
        service=str(spans[0].resource.get("service.name", "")),
        started_unix_ns=begin,
        total_ns=end - begin,
        complete=WHOLE in parts,
        parts_ns={name: covered_ns(intervals) for name, intervals in sorted(parts.items(), key=lambda p: min(p[1]))},
    )
