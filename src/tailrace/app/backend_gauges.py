"""How each backend stands and how even the work is: gauges and counters, set anew by each scrape."""

from __future__ import annotations

from typing import Any, Final

from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.backend import Backend
from tailrace.gateway.gateway import Gateway

_GAUGES: Final = (
    "tailrace_backend_outstanding_requests",
    "tailrace_backend_outstanding_tokens",
    "tailrace_backend_breaker_state",
    "tailrace_backend_ejected",
)


def show_backends(metrics: GatewayMetrics, gateway: Gateway, now: int) -> None:
    """A backend that is configured no longer does not stay for ever."""
    for name in _GAUGES:
        metrics.clear(name)
    balancing = gateway.backends.balancing
    for backend in gateway.backends:
        _set_standing(metrics, balancing.view(backend, now), backend)
    _set_balance(metrics, balancing.whole_view(now))


def _set_standing(metrics: GatewayMetrics, view: dict[str, Any], backend: Backend) -> None:
    name = backend.name
    metrics.gauge("tailrace_backend_outstanding_requests", backend.requests, backend=name)
    metrics.gauge("tailrace_backend_outstanding_tokens", backend.tokens, backend=name)
    metrics.gauge("tailrace_backend_breaker_state", view["breaker"]["code"], backend=name)
    metrics.counter("tailrace_backend_breaker_opened_total", view["breaker"]["opened_total"], backend=name)
    metrics.gauge("tailrace_backend_ejected", view["ejected"], backend=name)
    metrics.counter("tailrace_backend_ejections_total", view["ejections_total"], backend=name)
    metrics.counter("tailrace_backend_retries_total", view["retries_total"], backend=name)


def _set_balance(metrics: GatewayMetrics, view: dict[str, Any]) -> None:
    metrics.gauge("tailrace_retry_budget_left", view["retry_budget_left"])
    metrics.counter("tailrace_retries_denied_total", view["retries_denied_total"])
    for result in ("made", "won", "denied"):
        total = view["hedges_total" if result == "made" else f"hedges_{result}_total"]
        metrics.counter("tailrace_hedges_total", total, result=result)
    met = view["affinity_met_total"]
    metrics.counter("tailrace_affinity_requests_total", met, result="met")
    metrics.counter("tailrace_affinity_requests_total", view["affinity_asked_total"] - met, result="moved")
    for name, value in view["skew"].items():
        if value is not None:
            metrics.gauge("tailrace_backend_skew_ratio", value, stat=name.removeprefix("skew_"))
