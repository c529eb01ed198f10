"""Triton: `generate_stream` without an end marker, `nv_` metrics. Facts are of 2.51.

For streams its own durations end when `execute()` returns, long before the last token: only our clock counts, so the
adapter takes no timings from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

import msgspec

from tailrace.engines.base import Detection, EngineAdapter, RequestAdditions
from tailrace.engines.errors import Ending
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.metric_names.triton import TRITON_METRICS
from tailrace.engines.signals import SignalTable, names
from tailrace.measure.dialect import EngineFault
from tailrace.model.outcome import Reason

PREFIX: Final = "nv_"


class Triton(EngineAdapter):
    """Triton's HTTP server."""

    name: ClassVar[str] = "triton"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = TRITON_METRICS
    lower_priority_first: ClassVar[bool | None] = True
    health_path: ClassVar[str] = "/v2/health/ready"
    version_path: ClassVar[str | None] = "/v2"
    signals: ClassVar[SignalTable] = {
        "waiting": names("nv_inference_pending_request_count"),
        "queue_seconds_total": names("nv_inference_queue_duration_us", scale=1e-6),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names."""
        _ = headers
        if any(name.startswith("nv_inference_") for name in metric_names):
            return Detection(self.name, "", "metric names nv_inference_*", 3)
        return None

    def additions(self, path: str, body: Mapping[str, Any], request_id: str = "") -> RequestAdditions:
        """Our id as `id` on its own routes, which it echoes and traces."""
        if "/v2/" not in path:
            return super().additions(path, body, request_id)
        if not request_id or "id" in body:
            return RequestAdditions()
        return RequestAdditions({"id": request_id})

    def fault(self, fault: EngineFault, *, status: int | None = None, tokens_seen: bool = False) -> Ending:
        """An error object under status 200 comes from the model itself, which has run: `decode`."""
        ending = super().fault(fault, status=status, tokens_seen=tokens_seen)
        if status is None and ending.reason is Reason.ENGINE_ERROR:
            return msgspec.structs.replace(ending, stage="decode", retry_other=False)
        return ending

    def priority(self, rank: int) -> int:
        """1 is the highest; 0 would mean the default."""
        return rank + 1
