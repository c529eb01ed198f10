"""The configuration's keys for gRPC, judged without importing it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from urllib.parse import urlsplit

from tailrace.model.errors import ConfigError


def check_grpc(*, listen: str | None, targets: Sequence[str | None], message_bytes: int, where: str) -> None:
    """Refuse half a configuration, sizes that cannot be, an installation without grpcio. Raises `ConfigError`."""
    named = [(index, target) for index, target in enumerate(targets) if target is not None]
    for index, target in named:
        grpc_target(target, place=f"{where}: backends[{index}].grpc_url")
    if len(named) > 1:
        raise ConfigError(
            "several backends have a grpc_url, and gRPC goes to one engine",
            place=f"{where}: backends[{named[1][0]}].grpc_url",
            remedy="Leave it out of all but one backend, or run one gateway for each.",
        )
    if bool(named) == (listen is None):
        absent = "grpc_listen" if named else "backends[0].grpc_url"
        raise ConfigError(
            "gRPC has only one of its two ends",
            place=f"{where}: {absent}",
            remedy='Set both: `grpc_listen: 0.0.0.0:8081` and `grpc_url: "HOST:8001"` of the backend; or neither.',
        )
    if message_bytes < 1 or message_bytes >= 1 << 31:
        raise ConfigError(
            f"{message_bytes} bytes are no size of a gRPC message",
            place=f"{where}: limits.grpc_message_bytes",
            remedy="Write a number below 2147483648, where Triton's own limit is.",
        )
    if listen is not None and importlib.util.find_spec("grpc") is None:
        raise ConfigError(
            "gRPC needs the package grpcio, which is not installed",
            place=f"{where}: grpc_listen",
            remedy="Run `pip install 'tailrace[grpc]'`, or leave out grpc_listen and grpc_url.",
        )


def grpc_target(url: str, *, place: str = "grpc_url") -> tuple[str, bool]:
    """`10.0.0.5:8001`, `grpc://HOST:PORT`, `grpcs://HOST:PORT` -> (HOST:PORT, whether TLS). Raises `ConfigError`."""
    scheme, split, rest = url.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        sound = bool(parts.hostname) and bool(parts.port) and parts.netloc == rest and "@" not in rest
    except ValueError:
        sound = False
    if not sound or not rest.isascii() or (split and scheme not in ("grpc", "grpcs")):
        raise ConfigError(
            f"{url!r} is no gRPC address",
            place=place,
            remedy='Write HOST:PORT, for example "10.0.0.5:8001", or grpcs://HOST:PORT for TLS.',
        )
    return rest, scheme == "grpcs"
