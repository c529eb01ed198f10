"""Metrics of routes: the canary and the shadow."""

from __future__ import annotations

from typing import Final

from tailrace.export.metric import Metric

__all__ = ["ROUTE_METRICS"]

ROUTE_METRICS: Final = (
    Metric(
        name="tailrace_canary_share",
        kind="gauge",
        unit="ratio",
        merge="max",
        definition="Share of the sessions that the canary takes now; absent without a canary.",
    ),
    Metric(
        name="tailrace_canary_state",
        kind="gauge",
        labels=("state",),
        merge="max",
        definition="1 for the state in which the canary is: running, paused, pinned, promoted, rolled_back, aborted.",
    ),
    Metric(
        name="tailrace_canary_requests_total",
        kind="counter",
        labels=("route",),
        unit="requests",
        definition="Ended requests that the canary's comparison has heard of, by route: stable, canary.",
    ),
    Metric(
        name="tailrace_canary_changes_total",
        kind="counter",
        labels=("kind",),
        definition="What the canary did or was told: started, widened, held, regressed, rolled_back, promoted, ...",
    ),
    Metric(
        name="tailrace_canary_evidence",
        kind="gauge",
        labels=("test",),
        unit="ratio",
        merge="max",
        definition="How far each test is on its way to a rollback (z over the z that decides); 1 rolls back.",
    ),
    Metric(
        name="tailrace_canary_slowdown",
        kind="gauge",
        labels=("metric",),
        unit="ratio",
        merge="max",
        definition="By how much the canary's ttft, tpot, e2e are longer among like requests: 0.3 is 30 %.",
    ),
    Metric(
        name="tailrace_shadow_requests_total",
        kind="counter",
        labels=("outcome",),
        unit="requests",
        definition="Copies sent to a shadow's backends that have ended, by outcome; in no other request metric.",
    ),
    Metric(
        name="tailrace_shadow_skipped_total",
        kind="counter",
        unit="requests",
        definition="Copies that were not made: too many at once, or no shadow backend took requests.",
    ),
    Metric(
        name="tailrace_shadow_in_flight",
        kind="gauge",
        unit="requests",
        definition="Copies on their way or being answered.",
    ),
)
