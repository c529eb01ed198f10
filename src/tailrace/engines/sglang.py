"""SGLang: `meta_info` timings, `sglang:` metrics, two shapes of aborts. Facts are of 0.5.23, read in source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from tailrace.engines.base import Detection, EngineAdapter, RequestAdditions, TimingFacts
from tailrace.engines.metric_names.sglang import SGLANG_METRICS
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.said import count, duration_ns
from tailrace.engines.signals import SignalTable, names
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import S

PREFIX: Final = "sglang:"


class Sglang(EngineAdapter):
    """SGLang's OpenAI and native servers. Its status line comes with the first chunk, so it says nothing."""

    name: ClassVar[str] = "sglang"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = SGLANG_METRICS
    lower_priority_first: ClassVar[bool | None] = False
    version_path: ClassVar[str | None] = "/server_info"
    signals: ClassVar[SignalTable] = {
        "running": names("sglang:num_running_reqs"),
        "waiting": names("sglang:num_queue_reqs"),
        "kv_usage": names("sglang:token_usage"),
        "preemptions_total": names("sglang:num_retracted_requests_total"),
        "prompt_tokens_total": names("sglang:prompt_tokens_total"),
        "generation_tokens_total": names("sglang:generation_tokens_total"),
        "prefix_hit_tokens_total": names("sglang:cached_tokens_total"),
        "queue_seconds_total": names("sglang:queue_time_seconds_sum"),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names; its `Server` header says only `uvicorn`."""
        _ = headers
        if any(name.startswith(PREFIX) for name in metric_names):
            return Detection(self.name, "", "metric names sglang:*", 3)
        return None

    def additions(self, path: str, body: Mapping[str, Any], request_id: str = "") -> RequestAdditions:
        """Usage, and our id as `rid`: no header carries it."""
        base = super().additions(path, body, request_id)
        if not request_id or "rid" in body:
            return base
        return RequestAdditions({**base.body, "rid": request_id}, base.headers, base.cut)

    def timings(self, facts: TimingFacts, said: Mapping[str, Any] | None) -> EngineTimings:
        """From `meta_info` (needs `--enable-metrics`): queue_time, and the two stamps around the prefill.

        Both stamps are wall clock of one process; only their difference is used.
        """
        _ = facts
        if said is None or said.get("_field") != "meta_info":
            return NO_TIMINGS
        sources: dict[str, str] = {}
        queue = duration_ns(said, "queue_time", S)
        if queue is not None:
            sources["queue"] = source(SourceKind.REPORTED, "meta_info.queue_time")
        prefill: int | None = None
        begun, done = said.get("forward_entry_time"), said.get("prefill_finished_time")
        if isinstance(begun, int | float) and isinstance(done, int | float) and done >= begun > 0:
            prefill = round((done - begun) * S)
            detail = "meta_info.prefill_finished_time - forward_entry_time"
            sources["prefill"] = source(SourceKind.REPORTED, detail)
        return EngineTimings(
            queue_ns=queue,
            prefill_ns=prefill,
            sources=sources,
            preemptions=count(said, "num_retractions"),
            cached_tokens=count(said, "cached_tokens"),
        )

    def span_timings(self, attributes: Mapping[str, Any]) -> EngineTimings:
        """From its trace span, in seconds.

        `gen_ai.latency.time_in_model_prefill` is first token - dispatch: it *includes* the scheduler's queue, unlike
        vLLM's attribute of the same name. It is a prefill only where the queue is known and can be taken off, and the
        queue attribute is defined but never set; without it the span says nothing about stages.
        """
        both = duration_ns(attributes, "gen_ai.latency.time_in_model_prefill", S)
        queue = duration_ns(attributes, "gen_ai.latency.time_in_queue", S)
        if both is None or queue is None:
            return NO_TIMINGS
        return EngineTimings(
            queue_ns=queue,
            prefill_ns=max(both - queue, 0),
            sources={
                "queue": source(SourceKind.REPORTED, "span.gen_ai.latency.time_in_queue"),
                "prefill": source(SourceKind.REPORTED, "span.time_in_model_prefill - time_in_queue"),
            },
        )
