"""Where the canary and the shadow stand, as metrics of the gateway."""

from __future__ import annotations

from typing import Final

from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.gateway import Gateway
from tailrace.govern.canary import Canary
from tailrace.govern.canary_policy import CanaryState

_LIVE: Final = (
    "tailrace_canary_share",
    "tailrace_canary_state",
    "tailrace_canary_evidence",
    "tailrace_canary_slowdown",
)


def show_routes(gateway: Gateway, metrics: GatewayMetrics) -> None:
    """Set everything that is known; nothing where there are no routes."""
    routing = gateway.routing
    if routing is None:
        return
    for name in _LIVE:
        metrics.clear(name)
    if routing.canary is not None:
        _show_canary(metrics, routing.canary, waiting=routing.waiting)
    shadow = routing.shadow
    if shadow is not None:
        for outcome, count in shadow.outcomes.items():
            metrics.counter("tailrace_shadow_requests_total", count, outcome=outcome)
        metrics.counter("tailrace_shadow_skipped_total", shadow.skipped)
        metrics.gauge("tailrace_shadow_in_flight", len(shadow.copies))


def _show_canary(metrics: GatewayMetrics, canary: Canary, *, waiting: bool) -> None:
    metrics.gauge("tailrace_canary_share", 0.0 if waiting else canary.share)
    for state in CanaryState:
        metrics.gauge("tailrace_canary_state", int(state is canary.state), state=state.value)
    for route, heard in zip(("stable", "canary"), canary.heard, strict=True):
        metrics.counter("tailrace_canary_requests_total", heard, route=route)
    for kind, count in canary.changes.items():
        metrics.counter("tailrace_canary_changes_total", count, kind=kind)
    for finding in canary.findings:
        metrics.gauge("tailrace_canary_evidence", max(0.0, finding.z / finding.bound), test=finding.test)
        if finding.low is not None:
            metrics.gauge("tailrace_canary_slowdown", finding.effect, metric=finding.test.partition(".")[0])
