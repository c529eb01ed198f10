"""The metrics of what lanes hold in tokens; part of `metric_table`."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

LANE_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="tailrace_lane_limit",
        kind="gauge",
        labels=("lane", "limit"),
        unit="requests",
        merge="max",
        definition="The lane's limits as configured: running, queued.",
    ),
    Metric(
        name="tailrace_lane_objective_requests_total",
        kind="counter",
        labels=("lane", "met"),
        unit="requests",
        definition="Ended requests of a lane that met every objective of it (`true`), or did not (`false`): refused, "
        "cancelled, timed-out and failed ones did not. Its rate for `true` is the lane's goodput.",
    ),
    Metric(
        name="tailrace_lane_burn_rate",
        kind="gauge",
        labels=("lane", "objective", "window"),
        unit="ratio",
        merge="max",
        definition="Share of the lane's requests in the window (5m, 1h) that missed the objective, over the share that "
        "its quantile allows to miss: 1 spends the error budget exactly. Absent while nobody came.",
    ),
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
