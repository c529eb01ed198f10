"""llama.cpp's server: the status line marks the end of its queue, `timings` carry prefill and decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from tailrace.engines.base import Detection, EngineAdapter, RequestAdditions, TimingFacts
from tailrace.engines.signals import SignalTable, names
from tailrace.measure.engine_timings import EngineTimings
from tailrace.measure.stage_account import Passage
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS
from tailrace.model.timeline import EventKind

PREFIX: Final = "llamacpp:"
_STATUS_LINE: Final = "status line"


def _ms(said: Mapping[str, Any], key: str) -> int | None:
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return round(value * MS)


class LlamaCpp(EngineAdapter):
    """llama.cpp's OpenAI server."""

    name: ClassVar[str] = "llamacpp"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    signals: ClassVar[SignalTable] = {
        "running": names("llamacpp:requests_processing"),
        "waiting": names("llamacpp:requests_deferred"),
        "kv_usage": names("llamacpp:kv_cache_usage_ratio"),
        "prompt_tokens_total": names("llamacpp:prompt_tokens_total"),
        "generation_tokens_total": names("llamacpp:tokens_predicted_total"),
        "prefix_hit_tokens_total": names("llamacpp:prompt_tokens_cached_total"),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its `Server: llama.cpp` header or its metric names."""
        if headers.get("server", "").lower().startswith("llama.cpp"):
            return Detection(self.name, "", "header server: llama.cpp", 3)
        if any(name.startswith(PREFIX) for name in metric_names):
            return Detection(self.name, "", "metric names llamacpp:*", 3)
        return None

    def additions(self, path: str, body: Mapping[str, Any]) -> RequestAdditions:
        """Usage, and `return_progress` for streams.

        The server notices a client that left only when it has something to write; progress frames give it that in the
        middle of a long prefill, and tell us that the prefill has begun.
        """
        base = super().additions(path, body)
        if not body.get("stream") or not path.partition("?")[0].rstrip("/").endswith("/chat/completions"):
            return base
        if body.get("return_progress") is not None:
            return base
        return RequestAdditions({**base.body, "return_progress": True}, {}, base.cut | {EventKind.PROGRESS})

    def passages(self, sent: int, headers: int | None) -> list[Passage]:
        """The status line comes when a slot takes the request: until then it is queued."""
        queued = Passage("queue", sent, source(SourceKind.MEASURED, _STATUS_LINE))
        if headers is None:
            return [queued]
        return [queued, Passage("prefill", headers, source(SourceKind.MEASURED, _STATUS_LINE))]

    def timings(self, facts: TimingFacts, said: Mapping[str, Any] | None) -> EngineTimings:
        """From `timings` and, for a stream, from the time of the status line.

        No field carries the queue. For a stream it is send -> status line; an answer in one piece has its status line
        at the end, so there the queue is inferred as what prefill and decode leave over.
        """
        sources: dict[str, str] = {}
        said = said if said is not None and said.get("_field") == "timings" else {}
        prefill, decode = _ms(said, "prompt_ms"), _ms(said, "predicted_ms")
        queue: int | None = None
        if facts.stream and facts.headers is not None:
            queue = max(facts.headers - facts.sent, 0)
            sources["queue"] = source(SourceKind.MEASURED, _STATUS_LINE)
        elif not facts.stream and prefill is not None and decode is not None:
            queue = max(facts.end - facts.sent - prefill - decode, 0)
            sources["queue"] = source(SourceKind.INFERRED, "answer time - prompt_ms - predicted_ms")
        if prefill is not None:
            sources["prefill"] = source(SourceKind.REPORTED, "timings.prompt_ms")
        if decode is not None:
            sources["decode"] = source(SourceKind.REPORTED, "timings.predicted_ms")
        cached = said.get("cache_n")
        return EngineTimings(
            queue_ns=queue,
            prefill_ns=prefill,
            decode_ns=decode,
            sources=sources,
            cached_tokens=cached if isinstance(cached, int) else None,
        )
