"""What of the configuration is read once, at the start."""

from __future__ import annotations

from typing import Final

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
    "backends",
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
    if tls_shape(new) != tls_shape(old):
        raise InputError(
            "cannot be switched on or off, nor given other authorities, while serving",
            place="tls",
            remedy="Restart `tailrace serve` to change it; a new certificate in the same files needs none.",
        )


def _at(config: Config, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
