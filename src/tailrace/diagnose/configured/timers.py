"""Timers that end a request, whoever has them: proxies, gateways, meshes, clients, or a form that states them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit

__all__ = ["Timer", "alike", "timers"]

_NAME: Final = re.compile(
    r"(?:^|[._ ])(?P<what>(?:proxy_|grpc_|fastcgi_|uwsgi_|upstream_|stream_|http_|sock_|route_|request_|per_try_|"
    r"client_|gateway_|lb_|load_balancer_|ingress_|server_|backend_)*(?:read|idle|request|response|send|total)?_?"
    r"(?:idle_|read_)?timeout)(?P<unit>_ms|_s|_sec|_seconds)?$"
)
_NO_ENDS: Final = re.compile(
    r"connect|keepalive|probe|health|liveness|readiness|startup|connection_idle|next_upstream|pool|queue|ttft|kill_after"
)
_UNITS: Final = {"_ms": "ms", "_s": "s", "_sec": "s", "_seconds": "s"}
_CLIENTS: Final = ("client", "openai", "sdk", "python")
NEAR: Final = 0.01
NEAR_MS: Final = 60.0


class Timer(NamedTuple):
    """One timer."""

    name: str
    ms: float
    kind: str
    """`idle` (counts from the last byte), `read` (the same, of an upstream), or `total`."""
    owner: str
    """`gateway`, or `client`."""
    scope: str
    place: str
    default: bool
    """Nobody set it."""


def timers(observed: Observed) -> list[Timer]:
    """All of them, in the order of the evidence. A timer of 0 is switched off, and so none."""
    unset = {
        (item.scope, f"{item.name.partition('.')[0]}.{name}")
        for item in observed.settings
        if item.name.endswith(".unset") and isinstance(item.value, list)
        for name in item.value
    }
    found = (_timer(item, unset) for item in observed.settings)
    return [timer for timer in found if timer is not None]


def _timer(setting: Setting, unset: set[tuple[str, str]]) -> Timer | None:
    name = setting.name.lower().replace("-", "_")
    match = _NAME.search(name)
    value = setting.number
    if match is None or value is None or value <= 0 or _NO_ENDS.search(name):
        return None
    unit = setting.unit or _UNITS.get(match["unit"] or "", "")
    # A form that says `timeout: 60` means seconds; nobody waits an hour for `60000` of them.
    ms = in_unit(value, unit or ("s" if value < 10_000 else "ms"), "ms")
    if ms is None:
        return None
    what = match["what"]
    kind = "idle" if "idle" in what else "read" if "read" in what or "send" in what else "total"
    client = any(mark in name for mark in _CLIENTS)
    default = setting.scope.endswith("(default)") or (setting.scope, setting.name) in unset
    return Timer(
        setting.name,
        ms,
        kind,
        "client" if client else "gateway",
        setting.scope,
        str(setting.place) or "form",
        default,
    )


def alike(observed: Observed, ms: float, *, owner: str = "") -> list[Timer]:
    """The timers that an age of so many ms could come from, the nearest first."""
    near = [
        timer
        for timer in timers(observed)
        if (not owner or timer.owner == owner) and abs(timer.ms - ms) <= max(NEAR_MS, NEAR * timer.ms)
    ]
    return sorted(near, key=lambda timer: abs(timer.ms - ms))
