"""Gateways' own YAML: timers, retries and buffering of APISIX, Envoy, Istio, Higress, ingress controllers, Gateway API.

Settings are named `<gateway>.<what>` with the route as their scope; durations are ms. Defaults that decide (Envoy ends
a route after 15 s) are told where a route sets none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tailrace.diagnose.observed import Place, Setting
from tailrace.diagnose.readers.yaml_tree import Mapped, Node, scalar, texts_of, walk

__all__ = ["gateway_of", "gateway_settings", "has_timers", "span_ms"]

ENVOY_ROUTE_MS: Final = 15_000.0
"""What Envoy gives a route that sets no timeout."""
_KINDS: Final = {
    "VirtualService": "istio",
    "DestinationRule": "istio",
    "EnvoyFilter": "envoy",
    "HTTPRoute": "gateway_api",
    "GRPCRoute": "gateway_api",
    "BackendTrafficPolicy": "envoy",
    "ClientTrafficPolicy": "envoy",
    "ApisixRoute": "apisix",
    "ApisixUpstream": "apisix",
    "ApisixPluginConfig": "apisix",
    "Ingress": "ingress",
    "McpBridge": "higress",
    "WasmPlugin": "higress",
    "Middleware": "traefik",
    "IngressRoute": "traefik",
    "ServersTransport": "traefik",
    "HTTPProxy": "contour",
}
_TIMERS: Final = {
    "idle_timeout": "idle_timeout",
    "stream_idle_timeout": "idle_timeout",
    "http_idle_timeout": "idle_timeout",
    "idle": "idle_timeout",
    "request_timeout": "request_timeout",
    "http_request_timeout": "request_timeout",
    "stream_timeout": "stream_timeout",
    "request": "request_timeout",
    "backend_request": "request_timeout",
    "max_stream_duration": "request_timeout",
    "max_grpc_timeout": "request_timeout",
    "per_try_timeout": "per_try_timeout",
    "proxy_read_timeout": "read_timeout",
    "read_timeout": "read_timeout",
    "response_header_timeout": "read_timeout",
    "responding_timeouts": "read_timeout",
    "proxy_connect_timeout": "connect_timeout",
    "connect_timeout": "connect_timeout",
    "idle_conn_timeout": "connection_idle_timeout",
    "keepalive_timeout": "connection_idle_timeout",
}
_RETRIES: Final = frozenset({"attempts", "num_retries", "retries", "num_attempts"})
_ANNOTATION: Final = re.compile(
    r"(?P<who>nginx\.ingress\.kubernetes\.io|higress\.io|konghq\.com|nginx\.org|haproxy\.org|traefik\.\S+)/(?P<what>[\w.-]+)"
)
_ANNOTATED: Final = {
    "proxy-read-timeout": "proxy_read_timeout",
    "proxy-send-timeout": "proxy_send_timeout",
    "proxy-connect-timeout": "proxy_connect_timeout",
    "read-timeout": "proxy_read_timeout",
    "timeout": "request_timeout",
    "timeout-server": "read_timeout",
}
_FLAGS: Final = {"proxy-buffering": "proxy_buffering", "proxy-http-version": "proxy_http_version"}
_SPAN: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(us|ms|s|m|h|d)?", re.ASCII)
_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7, "": 1e3}


def gateway_of(document: Node, *, key: str = "") -> str:
    """Whose configuration a document is; empty where it is no gateway's."""
    if not isinstance(document, Mapped):
        return ""
    kind = scalar(document.get("kind"))
    if kind == "Ingress":
        noted = document.mapped("metadata", "annotations")
        return "higress" if noted is not None and any("higress.io" in name for name in noted.values) else "ingress"
    if kind:
        return _KINDS.get(kind, "")
    keys = document.values.keys()
    told = (
        ("higress", key == "higress" or {"downstream", "upstream"} <= keys),
        ("envoy", bool(keys & _ENVOY_KEYS)),
        ("apisix", bool(keys & _APISIX_KEYS) or _is_apisix(document)),
        ("traefik", bool(keys & _TRAEFIK_KEYS) or document.mapped("http", "routers") is not None),
        ("kong", _is_kong(document)),
        ("litellm", bool(keys & _LITELLM_KEYS)),
        ("gateway", "routes" in keys or any(_snake(name) in _TIMERS for name in keys)),
    )
    return next((name for name, is_it in told if is_it), "")


def has_timers(document: Mapped) -> bool:
    """Whether a timer of a route stands anywhere in a document that names no gateway."""
    return any(_snake(key) in _TIMERS for _, node in walk(document) for key in node.values)


_ENVOY_KEYS: Final = {"static_resources", "dynamic_resources", "virtual_hosts", "route_config", "filter_chains"}
_APISIX_KEYS: Final = {"apisix", "upstreams", "global_rules", "nginx_config"}
_LITELLM_KEYS: Final = {"litellm_settings", "router_settings", "general_settings", "model_list"}
_TRAEFIK_KEYS: Final = {"entryPoints", "serversTransport"}


def _is_kong(document: Mapped) -> bool:
    return any(isinstance(one, Mapped) and "read_timeout" in one.values for one in document.listed("services"))


def _is_apisix(document: Mapped) -> bool:
    return any(
        isinstance(one, Mapped) and one.values.keys() & {"upstream", "upstream_id", "plugins", "uris"}
        for one in document.listed("routes")
    )


def gateway_settings(document: Mapped, gateway: str, title: str, source: str) -> Iterable[Setting]:
    """Timers, retries and buffering, each with the route (virtual host, cluster, upstream) that it holds for."""
    yield Setting(name="gateway", value=gateway, scope=title, place=Place(source, document.line))
    names: dict[tuple[str, ...], str] = {}
    for path, node in walk(document):
        own = _name_of(node)
        if own:
            names.setdefault(path, own)
        around = own or _around(names, path)
        scope = " / ".join(filter(None, (title, "" if title.endswith(f" {around}") else around)))
        if path[-1:] == ("annotations",):
            yield from _annotations(node, scope, source)
            continue
        yield from _timers(node, path, gateway, scope, source)
        yield from _buffering(node, gateway, scope, source)
        if gateway == "envoy" and _ends_early(node):
            yield Setting(
                name="envoy.request_timeout",
                value=ENVOY_ROUTE_MS,
                unit="ms",
                scope=f"{scope} (default)",
                place=Place(source, node.line),
            )


def _name_of(node: Mapped) -> str:
    name = scalar(node.get("name")) or scalar(node.get("uri")) or scalar(node.get("id"))
    match = node.get("match")
    if not name and isinstance(match, Mapped):
        name = scalar(match.get("prefix", "path"))
    return name or " ".join(texts_of(node.get("uris", "hosts"))[:3])


def _around(names: dict[tuple[str, ...], str], path: tuple[str, ...]) -> str:
    return next((names[path[:end]] for end in range(len(path), 0, -1) if path[:end] in names), "")


def _timers(node: Mapped, path: tuple[str, ...], gateway: str, scope: str, source: str) -> Iterable[Setting]:
    for key, value in node.values.items():
        plain = _snake(key)
        place = Place(source, node.at(key))
        if plain in _RETRIES and isinstance(value, int) and not isinstance(value, bool):
            yield Setting(name=f"{gateway}.retries", value=float(value), scope=scope, place=place)
            continue
        what = _TIMERS.get(plain, "")
        inside = _snake(path[-1]) if path else ""
        if plain == "timeout" and isinstance(value, str | int | float):
            what = "request_timeout"
        elif inside == "timeout" and plain in {"read", "send", "connect"}:
            what = f"{plain}_timeout"
        elif plain in {"request", "idle"} and inside not in {"timeout", "timeouts"}:
            what = ""
        elif plain == "connection_idle_timeout":
            what = "connection_idle_timeout"
        ms = span_ms(value) if what else None
        if ms is not None:
            # APISIX and Higress count in seconds, Kong in milliseconds; text says its unit.
            bare = isinstance(value, int | float)
            yield Setting(
                name=f"{gateway}.{what}",
                value=ms / 1e3 if gateway == "kong" and bare else ms,
                unit="ms",
                scope=scope,
                place=place,
            )


def _buffering(node: Mapped, gateway: str, scope: str, source: str) -> Iterable[Setting]:
    for key, value in node.values.items():
        plain = _snake(key)
        place = Place(source, node.at(key))
        if plain == "proxy_buffering" and isinstance(value, Mapped):
            # APISIX' plugin: `proxy-buffering: {disable_proxy_buffering: true}`.
            off = value.get("disable_proxy_buffering") is True
            yield Setting(name=f"{gateway}.proxy_buffering", value="off" if off else "on", scope=scope, place=place)
        elif plain in {"proxy_buffering", "response_buffering"} and isinstance(value, str | bool):
            on = scalar(value).lower() in {"on", "true", "yes"}
            yield Setting(name=f"{gateway}.proxy_buffering", value="on" if on else "off", scope=scope, place=place)
        elif plain == "buffering" and isinstance(value, Mapped) and gateway == "traefik":
            yield Setting(name="traefik.proxy_buffering", value="on", scope=scope, place=place)
    if gateway == "envoy" and scalar(node.get("name")) == "envoy.filters.http.buffer":
        yield Setting(name="envoy.request_buffering", value="on", scope=scope, place=Place(source, node.line))


def _ends_early(node: Mapped) -> bool:
    """A route of Envoy's to a cluster without a timeout of its own."""
    action = node.get("route")
    return (
        isinstance(action, Mapped)
        and bool(action.values.keys() & {"cluster", "weighted_clusters", "cluster_header"})
        and "timeout" not in action.values
        and "max_stream_duration" not in action.values
    )


def _annotations(node: Mapped, scope: str, source: str) -> Iterable[Setting]:
    for key, value in node.values.items():
        found = _ANNOTATION.fullmatch(key)
        if found is None:
            continue
        place = Place(source, node.at(key))
        owner = "nginx" if "nginx" in found["who"] else "higress" if "higress" in found["who"] else "ingress"
        timer = _ANNOTATED.get(found["what"])
        flag = _FLAGS.get(found["what"])
        ms = span_ms(value) if timer else None
        if timer and ms is not None:
            yield Setting(name=f"{owner}.{timer}", value=ms, unit="ms", scope=scope, place=place)
        elif flag:
            yield Setting(name=f"{owner}.{flag}", value=scalar(value).lower(), scope=scope, place=place)


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower().replace("-", "_")


def span_ms(value: Node) -> float | None:
    """A duration (ms): `60s`, `1m30s`, or a bare number of seconds; `None` for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) * 1e3 if 0 <= value < 1e9 else None
    text = scalar(value).strip().lower()
    if not text or len(text) > 64 or _SPAN.sub("", text).strip():
        return None
    return sum(float(number) * _MS[unit] for number, unit in _SPAN.findall(text))
