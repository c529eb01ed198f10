"""What is predicted of each lane, and how far it was from what came: gauges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.export.prometheus import GatewayMetrics

_WAIT: Final = "tailrace_predicted_wait_seconds"
_ERRORS: Final = {
    "predicted_wait_error": "tailrace_predicted_wait",
    "predicted_length_error": "tailrace_predicted_output",
}
"""Member of a lane's view -> prefix of its metrics."""


def show_predictions(metrics: GatewayMetrics, lanes: Mapping[str, Mapping[str, Any]]) -> None:
    """`lanes`: the views of `Admission.snapshot`. What is not known yet has no series."""
    metrics.clear(_WAIT)
    for prefix in _ERRORS.values():
        for what in ("error_ratio", "coverage_ratio", "answers"):
            metrics.clear(f"{prefix}_{what}")
    for lane, view in lanes.items():
        if view.get("predicted_wait_ms") is not None:
            metrics.gauge(_WAIT, view["predicted_wait_ms"] / 1e3, lane=lane)
        for member, prefix in _ERRORS.items():
            error = view.get(member)
            if error and error["n"]:
                metrics.gauge(f"{prefix}_error_ratio", error["median"], lane=lane)
                metrics.gauge(f"{prefix}_coverage_ratio", error["coverage"], lane=lane)
                metrics.gauge(f"{prefix}_answers", error["n"], lane=lane)
