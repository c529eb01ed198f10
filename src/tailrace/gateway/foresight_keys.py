"""The configuration's keys for predictions that clients are told."""

from __future__ import annotations

from tailrace.gateway.config_values import Duration, Section
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS


class PredictionsConfig(Section):
    """What clients are told of their wait before it is over."""

    headers: bool = True
    """`x-tailrace-predicted-wait-ms` on answers to requests that waited or were refused, and
    `x-tailrace-predicted-duration-ms: LOW-HIGH` once enough requests of the lane have ended."""
    comments: Duration | None = None
    """Tell a stream that waits its place in the queue, so often, in SSE comments; absent: never. The first of them
    sends the status 200, before the engine has said anything: whatever goes wrong later is an error event in it."""


def check_predictions(predictions: PredictionsConfig, *, place: str) -> None:
    """Refuse a pace that is no pace. Raises `ConfigError`."""
    if predictions.comments is not None and predictions.comments < 100 * MS:
        raise ConfigError(
            "a comment every few milliseconds would cost more than it tells",
            place=f"{place}.comments",
            remedy="Write at least `100ms`, for example `1s`; leave the key out for none.",
        )
