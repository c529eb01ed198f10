"""The metrics of alarms and of streams that stand still; part of `metric_table`."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

ALERT_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="tailrace_alerts_firing",
        kind="gauge",
        labels=("lane", "objective", "severity"),
        unit="alerts",
        definition="Alarms of objectives in danger that are firing.",
    ),
    Metric(
        name="tailrace_alerts_total",
        kind="counter",
        labels=("lane", "objective", "severity"),
        unit="alerts",
        definition="Alarms that began.",
    ),
    Metric(
        name="tailrace_alert_deliveries_total",
        kind="counter",
        labels=("form", "result"),
        unit="messages",
        definition="Messages about alarms: delivered, failed after all tries, dropped because too many waited.",
    ),
    Metric(
        name="tailrace_stalls_in_flight_total",
        kind="counter",
        labels=("lane",),
        unit="stalls",
        definition="Streams that stood still, counted by the sweep that saw it while it lasted.",
    ),
)
