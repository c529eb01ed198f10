"""TensorRT-LLM behind `trtllm-serve`: names read in its source, never run.

Its `/metrics` is no Prometheus text but a queue of iteration statistics as JSON, and reading it takes them away from
whoever reads next; so does `/perf_metrics`. Neither is ever asked. Prometheus text is at `/prometheus/metrics`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from tailrace.engines.base import Basis, Detection, EngineAdapter
from tailrace.engines.facts import Fact, take
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.metric_names.tensorrt_llm import TENSORRT_LLM_METRICS
from tailrace.engines.prometheus_text import Scrape
from tailrace.engines.signals import SignalTable, names

PREFIX: Final = "trtllm_"
_INFO: Final[Mapping[str, Mapping[str, str]]] = {
    "trtllm_model_config_info": {
        "model": "model",
        "dtype": "dtype",
        "quantization": "quantization",
        "device": "gpu_type",
    },
    "trtllm_parallel_config_info": {"tensor_parallel": "tp_size", "pipeline_parallel": "pp_size"},
    "trtllm_speculative_config_info": {"speculative": "method"},
    "trtllm_kv_cache_config_info": {"block_size": "page_size", "prefix_caching": "enable_block_reuse"},
}
_GAUGES: Final = {
    "max_num_seqs": "trtllm_max_batch_size_static",
    "max_num_batched_tokens": "trtllm_max_num_tokens_runtime",
    "num_gpu_blocks": "trtllm_kv_cache_max_blocks",
    "block_size": "trtllm_kv_cache_tokens_per_block",
}


class TensorRtLlm(EngineAdapter):
    """`trtllm-serve`'s OpenAI server. It says nothing of a request in its answer."""

    name: ClassVar[str] = "tensorrt_llm"
    title: ClassVar[str] = "TensorRT-LLM"
    basis: ClassVar[Basis] = Basis.READ_IN_SOURCE
    versions: ClassVar[str] = "source of 2026"
    owners: ClassVar[tuple[str, ...]] = ("tensorrt_llm",)
    metrics_path: ClassVar[str | None] = "/prometheus/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = TENSORRT_LLM_METRICS
    version_path: ClassVar[str | None] = "/version"
    signals: ClassVar[SignalTable] = {
        "running": names("trtllm_num_requests_running"),
        "waiting": names("trtllm_num_requests_waiting"),
        "kv_usage": names("trtllm_kv_cache_utilization"),
        "prompt_tokens_total": names("trtllm_prompt_tokens_total", "trtllm_prompt_tokens"),
        "generation_tokens_total": names("trtllm_generation_tokens_total", "trtllm_generation_tokens"),
        "prefix_hit_tokens_total": names("trtllm_prompt_cached_tokens_total"),
        "queue_seconds_total": names("trtllm_request_queue_time_seconds_sum"),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names; its `Server` header says only `uvicorn`."""
        _ = headers
        if any(name.startswith(PREFIX) for name in metric_names):
            return Detection(self.name, "", "metric names trtllm_*", 3)
        return None

    def read_info_metrics(self, scrape: Scrape) -> dict[str, Fact]:
        """From its info metrics and the gauges that never change."""
        out: dict[str, Fact] = {}
        for key, metric in _GAUGES.items():
            value = scrape.largest(metric)
            if value is not None and value > 0:
                out[key] = Fact(int(value), metric)
        for metric, fields in _INFO.items():
            found = scrape.samples.get(metric)
            if found:
                out |= take(metric, found[0].labels, fields)
        return out
