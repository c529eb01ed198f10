"""The configuration's keys for traces, judged without importing gRPC."""

from __future__ import annotations

import importlib.util
from typing import Final

from tailrace.gateway.config_sections import TracesConfig
from tailrace.model.errors import ConfigError

_LARGEST: Final = 256 * 1024 * 1024


def check_traces(traces: TracesConfig, *, place: str) -> None:
    """Refuse shares and bounds that cannot be, and an installation without grpcio. Raises `ConfigError`."""
    if not 0.0 <= traces.share <= 1.0:
        raise ConfigError(
            f"{traces.share} is no share",
            place=f"{place}.share",
            remedy="Write a number from 0 to 1; 0.01 has the engine trace one request in a hundred.",
        )
    if not 0.0 <= traces.per_second <= 1e6:
        raise ConfigError(
            f"{traces.per_second} a second cannot be",
            place=f"{place}.per_second",
            remedy="Write how many requests a second the engine may be asked to trace, for example 1.0; 0 for none.",
        )
    if not 1024 <= traces.body_bytes <= _LARGEST:
        raise ConfigError(
            f"{traces.body_bytes} bytes are no bound for a post of spans",
            place=f"{place}.body_bytes",
            remedy=f"Write a number from 1024 to {_LARGEST}; leave the key out for 4 MiB.",
        )
    if traces.grpc_listen is not None and importlib.util.find_spec("grpc") is None:
        raise ConfigError(
            "spans by gRPC need the package grpcio, which is not installed",
            place=f"{place}.grpc_listen",
            remedy="Run `pip install 'tailrace[grpc]'`, or have the engine send http/protobuf to /v1/traces.",
        )
