"""Time spans as people type them on a command line."""

from __future__ import annotations

import re

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S

_SPAN = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|w|)")
_UNITS = {"ms": MS, "s": S, "": S, "m": 60 * S, "h": 3600 * S, "d": 86_400 * S, "w": 604_800 * S}


def parse_span(text: str, *, place: str) -> int:
    """`60` (seconds), `90s`, `5m`, `12h`, `7d`, `250ms` -> nanoseconds, above 0.

    Raises `InputError` that names `place`.
    """
    found = _SPAN.fullmatch(text.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if value < 1:
        raise InputError(f"{text!r} is no time above 0", place=place, remedy="Write 60 (seconds), 90s, 5m or 250ms")
    return round(value)
