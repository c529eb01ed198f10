"""NVIDIA Dynamo's front end, which speaks OpenAI before engines of any kind. Names read in its source, not run.

`dynamo_frontend_queued_requests` counts every request without a first token, those in prefill among them: it is no
queue and is not taken for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from tailrace.engines.base import Basis, Detection, EngineAdapter
from tailrace.engines.facts import Fact
from tailrace.engines.metric_names.dynamo import DYNAMO_METRICS
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.prometheus_text import Scrape
from tailrace.engines.signals import SignalTable, names

_FRONT: Final = "dynamo_frontend_"
_GAUGES: Final = {
    "max_num_seqs": "model_max_num_seqs",
    "max_num_batched_tokens": "model_max_num_batched_tokens",
    "max_model_len": "model_context_length",
    "block_size": "model_kv_cache_block_size",
    "num_gpu_blocks": "model_total_kv_blocks",
}


class Dynamo(EngineAdapter):
    """Dynamo's HTTP front end; the engines' own metrics are on ports of their own."""

    name: ClassVar[str] = "dynamo"
    title: ClassVar[str] = "Dynamo"
    basis: ClassVar[Basis] = Basis.READ_IN_SOURCE
    versions: ClassVar[str] = "1.6.1"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = ("dynamo_",)
    metric_names: ClassVar[MetricNames | None] = DYNAMO_METRICS
    signals: ClassVar[SignalTable] = {
        "running": names(f"{_FRONT}inflight_requests"),
        "waiting": names(f"{_FRONT}router_queue_pending_requests"),
        "prompt_tokens_total": names(f"{_FRONT}input_sequence_tokens_sum"),
        "generation_tokens_total": names(f"{_FRONT}output_tokens_total"),
        "prefix_hit_tokens_total": names(f"{_FRONT}cached_tokens_sum"),
        "queue_seconds_total": names("dynamo_request_plane_queue_seconds_sum"),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names. It wins over an engine whose names a worker behind it may re-export."""
        _ = headers
        if any(name.startswith(_FRONT) for name in metric_names):
            return Detection(self.name, "", f"metric names {_FRONT}*", 4)
        return None

    def read_info_metrics(self, scrape: Scrape) -> dict[str, Fact]:
        """From the gauges that repeat the configuration of the engines behind it."""
        out: dict[str, Fact] = {}
        for key, metric in _GAUGES.items():
            value = scrape.largest(f"{_FRONT}{metric}")
            if value is not None and value > 0:
                out[key] = Fact(int(value), f"{_FRONT}{metric}")
        return out
