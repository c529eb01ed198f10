"""Deployment files: Kubernetes manifests and Compose files: probes, resources, engine options, and gateways' routes.

One file may hold several documents. Every setting carries the object it belongs to (`Deployment vllm / container
engine`) and its line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Observed, Place, Setting, Understood
from tailrace.diagnose.readers.containers import compose_settings, container_settings
from tailrace.diagnose.readers.facts import with_unit
from tailrace.diagnose.readers.format import Format, UnknownFormatError
from tailrace.diagnose.readers.gateway_routes import gateway_of, gateway_settings, has_timers
from tailrace.diagnose.readers.heading import snake
from tailrace.diagnose.readers.nginx_conf import looks_like_nginx, nginx_settings
from tailrace.diagnose.readers.yaml_tree import Mapped, Node, documents_of, read_yaml_text, scalar, walk
from tailrace.model.errors import InputError

__all__ = ["DEPLOY_YAML"]

_NAME: Final = "deployment YAML"
_KUBERNETES: Final = re.compile(r"^(?:apiVersion|kind)\s*:", re.MULTILINE)
_GATEWAY: Final = re.compile(
    r"^(?:static_resources|dynamic_resources|route_config|virtual_hosts|routes|upstreams|apisix|nginx_config|downstream|"
    r"services|http|plugins|global_rules|admin|clusters|listeners|filter_chains|x-[\w-]+|version|"
    r"model_list|litellm_settings|router_settings|general_settings)\s*:",
    re.MULTILINE,
)
_NESTED: Final = re.compile(
    r"^[^\S\n]{0,200}-?[^\S\n]{0,200}"
    r"(?:livenessProbe|readinessProbe|startupProbe|containers|virtual_hosts|virtualHosts|idle_timeout|"
    r"idleTimeout|proxy_read_timeout|perTryTimeout|stream_idle_timeout|max_stream_duration)\s*:",
    re.MULTILINE,
)
_RESOURCES: Final = re.compile(r"^[^\S\n]{0,200}resources\s*:\s*\n[^\S\n]+(?:limits|requests)\s*:", re.MULTILINE)
_OF_CONTAINERS: Final = ("resources", "livenessProbe", "readinessProbe", "startupProbe", "image", "args", "command")
_TEMPLATE: Final = re.compile(r"\{\{-?\s*[.$\w]")
_OWN: Final = re.compile(
    r"\A(?:[^\S\n]*(?:#[^\n]*)?\n|---[^\n]*\n)*"
    r"(?!(?:spec|metadata|status|rules)\s*:)[A-Za-z_][\w.-]{0,60}\s*:[^\n]*\n(?:[^\S\n]+[\w-]|[A-Za-z_]|#|\s*\n|-)"
)
"""A service's own configuration, whatever its keys are called; a part of a manifest is none."""
_MOST_OWN: Final = 200
_DEEPEST: Final = 6
_KEY: Final = re.compile(r"^[\w.-]+\s*:(?:\s|$)", re.MULTILINE)


def _matches(head: str, name: str) -> bool:
    if head.lstrip()[:1] in {"{", "[", "|", "<"}:
        return False
    if _KUBERNETES.search(head) and re.search(r"^kind\s*:", head, re.MULTILINE):
        return True
    if name.endswith((".yaml", ".yml")):
        return bool(_GATEWAY.search(head) or _NESTED.search(head) or _RESOURCES.search(head) or _OWN.search(head))
    return bool((_NESTED.search(head) or _RESOURCES.search(head)) and _KEY.search(head))


def _read(path: Path, name: str) -> Observed:
    settings: list[Setting] = []
    documents = documents_of(path)
    unknown: list[str] = []
    for number, document in enumerate(documents, start=1):
        found = list(_of_document(document, name))
        settings += found
        if not found:
            line = document.line if isinstance(document, Mapped) else 1
            kind = scalar(document.get("kind")) if isinstance(document, Mapped) else ""
            unknown.append(f"{line}: {kind or f'document {number}'} says nothing of timers, probes, limits or engines")
    if not settings and _TEMPLATE.search(path.read_text(encoding="utf-8-sig", errors="replace")):
        raise InputError(
            "this is a template, not YAML", place=str(path), remedy="Give what it becomes (`helm template …`)."
        )
    if not settings:
        raise UnknownFormatError(
            "nothing in it decides latency: no timer, probe, limit, route or engine",
            place=str(path),
            remedy="Give the manifest of the engine, or the route's of the gateway.",
        )
    return Observed(
        settings=settings,
        understood=[
            Understood(
                source=name,
                format=_NAME,
                understood=len(documents) - len(unknown),
                total=len(documents),
                what="documents",
                examples=unknown[:3],
            )
        ],
    )


def _of_document(document: Node, name: str) -> Iterable[Setting]:
    if not isinstance(document, Mapped):
        return
    kind = scalar(document.get("kind"))
    if kind == "List":
        for item in document.listed("items"):
            yield from _of_document(item, name)
        return
    if kind in {"ConfigMap", "Secret"}:
        yield from _config_map(document, name)
        return
    title = f"{kind} {scalar((document.mapped('metadata') or document).get('name'))}".strip() if kind else ""
    gateway = gateway_of(document)
    if gateway:
        yield from gateway_settings(document, gateway, title, name)
        return
    if kind or document.get("spec") is not None or document.get("containers") is not None:
        yield from _workload(document, title, name)
    else:
        yield from _without_a_kind(document, title, name)


def _without_a_kind(document: Mapped, title: str, name: str) -> Iterable[Setting]:
    """A file for Compose, a gateway's own, a part of a manifest, or somebody's own settings."""
    services = document.mapped("services")
    if services is not None:
        yield from compose_settings(services, name)
    elif has_timers(document):
        yield from gateway_settings(document, "gateway", title, name)
    elif any(document.get(key) is not None for key in _OF_CONTAINERS):
        # A part of a manifest, or a chart's values: what somebody thought to be the part that matters.
        yield from container_settings(document, title, name)
    else:
        yield from itertools.islice(_own_settings(document, (), name), _MOST_OWN)


def _own_settings(node: Mapped, path: tuple[str, ...], name: str) -> Iterable[Setting]:
    """Every scalar under the path of its keys: `realtime.sample_rate`. A number has its unit in its name, if any."""
    for key, value in node.values.items():
        if isinstance(value, Mapped):
            if len(path) < _DEEPEST:
                yield from _own_settings(value, (*path, str(key)), name)
        elif isinstance(value, (int, float, str, bool)):
            told = ".".join((*path, snake(str(key)) or str(key)))
            number, unit = with_unit(told, value)
            yield Setting(name=told, value=number, unit=unit, place=Place(name, node.at(key)))


def _workload(document: Mapped, title: str, name: str) -> Iterable[Setting]:
    for path, node in walk(document):
        containers = node.get("containers")
        if isinstance(containers, list):
            for container in containers:
                if isinstance(container, Mapped):
                    yield from container_settings(container, title, name)
        if path[-1:] == ("spec",):
            grace = node.get("terminationGracePeriodSeconds")
            if isinstance(grace, int | float) and not isinstance(grace, bool):
                yield Setting(
                    name="k8s.termination_grace",
                    value=float(grace) * 1e3,
                    unit="ms",
                    scope=title,
                    place=Place(name, node.at("terminationGracePeriodSeconds")),
                )
            replicas = node.get("replicas")
            if isinstance(replicas, int) and not isinstance(replicas, bool):
                yield Setting(
                    name="k8s.replicas", value=float(replicas), scope=title, place=Place(name, node.at("replicas"))
                )


def _config_map(document: Mapped, name: str) -> Iterable[Setting]:
    """Configurations inside a map: nginx's as text, Higress' and others' as YAML in YAML."""
    data = document.mapped("data")
    title = f"ConfigMap {scalar((document.mapped('metadata') or document).get('name'))}"
    for key, value in data.values.items() if data is not None else ():
        if data is None:
            return
        line = data.at(key)
        if isinstance(value, str) and "\n" in value:
            if looks_like_nginx(value):
                yield from nginx_settings(value, name, offset=line)[0]
                continue
            try:
                inner = read_yaml_text(value, name, offset=line)
            except InputError:
                continue
            for one in inner:
                gateway = gateway_of(one, key=key)
                if isinstance(one, Mapped) and gateway:
                    yield from gateway_settings(one, gateway, f"{title} / {key}", name)
        elif key in _CONTROLLER:
            yield from _CONTROLLER[key](key, value, title, Place(name, line))


def _controller(unit: str) -> Callable[[str, Node, str, Place], Iterable[Setting]]:
    """An option of ingress-nginx' controller, by the names of nginx's own directives."""

    def read(key: str, value: Node, title: str, place: Place) -> Iterable[Setting]:
        text = scalar(value)
        if unit == "ms":
            if re.fullmatch(r"\d{1,9}(?:\.\d+)?", text):
                yield Setting(
                    name=f"nginx.{key.replace('-', '_')}", value=float(text) * 1e3, unit="ms", scope=title, place=place
                )
        elif text:
            yield Setting(name=f"nginx.{key.replace('-', '_')}", value=text.lower(), scope=title, place=place)

    return read


_CONTROLLER: Final = {
    **dict.fromkeys(("proxy-read-timeout", "proxy-send-timeout", "proxy-connect-timeout"), _controller("ms")),
    **dict.fromkeys(("proxy-buffering", "proxy-http-version", "use-gzip"), _controller("")),
}


DEPLOY_YAML: Final = Format(name=_NAME, matches=_matches, read=_read)
