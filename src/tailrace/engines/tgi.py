"""TGI: timings in response headers, errors under wrong codes. Read in the source of 3.3.6-dev0, not run.

What it says of one request stands in headers, so only an answer in one piece has it: a stream's head leaves before the
request has been looked at. `x-time-per-token` is the inference divided by the tokens, the prefill among them, so it
does not tell prefill and decode apart; nothing of TGI's does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from tailrace.engines.base import Basis, Detection, EngineAdapter, TimingFacts
from tailrace.engines.errors import Ending
from tailrace.engines.facts import Fact, take
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.metric_names.tgi import TGI_METRICS
from tailrace.engines.said import header_ns
from tailrace.engines.signals import SignalTable, names
from tailrace.engines.tgi_generate import TGI_GENERATE
from tailrace.measure.dialect import Dialect, EngineFault
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.openai import decode_leniently
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS

PREFIX: Final = "tgi_"
_ROUTER: Final = "text-generation-router"
_FIELDS: Final = {
    "version": "version",
    "model": "model_id",
    "dtype": "model_dtype",
    "device": "model_device_type",
    "max_input_len": "max_input_tokens",
    "max_model_len": "max_total_tokens",
    "max_num_batched_tokens": "max_batch_total_tokens",
    "max_queued": "max_concurrent_requests",
}
"""The precision was in `/info` until version 2.0."""
_OLD_FIELDS: Final = {"max_input_len": "max_input_length"}
_STAGES: Final = {"preprocess": "x-validation-time", "queue": "x-queue-time"}


class Tgi(EngineAdapter):
    """Hugging Face's text-generation-inference, which its makers keep in maintenance mode."""

    name: ClassVar[str] = "tgi"
    title: ClassVar[str] = "TGI"
    basis: ClassVar[Basis] = Basis.READ_IN_SOURCE
    versions: ClassVar[str] = "3.3.6-dev0"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = TGI_METRICS
    version_path: ClassVar[str | None] = "/info"
    timing_headers: ClassVar[frozenset[bytes]] = frozenset(
        {b"x-validation-time", b"x-queue-time", b"x-inference-time", b"x-time-per-token", b"x-total-time"}
    )
    signals: ClassVar[SignalTable] = {
        "running": names("tgi_batch_current_size"),
        "waiting": names("tgi_queue_size"),
        "prompt_tokens_total": names("tgi_request_input_length_sum"),
        "generation_tokens_total": names("tgi_request_generated_tokens_sum"),
        "queue_seconds_total": names("tgi_request_queue_duration_sum"),
    }
    """Its token sums rise when a request ends, not while it runs."""

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names, or by a header that its answers have."""
        if any(name.startswith("tgi_request_") or name == "tgi_queue_size" for name in metric_names):
            return Detection(self.name, "", "metric names tgi_*", 3)
        if "x-compute-type" in headers:
            return Detection(self.name, "", "header x-compute-type", 2)
        return None

    def recognise(self, path: str, body: bytes) -> Detection | None:
        """By the router that `/info` names."""
        said = decode_leniently(body) if path == "/info" else None
        if isinstance(said, dict) and said.get("router") == _ROUTER:
            return Detection(self.name, self.version(body), f"/info: router {_ROUTER}", 3)
        return None

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """From `/info`. The quantisation is in none of its answers."""
        said = decode_leniently(body)
        if not isinstance(said, dict):
            return {}
        return take(path, said, _OLD_FIELDS) | take(path, said, _FIELDS)

    def dialect(self, path: str) -> Dialect:
        """Its own routes have a shape of their own."""
        route = path.partition("?")[0].rstrip("/")
        native = route.endswith(("/generate", "/generate_stream")) and "/v2/" not in route
        return TGI_GENERATE if native else super().dialect(path)

    def status(self, fault: EngineFault, ending: Ending) -> int:
        """By its words: the code inside a stream is 422 whatever happened."""
        return ending.http_status or super().status(fault, ending)

    def timings(self, facts: TimingFacts, said: Mapping[str, Any] | None) -> EngineTimings:
        """From the headers of an answer in one piece, in whole milliseconds."""
        _ = said
        found: dict[str, int] = {}
        sources: dict[str, str] = {}
        for stage, header in _STAGES.items():
            value = header_ns(facts.said_headers, header, MS)
            if value is not None:
                found[stage] = value
                sources[stage] = source(SourceKind.REPORTED, f"header {header}")
        if not found:
            return NO_TIMINGS
        return EngineTimings(queue_ns=found.get("queue"), preprocess_ns=found.get("preprocess"), sources=sources)
