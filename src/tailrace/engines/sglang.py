"""SGLang: `meta_info` timings, `sglang:` metrics, two shapes of aborts. Facts are of 0.5.23, read in source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from tailrace.engines.base import Basis, Detection, EngineAdapter, TimingFacts
from tailrace.engines.facts import Fact, take
from tailrace.engines.metric_names.sglang import SGLANG_METRICS
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.said import count, duration_ns
from tailrace.engines.signals import SignalTable, names
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.openai import decode_leniently
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import S

PREFIX: Final = "sglang:"

_ARGUMENTS: Final = {
    "model": "model_path",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_dtype": "kv_cache_dtype",
    "max_model_len": "context_length",
    "max_input_len": "max_req_input_len",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "max_prefill_tokens",
    "max_queued": "max_queued_requests",
    "chunked_prefill_size": "chunked_prefill_size",
    "block_size": "page_size",
    "kv_tokens": "max_total_num_tokens",
    "tensor_parallel": "tp_size",
    "pipeline_parallel": "pp_size",
    "data_parallel": "dp_size",
    "scheduling_policy": "schedule_policy",
    "gpu_memory_utilization": "mem_fraction_static",
    "backend": "attention_backend",
    "device": "device",
    "speculative": "speculative_algorithm",
}


class Sglang(EngineAdapter):
    """SGLang's OpenAI and native servers. Its status line comes with the first chunk, so it says nothing."""

    name: ClassVar[str] = "sglang"
    title: ClassVar[str] = "SGLang"
    basis: ClassVar[Basis] = Basis.READ_IN_SOURCE
    versions: ClassVar[str] = "0.5.23"
    owners: ClassVar[tuple[str, ...]] = ("sglang",)
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = SGLANG_METRICS
    lower_priority_first: ClassVar[bool | None] = False
    id_field: ClassVar[str | None] = "rid"
    version_path: ClassVar[str | None] = "/server_info"
    info_paths: ClassVar[tuple[str, ...]] = ("/get_server_info",)
    """The same under its older name."""
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

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """From the server's arguments, and what the scheduler made of them."""
        said = decode_leniently(body)
        if not isinstance(said, dict):
            return {}
        out = take(path, said, {"version": "version", **_ARGUMENTS})
        if said.get("quantization", 0) is None:
            out["quantization"] = Fact("none", f"{path}: quantization")
        disabled = said.get("disable_radix_cache")
        if isinstance(disabled, bool):
            out["prefix_caching"] = Fact(not disabled, f"{path}: disable_radix_cache")
        size = said.get("chunked_prefill_size")
        if isinstance(size, int) and not isinstance(size, bool):
            out["chunked_prefill"] = Fact(size > 0, f"{path}: chunked_prefill_size")
        return out

    def takes_id(self, path: str) -> bool:
        """Its chat, completion and native routes; no header carries an id."""
        return path.partition("?")[0].rstrip("/").endswith(("/chat/completions", "/completions", "/generate"))

    def timings(self, facts: TimingFacts, said: Mapping[str, Any] | None) -> EngineTimings:
        """From `meta_info` (needs `--enable-metrics`): queue_time, and the stamps around tokenising and the prefill.

        Stamps are wall clock, those of the API server and those of the scheduler each of one process: only a difference
        of two of the same is used.
        """
        _ = facts
        if said is None or said.get("_field") != "meta_info":
            return NO_TIMINGS
        sources: dict[str, str] = {}
        queue = duration_ns(said, "queue_time", S)
        if queue is not None:
            sources["queue"] = source(SourceKind.REPORTED, "meta_info.queue_time")
        preprocess = _between(said, "request_received_ts", "api_server_dispatch_finish_ts")
        if preprocess is not None:
            detail = "meta_info.api_server_dispatch_finish_ts - request_received_ts"
            sources["preprocess"] = source(SourceKind.REPORTED, detail)
        prefill = _between(said, "forward_entry_time", "prefill_finished_time")
        if prefill is not None:
            detail = "meta_info.prefill_finished_time - forward_entry_time"
            sources["prefill"] = source(SourceKind.REPORTED, detail)
        return EngineTimings(
            queue_ns=queue,
            preprocess_ns=preprocess,
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


def _between(said: Mapping[str, Any], first: str, last: str) -> int | None:
    """From one stamp of a process to another (s -> ns); `None` where one is missing or they are out of order."""
    begun, done = said.get(first), said.get(last)
    if isinstance(begun, bool) or isinstance(done, bool):
        return None
    if isinstance(begun, int | float) and isinstance(done, int | float) and done >= begun > 0:
        return duration_ns({"": done - begun}, "", S)
    return None
