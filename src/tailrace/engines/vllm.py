"""vLLM: per-request `metrics` in the usage chunk, `vllm:` metrics under many names. Facts are of 0.6 to 0.33."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from tailrace.engines.base import Detection, EngineAdapter, TimingFacts
from tailrace.engines.facts import Fact
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.metric_names.vllm import VLLM_METRICS
from tailrace.engines.prometheus_text import Scrape
from tailrace.engines.said import duration_ns
from tailrace.engines.signals import SignalTable, names
from tailrace.engines.vllm_facts import read_cache_info, read_model_card, read_server_info
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS, S

PREFIX: Final = "vllm:"

DEVELOPER_INFO: Final = "/server_info?config_format=json"
"""Answers in developer mode only (`VLLM_SERVER_DEV_MODE=1`); older versions know no format and answer with text."""

_SPAN_ATTRIBUTES: Final = {
    "queue": "gen_ai.latency.time_in_queue",
    "prefill": "gen_ai.latency.time_in_model_prefill",
    "decode": "gen_ai.latency.time_in_model_decode",
}


class Vllm(EngineAdapter):
    """vLLM's OpenAI server."""

    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM"
    versions: ClassVar[str] = "0.6.6 to 0.33; 0.32.0 was run"
    owners: ClassVar[tuple[str, ...]] = ("vllm",)
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = VLLM_METRICS
    lower_priority_first: ClassVar[bool | None] = True
    priority_header: ClassVar[bytes | None] = b"x-vllm-priority"
    queue_begins_between_steps: ClassVar[bool] = True
    preempts_silently: ClassVar[bool] = True
    signals: ClassVar[SignalTable] = {
        "running": names("vllm:num_requests_running"),
        "waiting": names("vllm:num_requests_waiting"),
        "kv_usage": names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions_total": names("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "prompt_tokens_total": names("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
        "generation_tokens_total": names("vllm:generation_tokens_total", "vllm:generation_tokens"),
        "prefix_hit_tokens_total": names(
            "vllm:prefix_cache_hits_total",
            "vllm:prefix_cache_hits",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits",
        ),
        "prefix_query_tokens_total": names(
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_queries",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries",
        ),
        "queue_seconds_total": names("vllm:request_queue_time_seconds_sum", "vllm:time_in_queue_requests_sum"),
    }

    version_path: ClassVar[str | None] = "/version"
    info_paths: ClassVar[tuple[str, ...]] = ("/v1/models", DEVELOPER_INFO)

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names; its `Server` header says only `uvicorn`."""
        if any(name.startswith(PREFIX) for name in metric_names):
            return Detection(self.name, "", "metric names vllm:*", 3)
        if "x-vllm-version" in headers:
            return Detection(self.name, headers["x-vllm-version"], "header x-vllm-version", 3)
        return None

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """From `/version`, the card of `/v1/models` and, in developer mode, the whole configuration."""
        if path == self.version_path:
            return super().read_info(path, body)
        return read_server_info(body) if path == DEVELOPER_INFO else read_model_card(path, body)

    def read_info_metrics(self, scrape: Scrape) -> dict[str, Fact]:
        """From the labels of `vllm:cache_config_info`."""
        return read_cache_info(scrape)

    def timings(self, facts: TimingFacts, said: Mapping[str, Any] | None) -> EngineTimings:
        """From the `metrics` object (needs `--enable-per-request-metrics`, vLLM 0.32 and later).

        Its `time_to_first_token_ms` is scheduled -> first token, that is the prefill *without* the queue, unlike the
        histogram of a similar name. `generation_time_ms` is first -> last token.
        """
        _ = facts
        if said is None or said.get("_field") != "metrics":
            return NO_TIMINGS
        queue, prefill = duration_ns(said, "queue_time_ms", MS), duration_ns(said, "time_to_first_token_ms", MS)
        decode = duration_ns(said, "generation_time_ms", MS)
        sources: dict[str, str] = {}
        for stage, value, key in (
            ("queue", queue, "queue_time_ms"),
            ("prefill", prefill, "time_to_first_token_ms"),
            ("decode", decode, "generation_time_ms"),
        ):
            if value is not None:
                sources[stage] = source(SourceKind.REPORTED, f"metrics.{key}")
        return EngineTimings(queue_ns=queue, prefill_ns=prefill, decode_ns=decode, sources=sources)

    def span_timings(self, attributes: Mapping[str, Any]) -> EngineTimings:
        """From the attributes of its `llm_request` span, in seconds."""
        found: dict[str, int] = {}
        sources: dict[str, str] = {}
        for stage, key in _SPAN_ATTRIBUTES.items():
            value = duration_ns(attributes, key, S)
            if value is not None:
                found[stage] = value
                sources[stage] = source(SourceKind.REPORTED, f"span.{key}")
        return EngineTimings(
            queue_ns=found.get("queue"),
            prefill_ns=found.get("prefill"),
            decode_ns=found.get("decode"),
            sources=sources,
        )
