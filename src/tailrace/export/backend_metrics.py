"""Metrics of the choice among backends: who has how much work, who is left alone, what is sent again."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

__all__ = ["BACKEND_METRICS"]

BACKEND_METRICS: Final = (
    Metric(
        name="tailrace_backend_outstanding_requests",
        kind="gauge",
        labels=("backend",),
        unit="requests",
        definition="Requests that are with the backend, or on their way to it.",
    ),
    Metric(
        name="tailrace_backend_outstanding_tokens",
        kind="gauge",
        labels=("backend",),
        unit="tokens",
        definition="Their work, as far as it can be told beforehand: prompt and output tokens.",
    ),
    Metric(
        name="tailrace_backend_breaker_state",
        kind="gauge",
        labels=("backend",),
        unit="state",
        merge="max",
        definition="0 closed, 1 half open (the next request is a probe), 2 open; of several workers the worst. An open "
        "breaker keeps requests away only while another backend can serve.",
    ),
    Metric(
        name="tailrace_backend_breaker_opened_total",
        kind="counter",
        labels=("backend",),
        unit="times",
        definition="How often the breaker opened, over all workers.",
    ),
    Metric(
        name="tailrace_backend_ejected",
        kind="gauge",
        labels=("backend",),
        unit="bool",
        merge="max",
        definition="1 while the backend gets nothing because it is much slower than the others at the same work.",
    ),
    Metric(
        name="tailrace_backend_ejections_total",
        kind="counter",
        labels=("backend",),
        unit="times",
        definition="How often that happened, over all workers.",
    ),
    Metric(
        name="tailrace_backend_retries_total",
        kind="counter",
        labels=("backend",),
        unit="attempts",
        definition="Attempts that failed at the backend and were made again, there or elsewhere.",
    ),
    Metric(
        name="tailrace_retries_denied_total",
        kind="counter",
        unit="attempts",
        definition="Retries that were not made because retry.budget had no room for them.",
    ),
    Metric(
        name="tailrace_retry_budget_left",
        kind="gauge",
        unit="attempts",
        definition="Retries that could be made at this moment.",
    ),
    Metric(
        name="tailrace_hedges_total",
        kind="counter",
        labels=("result",),
        unit="attempts",
        definition="Second attempts beside a slow first one, where hedge.enabled: made, won (those that answered "
        "first), denied (hedge.budget had no room).",
    ),
    Metric(
        name="tailrace_backend_skew_ratio",
        kind="gauge",
        labels=("stat",),
        unit="ratio",
        merge="max",
        definition="How unequal the backends' outstanding tokens per weight are, as a moving mean over the seconds "
        "with work: cv (standard deviation / mean; 0 is even) and max_over_mean (1 is even). Absent with one backend.",
    ),
    Metric(
        name="tailrace_affinity_requests_total",
        kind="counter",
        labels=("result",),
        unit="requests",
        definition="Requests with a session or a prompt's head to keep to: met went to the backend that is theirs, "
        "moved to another, because theirs could not serve or had too much work.",
    ),
)
