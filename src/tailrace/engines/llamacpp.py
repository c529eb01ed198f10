"""llama.cpp's server: the status line marks the end of its queue, `timings` carry prefill and decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from tailrace.engines.base import Detection, EngineAdapter, RequestAdditions, TimingFacts
from tailrace.engines.facts import Fact, take
from tailrace.engines.metric_names.llamacpp import LLAMACPP_METRICS
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.native import open_frame, or_done
from tailrace.engines.said import count, duration_ns
from tailrace.engines.signals import SignalTable, names
from tailrace.measure.dialect import Dialect, Meaning, Usage
from tailrace.measure.engine_timings import EngineTimings
from tailrace.measure.openai import decode_leniently, read_timings, text_length
from tailrace.measure.stage_account import Passage
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS
from tailrace.model.timeline import EventKind

PREFIX: Final = "llamacpp:"
_STATUS_LINE: Final = "status line"


class LlamaCppNative:
    """`/completion`: `content` at the top level, a running token count, `stop` and `timings` at the end."""

    name = "llamacpp.completion"
    ends_with_body = False

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """See `Dialect.read`."""
        obj = open_frame(event, data)
        if isinstance(obj, Meaning):
            return or_done(obj, data)
        stop = obj.get("stop") is True
        length = text_length(obj.get("content"))
        usage = Usage(count(obj, "tokens_evaluated"), count(obj, "tokens_predicted"), count(obj, "tokens_cached"))
        kind = EventKind.CONTENT if length else EventKind.FINISH if stop else EventKind.EMPTY
        finish = ("length" if obj.get("stop_type") == "limit" else "stop") if stop else ""
        if not length and isinstance(obj.get("prompt_progress"), dict):
            kind = EventKind.PROGRESS
        said = usage if usage.completion is not None else None
        return Meaning(
            kind, length, "", finish, said, stop, timings=read_timings(obj), done=stop, has_content=length > 0
        )

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """See `Dialect.plain_text`. Every event carries a running count, so no two are alike."""
        _ = event, data
        return ""

    def read_body(self, body: bytes) -> Meaning:
        """See `Dialect.read_body`."""
        meaning = self.read(None, body)
        if meaning.kind is not EventKind.ERROR:
            meaning.done = meaning.usage_final = True
        return meaning


NATIVE: Final[Dialect] = LlamaCppNative()


class LlamaCpp(EngineAdapter):
    """llama.cpp's OpenAI server."""

    name: ClassVar[str] = "llamacpp"
    title: ClassVar[str] = "llama.cpp"
    versions: ClassVar[str] = "xllamacpp 2026.10.11549"
    owners: ClassVar[tuple[str, ...]] = ("llamacpp",)
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = LLAMACPP_METRICS
    version_path: ClassVar[str | None] = "/props"
    version_field: ClassVar[str] = "build_info"
    info_paths: ClassVar[tuple[str, ...]] = ("/v1/models",)
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

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """From `/props`, and from the card of the model. Neither tells `n_batch` or the precision of the KV cache."""
        said = decode_leniently(body)
        if not isinstance(said, dict):
            return {}
        if path == "/v1/models":
            cards = said.get("data")
            card = cards[0] if isinstance(cards, list) and cards else None
            meta = card.get("meta") if isinstance(card, dict) else None
            fields = {"quantization": "ftype", "parameters": "n_params", "weight_bytes": "size"}
            return take(path, meta, fields, prefix="meta.") if isinstance(meta, dict) else {}
        out = take(
            path,
            said,
            {"version": "build_info", "slots": "total_slots", "model": "model_path", "quantization": "model_ftype"},
        )
        settings = said.get("default_generation_settings")
        if isinstance(settings, dict):
            # A slot's context is all that one request may have: the server's whole context divided by its slots.
            fields = {"slot_ctx": "n_ctx", "max_model_len": "n_ctx"}
            out |= take(path, settings, fields, prefix="default_generation_settings.")
        return out

    def dialect(self, path: str) -> Dialect:
        """The native `/completion` has a shape of its own."""
        return NATIVE if path.partition("?")[0].endswith("/completion") else super().dialect(path)

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
        prefill, decode = duration_ns(said, "prompt_ms", MS), duration_ns(said, "predicted_ms", MS)
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
        return EngineTimings(
            queue_ns=queue,
            prefill_ns=prefill,
            decode_ns=decode,
            sources=sources,
            cached_tokens=count(said, "cache_n"),
        )
