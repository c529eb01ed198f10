"""Metrics of the degradation ladder and of the gaps that press it."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

LADDER_METRICS: Final = (
    Metric(
        name="tailrace_degradation_step",
        kind="gauge",
        labels=(),
        unit="rungs",
        merge="max",
        definition="Rungs of the degradation ladder in force; 0: nothing is given up. Absent while the ladder is off.",
    ),
    Metric(
        name="tailrace_degradation_steps_total",
        kind="counter",
        labels=("direction",),
        unit="steps",
        definition="Steps of the ladder: up gives one more thing up, down takes one back.",
    ),
    Metric(
        name="tailrace_gap_events_total",
        kind="counter",
        labels=("lane", "action"),
        unit="events",
        definition="Gaps in mid-stream beyond the limit of their lane, by what the lane has done then.",
    ),
)
