"""The metrics of what is predicted of a lane, and of how far that was from what came; part of `metric_table`."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

PREDICTION_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="tailrace_predicted_wait_seconds",
        kind="gauge",
        labels=("lane",),
        unit="seconds",
        merge="max",
        definition="What the next arrival in the lane is predicted to wait; absent until a request of it has ended.",
    ),
    Metric(
        name="tailrace_predicted_wait_error_ratio",
        kind="gauge",
        labels=("lane",),
        unit="ratio",
        merge="max",
        definition="Median of |predicted - actual| / actual of the last 512 waits of more than a second, those of "
        "refused requests included: for them, until a place would have been theirs.",
    ),
    Metric(
        name="tailrace_predicted_wait_coverage_ratio",
        kind="gauge",
        labels=("lane",),
        unit="ratio",
        merge="min",
        definition="Share of these waits that lay within the predicted range; about 0.8 is aimed at.",
    ),
    Metric(
        name="tailrace_predicted_wait_answers",
        kind="gauge",
        labels=("lane",),
        unit="requests",
        definition="Waits on which the two figures above rest.",
    ),
    Metric(
        name="tailrace_predicted_output_error_ratio",
        kind="gauge",
        labels=("lane",),
        unit="ratio",
        merge="max",
        definition="Median of |predicted - actual| / actual of the output tokens of the last 512 completed requests.",
    ),
    Metric(
        name="tailrace_predicted_output_coverage_ratio",
        kind="gauge",
        labels=("lane",),
        unit="ratio",
        merge="min",
        definition="Share of their outputs that lay within the predicted range, from p10 to p90 of their class.",
    ),
    Metric(
        name="tailrace_predicted_output_answers",
        kind="gauge",
        labels=("lane",),
        unit="requests",
        definition="Completed requests on which these two rest.",
    ),
)
