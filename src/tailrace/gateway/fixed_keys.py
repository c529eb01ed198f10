"""What of the configuration is read once, at the start."""

from __future__ import annotations

from typing import Final

from tailrace.gateway.balance_keys import engine_part
from tailrace.gateway.config import Config
from tailrace.gateway.tls import tls_shape
from tailrace.model.errors import InputError

_FIXED: Final = (
    "listen",
    "listen_mode",
    "admin",
    "workers",
    "admin_token",
    "grpc_listen",
    "limits.grpc_message_bytes",
    "total_running",
    "engine_room",
    "scrape",
    "signals",
    "tokens.tokenizers",
    "traces.body_bytes",
    "traces.grpc_listen",
    "records.dir",
    "records.queue",
    "records.seal_rows",
    "records.seal_after",
    "records.retention",
)


def check_change(old: Config, new: Config) -> None:
    """InputError where `new` changes what takes a restart."""
    for name in _FIXED:
        if _at(new, name) != _at(old, name):
            raise InputError(
                "cannot be changed while serving", place=name, remedy="Restart `tailrace serve` to change it."
            )
    if _fixed_of_backends(new, old.workers) != _fixed_of_backends(old, old.workers):
        raise InputError(
            "cannot be changed while serving: with `workers`, and for gRPC, engines are looked up at the start",
            place="backends",
            remedy="Send SIGUSR2 to the supervisor (`workers` above 1), or restart `tailrace serve`.",
        )
    if tls_shape(new) != tls_shape(old):
        raise InputError(
            "cannot be switched on or off, nor given other authorities, while serving",
            place="tls",
            remedy="Restart `tailrace serve` to change it; a new certificate in the same files needs none.",
        )


def _fixed_of_backends(config: Config, workers: int) -> object:
    """One process takes backends in and lets them go; shares of the work are never fixed."""
    if workers == 1:
        return [backend for backend in config.backends if backend.grpc_url is not None]
    return [engine_part(backend) for backend in config.backends]


def _at(config: Config, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
