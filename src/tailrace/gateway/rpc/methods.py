"""gRPC methods: what is read, what is only relayed, what is never relayed. The counterpart of `gateway.routes`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from tailrace.gateway.routes import Route, RouteKind

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"
STREAM_INFER: Final = SERVICE + "ModelStreamInfer"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"


class Shape(Enum):
    """How a method's messages travel."""

    UNARY = "unary"
    STREAM = "stream"
    """`ModelStreamInfer`: a stream of requests, each with its own answers."""
    TUNNEL = "tunnel"
    """Of unknown cardinality: both directions are relayed until they end."""


class Method(NamedTuple):
    """A method and what to do with it. The route's endpoint is a bounded name for records and metric labels."""

    route: Route
    shape: Shape
    unwell: bytes | None = None
    """A health check's answer when the engine cannot be asked: the message that says no."""


_RELAYED: Final = ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
_DENIED: Final = (
    "Repository",
    "SystemSharedMemory",
    "CudaSharedMemory",
    "XpuSharedMemory",
    "TraceSetting",
    "LogSettings",
)


def _relay(name: str, unwell: bytes | None = None) -> Method:
    return Method(Route(RouteKind.RELAY, name), Shape.UNARY, unwell)


METHODS: Final = {
    INFER: Method(Route(RouteKind.READ, INFER), Shape.UNARY),
    STREAM_INFER: Method(Route(RouteKind.READ, STREAM_INFER), Shape.STREAM),
    # An empty message is `live: false`, `ready: false`.
    SERVICE + "ServerLive": _relay(SERVICE + "ServerLive", b""),
    SERVICE + "ServerReady": _relay(SERVICE + "ServerReady", b""),
    # Field 1, NOT_SERVING.
    HEALTH_CHECK: _relay(HEALTH_CHECK, b"\x08\x02"),
    **{SERVICE + name: _relay(SERVICE + name) for name in _RELAYED},
}
_REFUSED: Final = Method(Route(RouteKind.DENIED, ""), Shape.UNARY)
_UNKNOWN: Final = Method(Route(RouteKind.UNKNOWN, ""), Shape.UNARY)


def method_of(name: str, passthrough: Sequence[str] = ()) -> Method:
    """Decide for `/package.Service/Method`. What administers the engine is refused, whatever `passthrough` lists."""
    known = METHODS.get(name)
    if known is not None:
        return known
    if name.startswith(SERVICE) and name.removeprefix(SERVICE).startswith(_DENIED):
        return _REFUSED
    for pattern in passthrough:
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return Method(Route(RouteKind.RELAY, pattern), Shape.TUNNEL)
    return _UNKNOWN
