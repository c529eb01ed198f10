"""What every section of the configuration is made of: strict structs, durations with a unit."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tailrace.model.thresholds import MS, UNITS, S

_DURATION: Final = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})\s*")


class Duration(int):
    """Nanoseconds, written `2s`, `150ms`, `1.5m` in YAML."""

    __slots__ = ()


def parse_duration(text: object) -> Duration:
    """`"150ms"` -> 150,000,000 ns. A bare number is refused: nobody can know its unit."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no duration: write a number with a unit, for example `2s` or `150ms`")
    return Duration(round(float(match[1]) * UNITS[match[2]]))


def lasting(ns: int) -> Any:
    """A default. A factory, because msgspec's schema writer cannot encode a `Duration`; `json_schema` adds it."""
    return msgspec.field(default_factory=lambda: Duration(ns))


def human(ns: int) -> str:
    """Nanoseconds as the file spells them: `150ms`, `2s`."""
    unit, size = ("s", S) if ns % S == 0 else ("ms", MS) if ns % MS == 0 else ("us", 1_000)
    return f"{ns / size:g}{unit}"


class Section(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A mapping of the file; an unknown key is an error."""
