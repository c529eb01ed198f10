"""What the response cache says of itself, as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.export.prometheus import GatewayMetrics

_RESULTS: Final = {"hit": "hits", "semantic": "semantic", "shared": "shared", "miss": "misses", "bypassed": "bypassed"}
_FATES: Final = {
    "stored": "stores",
    "evicted": "evictions",
    "expired": "expired",
    "too_large": "too_large",
    "not_whole": "not_whole",
}


def show_cache(metrics: GatewayMetrics, view: Mapping[str, Any]) -> None:
    """Set the metrics from `CacheDesk.view()`."""
    for result, counter in _RESULTS.items():
        metrics.counter("tailrace_cache_requests_total", view[counter], result=result)
    for fate, counter in _FATES.items():
        metrics.counter("tailrace_cache_answers_total", view[counter], fate=fate)
    metrics.gauge("tailrace_cache_bytes", view["bytes"])
    metrics.gauge("tailrace_cache_entries", view["entries"])
    metrics.gauge("tailrace_cache_flights", view["in_flight"])
    embedding = view.get("embedding")
    if embedding is not None:
        for result in ("answered", "late", "failed", "busy"):
            metrics.counter("tailrace_cache_embeddings_total", embedding[result], result=result)
