"""The metrics of the response cache; part of `metric_table`."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

CACHE_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="tailrace_cache_requests_total",
        kind="counter",
        labels=("result",),
        unit="requests",
        definition="Requests of cached routes, by what the cache did: hit, semantic (a hit by meaning), shared "
        "(another request's answer as it came), miss, bypassed (said no-store or no-cache). Those served from it are "
        "in no metric of latency or tokens: no engine worked for them.",
    ),
    Metric(
        name="tailrace_cache_answers_total",
        kind="counter",
        labels=("fate",),
        unit="answers",
        definition="Answers of cached routes, by what became of them: stored, evicted (for want of room), expired, "
        "too_large, not_whole (an error, a cut, a cancel, a degraded answer).",
    ),
    Metric(
        name="tailrace_cache_bytes",
        kind="gauge",
        unit="bytes",
        definition="What the kept answers take, their overhead included; bounded by cache.max_bytes in each worker.",
    ),
    Metric(name="tailrace_cache_entries", kind="gauge", unit="answers", definition="Answers kept."),
    Metric(
        name="tailrace_cache_flights",
        kind="gauge",
        unit="answers",
        definition="Answers on their way that an identical request would follow.",
    ),
    Metric(
        name="tailrace_cache_embeddings_total",
        kind="counter",
        labels=("result",),
        unit="questions",
        definition="Questions whose meaning was asked for: answered, late, failed, busy (not asked, too many at once).",
    ),
)
