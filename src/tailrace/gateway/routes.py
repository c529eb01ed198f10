"""Paths: what is read, what is only relayed, what is never relayed.

The data port speaks the APIs listed here and answers 404 to the rest. The engines' own administration (sleeping,
flushing caches, loading adapters or models, aborting other people's requests) listens on the same port as their
inference API; it never crosses the gateway, whatever `passthrough` lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

PASSTHROUGH_LANE: Final = "passthrough"
"""Lane name of requests that admission does not see: model lists, health of Triton, `passthrough` paths."""


class RouteKind(Enum):
    """What the gateway does with a path."""

    READ = "read"
    """An inference call: admitted through a lane, read beside the relay."""
    RELAY = "relay"
    """Relayed and timed, neither admitted nor read."""
    SOCKET = "socket"
    """A WebSocket session: admitted through a lane, relayed both ways."""
    UNKNOWN = "unknown"
    DENIED = "denied"
    MALFORMED = "malformed"


class Route(NamedTuple):
    """A path and what to do with it. `endpoint` is a bounded name for records and metric labels."""

    kind: RouteKind
    endpoint: str


_READ: Final = {
    b"/v1/chat/completions": "/v1/chat/completions",
    b"/v1/completions": "/v1/completions",
    b"/v1/responses": "/v1/responses",
    b"/v1/embeddings": "/v1/embeddings",
    b"/v1/messages": "/v1/messages",
    b"/v1/audio/transcriptions": "/v1/audio/transcriptions",
    b"/v1/audio/translations": "/v1/audio/translations",
    b"/generate": "/generate",
    b"/generate_stream": "/generate_stream",
}
_TRITON_MODEL: Final = re.compile(
    rb"/v2/models/[^/]+(?:/versions/[^/]+)?(?P<call>/infer|/generate|/generate_stream|/ready|/config|/stats)?"
)
_TRITON_READ: Final = frozenset({b"/infer", b"/generate", b"/generate_stream"})

ADMITTED: Final = frozenset(_READ.values()) | {
    "/v1/realtime",
    *(f"/v2/models/{{model}}{call.decode('ascii')}" for call in _TRITON_READ),
}
"""Endpoints whose requests go through a lane, as a lane's `match` sees their path."""

_HEALTH: Final = frozenset({b"/health", b"/v2/health/live", b"/v2/health/ready"})
"""Whether the engine behind us is well: load tools and balancers ask it before they send anything."""

_DENIED: Final = frozenset(
    {
        # vLLM (development mode and scaling), SGLang
        b"/abort_request",
        b"/abort_requests",
        b"/sleep",
        b"/wake_up",
        b"/is_sleeping",
        b"/flush_cache",
        b"/clear_hicache_storage_backend",
        b"/reset_prefix_cache",
        b"/reset_mm_cache",
        b"/reset_encoder_cache",
        b"/collective_rpc",
        b"/start_profile",
        b"/stop_profile",
        b"/pause",
        b"/resume",
        b"/pause_generation",
        b"/continue_generation",
        b"/release_memory_occupation",
        b"/resume_memory_occupation",
        b"/scale_elastic_ep",
        b"/is_scaling_elastic_ep",
        b"/server_info",
        b"/get_server_info",
        b"/set_internal_state",
        b"/get_internal_state",
        b"/configure_logging",
        b"/set_trace_level",
        b"/open_session",
        b"/close_session",
        b"/freeze_gc",
        b"/slow_down",
        b"/start_expert_distribution_record",
        b"/stop_expert_distribution_record",
        b"/dump_expert_distribution_record",
        b"/load_lora_adapter",
        b"/load_lora_adapter_from_tensors",
        b"/unload_lora_adapter",
        b"/v1/load_lora_adapter",
        b"/v1/unload_lora_adapter",
        # llama.cpp
        b"/slots",
        b"/props",
        b"/lora-adapters",
        b"/models/load",
        b"/models/unload",
        # Tailrace's own simulated engine
        b"/knobs",
        # Triton
        b"/v2/logging",
        b"/v2/trace/setting",
    }
)
_DENIED_PREFIXES: Final = (
    b"/slots/",
    b"/update_weights",
    b"/init_weight",
    b"/start_weight",
    b"/finish_weight",
    b"/destroy_weight",
    b"/get_weights",
    b"/remote_instance",
    b"/v2/repository",
    b"/v2/systemsharedmemory",
    b"/v2/cudasharedmemory",
)

_VERSION: Final = re.compile(rb"^/v\d+(?=/(?!models/))")
"""Engines mount the same call with and without it. Behind `/v1/models/` stands a model's name, be it `load`."""


def route(target: bytes, passthrough: Sequence[str] = ()) -> Route:
    """Decide for a request target in origin form (`/path?query`); the query does not matter."""
    path = target.partition(b"?")[0]
    known = _READ.get(path)
    if known is not None:
        return Route(RouteKind.READ, known)
    plain = unquote_to_bytes(path)
    if _ambiguous(path, plain):
        return Route(RouteKind.MALFORMED, "")
    bare = plain.rstrip(b"/").lower() or b"/"
    if _denied(bare):
        # Named after its API, whose clients read errors in a shape of their own.
        return Route(RouteKind.DENIED, "/v2" if bare.startswith(b"/v2/") else "")
    return _relayed(bare) or _passed(plain.decode("utf-8", "replace"), passthrough)


def _denied(bare: bytes) -> bool:
    """Whether a path is the engines' own, also under an API version, or once it is decoded again by somebody."""
    while True:
        versionless = _VERSION.sub(b"", bare, count=1)
        if bare in _DENIED or versionless in _DENIED:
            return True
        if bare.startswith(_DENIED_PREFIXES) or versionless.startswith(_DENIED_PREFIXES):
            return True
        if bare.endswith(b"/trace/setting"):
            return True
        again = unquote_to_bytes(bare).rstrip(b"/").lower()
        if again == bare:
            return False
        bare = again


def _ambiguous(path: bytes, plain: bytes) -> bool:
    """Whether two readers could resolve the path differently: `/v1/x/../sleep`, `//sleep`, `/%2e%2e/sleep`."""
    return (
        not plain.startswith(b"/")
        or b"//" in plain
        or b"\\" in plain
        or b"\0" in plain
        or b"#" in path
        or b"%2f" in path.lower()
        or any(segment in (b".", b"..") for segment in plain.split(b"/"))
    )


def _relayed(bare: bytes) -> Route | None:  # noqa: PLR0911  (one return a family of paths)
    if bare == b"/v1/models" or bare.startswith(b"/v1/models/"):
        return Route(RouteKind.RELAY, "/v1/models")
    if bare == b"/v1/realtime":
        return Route(RouteKind.SOCKET, "/v1/realtime")
    if bare.startswith(b"/v1/responses/"):
        return Route(RouteKind.RELAY, "/v1/responses/{id}")
    if bare in _HEALTH:
        return Route(RouteKind.RELAY, bare.decode("ascii"))
    if bare == b"/v2" or bare.startswith(b"/v2/"):
        model = _TRITON_MODEL.fullmatch(bare)
        if model is None:
            return Route(RouteKind.RELAY, "/v2")
        call = model["call"] or b""
        kind = RouteKind.READ if call in _TRITON_READ else RouteKind.RELAY
        return Route(kind, "/v2/models/{model}" + call.decode("ascii"))
    return None


def _passed(text: str, passthrough: Sequence[str]) -> Route:
    for pattern in passthrough:
        if text == pattern or (pattern.endswith("*") and text.startswith(pattern[:-1])):
            return Route(RouteKind.RELAY, pattern)
    return Route(RouteKind.UNKNOWN, "")
