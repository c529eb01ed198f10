"""The metrics of what lanes hold in tokens; part of `metric_table`."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

LANE_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="tailrace_lane_tokens",
        kind="gauge",
        labels=("lane", "state"),
        unit="tokens",
        definition="Tokens of a lane: `running` and `queued` are prompt and predicted output; `kv` is what those that "
        "run may come to hold in the KV cache; `prefill` is the prompts whose first token has not come.",
    ),
    Metric(
        name="tailrace_lane_prefill_requests",
        kind="gauge",
        labels=("lane",),
        unit="requests",
        definition="Requests between their admission and their first token.",
    ),
    Metric(
        name="tailrace_lane_tenants_waiting",
        kind="gauge",
        labels=("lane",),
        unit="tenants",
        merge="max",
        definition="Tenants that wait in the lane, of one process.",
    ),
)
