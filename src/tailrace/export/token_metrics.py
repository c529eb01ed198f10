"""Metrics of token limits and of the counts that they are held against."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

__all__ = ["TOKEN_METRICS"]

TOKEN_METRICS: Final = (
    Metric(
        name="tailrace_prompts_truncated_total",
        kind="counter",
        labels=("lane", "model"),
        unit="requests",
        definition="Requests whose prompt was shortened to a token limit; their records have truncated_from.",
        of=lambda record: None if record.truncated_from is None else 1,
    ),
    Metric(
        name="tailrace_outputs_capped_total",
        kind="counter",
        labels=("lane", "model"),
        unit="requests",
        definition="Requests whose output was bounded lower than the client asked, or where it asked for nothing; "
        "their records have capped_to.",
        of=lambda record: None if record.capped_to is None else 1,
    ),
    Metric(
        name="tailrace_token_count_error_ratio",
        kind="gauge",
        labels=("model", "source", "quantile"),
        unit="ratio",
        merge="max",
        definition="How far our own counts of prompts (source: estimate, tokenizer) are from the engine's, relative to "
        "these: quantiles 0.5 and 0.95 of the last 256 requests that both counted.",
    ),
    Metric(
        name="tailrace_token_counts_compared_total",
        kind="counter",
        labels=("model", "source"),
        unit="requests",
        definition="Requests whose prompt both we and the engine have counted.",
    ),
)
"""Part of the one table in `metric_table`."""
