"""Saved response headers (`curl -i`): what proxies and engines say of their own time in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Observed, Place, Setting, Understood
from tailrace.diagnose.readers.foreign_json import lines
from tailrace.diagnose.readers.format import Format
from tailrace.model.errors import InputError

__all__ = ["RESPONSE_HEADERS"]

_NAME: Final = "response headers"
_HEADERS: Final = {
    "x-litellm-overhead-duration-ms": "litellm.overhead",
    "x-litellm-callback-duration-ms": "litellm.callback",
    "x-litellm-response-duration-ms": "litellm.response",
    "x-envoy-upstream-service-time": "envoy.upstream_service_time",
    "openai-processing-ms": "upstream.processing",
    "x-kong-proxy-latency": "kong.proxy_latency",
    "x-kong-upstream-latency": "kong.upstream_latency",
}
"""Header -> the setting that carries it, in ms."""
_LINE: Final = re.compile(r"^[<>*\s]*([A-Za-z][\w-]{1,100}):\s*(.{0,2000})$")
_STATUS: Final = re.compile(r"^[<>*\s]*HTTP/[\d.]+ \d{3}", re.MULTILINE)
_PROMPT: Final = re.compile(r"\A\s*(?:[$#%>]\s+)?curl\s[^\n]*(?:\\\n[^\n]*)*\n")
"""The command that saved them, as a terminal shows it."""
_TIMING: Final = re.compile(r"([\w.-]+)[^,]*?;\s*dur=(\d+(?:\.\d+)?)")
_TELLS: Final = re.compile("|".join(map(re.escape, (*_HEADERS, "server-timing:"))), re.IGNORECASE)


def _matches(head: str, name: str) -> bool:  # noqa: ARG001
    start = _PROMPT.sub("", head).lstrip()
    headers = _LINE.match(start.split("\n", maxsplit=1)[0]) is not None
    return start[:1] not in {"{", "["} and bool(_STATUS.match(start) or headers) and _TELLS.search(head) is not None


def _read(path: Path, name: str) -> Observed:
    settings: list[Setting] = []
    total = 0
    response = 0
    for number, raw in lines(path):
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if _STATUS.match(line):
            response += 1
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        total += 1
        key, value = found[1].lower(), found[2].strip()
        place, scope = Place(name, number), f"response {max(response, 1)}"
        if key in _HEADERS and re.fullmatch(r"\d{1,12}(?:\.\d{1,12})?", value):
            settings.append(Setting(name=_HEADERS[key], value=float(value), unit="ms", scope=scope, place=place))
        elif key == "server-timing":
            settings += [
                Setting(name=f"server_timing.{what}", value=float(took), unit="ms", scope=scope, place=place)
                for what, took in _TIMING.findall(value)
            ]
    if not settings:
        raise InputError("no header of it tells a time", place=str(path), remedy="Save them with `curl -i` or `-v`.")
    return Observed(
        settings=settings,
        understood=[Understood(source=name, format=_NAME, understood=len(settings), total=len(settings), what="times")],
    )


RESPONSE_HEADERS: Final = Format(name=_NAME, matches=_matches, read=_read)
