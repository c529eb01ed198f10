"""Containers of Kubernetes and Compose: probes, CPU and memory, and the options that an engine is started with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tailrace.diagnose.observed import Place, Setting
from tailrace.diagnose.readers.engine_settings import settings_of_words
from tailrace.diagnose.readers.yaml_tree import Mapped, Node, scalar, texts_of
from tailrace.engines.flags.command_line import engine_of_image, parse_words, split_words
from tailrace.model.errors import InputError

__all__ = ["compose_settings", "container_settings", "cores"]

_PROBES: Final = {"livenessProbe": "liveness", "readinessProbe": "readiness", "startupProbe": "startup"}
_DEFAULTS: Final = {"timeoutSeconds": 1.0, "periodSeconds": 10.0, "failureThreshold": 3.0}
"""Kubernetes' own, where a probe leaves them out."""
_SHELLS: Final = frozenset({"bash", "sh", "-c", "-lc", "-ec"})
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms|s|m|h)?", re.ASCII)
_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "": 1e3}


def container_settings(container: Mapped, title: str, name: str) -> Iterable[Setting]:
    """What one container of a pod says."""
    scope = f"{title} / container {scalar(container.get('name'))}".strip(" /")
    for key, short in _PROBES.items():
        probe = container.mapped(key)
        if probe is not None:
            yield from _probe(probe, short, scope, name, container.at(key))
    for kind in ("limits", "requests"):
        given = container.mapped("resources", kind)
        if given is None:
            continue
        count = cores(scalar(given.get("cpu")))
        if count is not None:
            yield Setting(
                name=f"k8s.cpu_{kind[:-1]}", value=count, unit="cores", scope=scope, place=Place(name, given.at("cpu"))
            )
        for key in given.values:
            if key.endswith("/gpu") and scalar(given.get(key)).isdigit():
                yield Setting(
                    name="k8s.gpus",
                    value=float(scalar(given.get(key))[:6]),
                    scope=scope,
                    place=Place(name, given.at(key)),
                )
    yield from _engine(container, scope, name)


def _probe(probe: Mapped, short: str, scope: str, name: str, line: int) -> Iterable[Setting]:
    values: dict[str, float] = {}
    unset = []
    for key, default in _DEFAULTS.items():
        given = probe.get(key)
        if isinstance(given, int | float) and not isinstance(given, bool):
            values[key] = float(given)
        else:
            values[key] = default
            unset.append(key)
    keys = {"timeoutSeconds": "timeout", "periodSeconds": "period", "failureThreshold": "failure_threshold"}
    for key, ours in keys.items():
        seconds = key.endswith("Seconds")
        yield Setting(
            name=f"k8s.{short}.{ours}",
            value=values[key] * (1e3 if seconds else 1.0),
            unit="ms" if seconds else "count",
            scope=scope,
            place=Place(name, probe.at(key) if key not in unset else line),
        )
    yield Setting(
        name=f"k8s.{short}.detection",
        value=values["failureThreshold"] * values["periodSeconds"] * 1e3,
        unit="ms",
        scope=scope,
        place=Place(name, line),
    )
    http = probe.mapped("httpGet")
    command = probe.mapped("exec")
    path = (
        scalar(http.get("path")) if http is not None else " ".join(texts_of(command.get("command")) if command else [])
    )
    if path:
        yield Setting(name=f"k8s.{short}.path", value=path, scope=scope, place=Place(name, line))
    if unset:
        yield Setting(name=f"k8s.{short}.unset", value=unset, scope=scope, place=Place(name, line))


def cores(text: str) -> float | None:
    """A quantity of CPU: `500m` is half a core."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(m?)", text.strip())
    return None if found is None else float(found[1]) / (1000.0 if found[2] else 1.0)


def compose_settings(services: Mapped, name: str) -> Iterable[Setting]:
    """What the services of a Compose file say."""
    for title, service in services.values.items():
        if not isinstance(service, Mapped):
            continue
        scope = f"service {title}"
        check = service.mapped("healthcheck")
        if check is not None:
            yield from _health(check, scope, name)
        limits = service.mapped("deploy", "resources", "limits")
        for holder, key in ((limits, "cpus"), (service, "cpus")):
            count = cores(scalar(holder.get(key))) if holder is not None else None
            if holder is not None and count is not None:
                yield Setting(
                    name="k8s.cpu_limit", value=count, unit="cores", scope=scope, place=Place(name, holder.at(key))
                )
        yield from _engine(service, scope, name)


def _health(check: Mapped, scope: str, name: str) -> Iterable[Setting]:
    """Compose marks a container unhealthy; what restarts it is another thing."""
    for key, ours in (("timeout", "timeout"), ("interval", "period")):
        value = _ms(scalar(check.get(key)))
        if value is not None:
            yield Setting(
                name=f"compose.health.{ours}", value=value, unit="ms", scope=scope, place=Place(name, check.at(key))
            )
    retries = check.get("retries")
    if isinstance(retries, int) and not isinstance(retries, bool):
        yield Setting(
            name="compose.health.failure_threshold",
            value=float(retries),
            unit="count",
            scope=scope,
            place=Place(name, check.at("retries")),
        )


def _ms(text: str) -> float | None:
    plain = text.strip()
    if not plain or _DURATION.sub("", plain).strip():
        return None
    return sum(float(number) * _MS[unit] for number, unit in _DURATION.findall(plain))


def _engine(container: Mapped, scope: str, name: str) -> Iterable[Setting]:
    image = scalar(container.get("image"))
    words = [
        *_environment(container.get("env", "environment")),
        *(
            word
            for key in ("entrypoint", "command", "args")
            for word in _words(container.get(key))
            if word.rpartition("/")[2] not in _SHELLS
        ),
    ]
    if not (engine_of_image(image) or parse_words(words).engine):
        return
    line = container.at("args", "command", "image")
    yield from settings_of_words(words, image=image, scope=scope, source=name, line=line, lines=_lines(container))


def _lines(container: Mapped) -> dict[str, int]:
    """Options of a list stand one a line: their own lines are those behind the key's."""
    out: dict[str, int] = {}
    for key in ("command", "args"):
        node = container.get(key)
        if isinstance(node, list):
            for at, word in enumerate(texts_of(node), start=1):
                out.setdefault(word.partition("=")[0], container.at(key) + at)
    return out


def _environment(node: Node) -> list[str]:
    if isinstance(node, Mapped):
        return [f"{key}={scalar(value)}" for key, value in node.values.items()]
    out = []
    for one in node if isinstance(node, list) else []:
        if isinstance(one, str) and "=" in one:
            out.append(one)
        elif isinstance(one, Mapped) and "value" in one.values:
            out.append(f"{scalar(one.get('name'))}={scalar(one.get('value'))}")
    return out


def _words(node: Node) -> list[str]:
    """A command as a list of words, as one text, or as a text for a shell."""
    words = texts_of(node) if isinstance(node, list) else [scalar(node)] if scalar(node) else []
    out: list[str] = []
    for word in words:
        if (" " in word or "\n" in word) and ("--" in word or len(words) == 1):
            try:
                out += split_words(word, place="command")
            except InputError:
                out += word.split()
        else:
            out.append(word)
    return out
