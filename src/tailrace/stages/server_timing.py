"""The `Server-Timing` header: how stages travel from a service to whoever stands before it.

Syntax of the W3C recommendation: `name;dur=12.5;desc="text", other;dur=3`, durations in milliseconds, names and
parameters as HTTP tokens (a dot is allowed), values as tokens or quoted strings, unknown parameters ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SPACE: Final = re.compile(r"[ \t]*")
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_MAX_HEADER: Final = 16 * 1024
"""Longer values are read up to here: a header is somebody else's text."""


@dataclass(frozen=True, slots=True)
class ServerTiming:
    """One metric of the header."""

    name: str
    duration_ns: int | None = None
    """`None` where the metric carries no `dur`, or none that is a number."""
    description: str = ""


def render_server_timing(durations: Mapping[str, int]) -> str:
    """Spell stage -> nanoseconds as a header value; nanoseconds survive the round trip (six decimals of a ms)."""
    out = []
    for name, nanoseconds in durations.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a Server-Timing name")
        if nanoseconds < 0:
            raise ValueError(f"{name} has a negative duration: {nanoseconds} ns")
        whole, rest = divmod(nanoseconds, 1_000_000)
        out.append(f"{name};dur={whole}.{rest:06d}".rstrip("0").rstrip("."))
    return ", ".join(out)


def parse_server_timing(value: str) -> list[ServerTiming]:
    """Read a header value, several joined by commas included. What cannot be read is skipped to the next comma."""
    text = value[:_MAX_HEADER]
    out: list[ServerTiming] = []
    at = 0
    while at < len(text):
        at = _after_space(text, at)
        found = _TOKEN.match(text, at)
        if found is None:
            at = _next_metric(text, at)
            continue
        name, at = found.group(), found.end()
        parameters: dict[str, str] = {}
        while True:
            at = _after_space(text, at)
            if at >= len(text) or text[at] != ";":
                break
            at = _parameter(text, at + 1, parameters)
        out.append(ServerTiming(name, _nanoseconds(parameters.get("dur", "")), parameters.get("desc", "")))
        at = _next_metric(text, at)
    return out


def _parameter(text: str, at: int, into: dict[str, str]) -> int:
    """Read `name` or `name=value` at `at`; where it ends. The first of several parameters of one name counts."""
    at = _after_space(text, at)
    found = _TOKEN.match(text, at)
    if found is None:
        return at
    name, at = found.group().lower(), _after_space(text, found.end())
    value = ""
    if at < len(text) and text[at] == "=":
        at = _after_space(text, at + 1)
        quoted = _QUOTED.match(text, at)
        plain = _TOKEN.match(text, at)
        if quoted is not None:
            value, at = re.sub(r"\\(.)", r"\1", quoted.group(1)), quoted.end()
        elif plain is not None:
            value, at = plain.group(), plain.end()
    into.setdefault(name, value)
    return at


def _nanoseconds(text: str) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    whole, _, rest = text.partition(".")
    # Integer arithmetic: a float would lose nanoseconds of long durations.
    return int(whole or "0") * 1_000_000 + int((rest + "000000")[:6])


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _next_metric(text: str, at: int) -> int:
    """Position after the next comma outside of a quoted string."""
    while at < len(text):
        if text[at] == '"':
            quoted = _QUOTED.match(text, at)
            at = quoted.end() if quoted else at + 1
        elif text[at] == ",":
            return at + 1
        else:
            at += 1
    return at
