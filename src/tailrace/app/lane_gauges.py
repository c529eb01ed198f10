"""What each lane holds in tokens, in prefill, and of how many tenants: gauges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.export.prometheus import GatewayMetrics
from tailrace.govern.attainment import Attainment

_TOKENS: Final = {
    "running": "running_tokens",
    "queued": "queued_tokens",
    "kv": "running_kv_tokens",
    "prefill": "prefill_tokens",
}
"""State -> member of a lane's view."""
_COUNTS: Final = {
    "tailrace_lane_prefill_requests": "prefill_requests",
    "tailrace_lane_tenants_waiting": "tenants_waiting",
}


def show_lanes(metrics: GatewayMetrics, lanes: Mapping[str, Mapping[str, Any]]) -> None:
    """`lanes`: the views of `Admission.snapshot`."""
    for name in ("tailrace_lane_tokens", "tailrace_lane_burn_rate", *_COUNTS):
        metrics.clear(name)
    for lane, view in lanes.items():
        for state, member in _TOKENS.items():
            metrics.gauge("tailrace_lane_tokens", view[member], lane=lane, state=state)
        for name, member in _COUNTS.items():
            metrics.gauge(name, view[member], lane=lane)
        for objective, windows in view.get("burn_rate", {}).items():
            for window, rate in windows.items():
                metrics.gauge("tailrace_lane_burn_rate", rate, lane=lane, objective=objective, window=window)


def show_attainment(metrics: GatewayMetrics, lanes: Mapping[str, Attainment]) -> None:
    """How many requests of each lane met its objectives so far."""
    for lane, seen in lanes.items():
        for met, count in (("true", seen.met), ("false", seen.requests - seen.met)):
            metrics.counter("tailrace_lane_objective_requests_total", count, lane=lane, met=met)
