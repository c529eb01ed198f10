"""Time spans as people type them on a command line."""

from __future__ import annotations

import re

from tailrace.model.errors import InputError
from tailrace.model.thresholds import UNITS, S

_LONGEST_DAYS = 36_500
_SPAN = re.compile(rf"(\d+(?:\.\d+)?|\.\d+)\s*({'|'.join(UNITS)}|)")


def parse_span(text: str, *, place: str, bare_seconds: bool = True) -> int:
    """`90s`, `5m`, `12h`, `7d`, `250ms` -> nanoseconds, above 0; `60` is seconds unless `bare_seconds` is False.

    Raises `InputError` that names `place`.
    """
    found = _SPAN.fullmatch(text.strip())
    value = float(found[1]) * (UNITS[found[2]] if found[2] else S) if found else 0.0
    if value < 1 or value == float("inf") or (found and not found[2] and not bare_seconds):
        example = "60 (seconds), 90s, 5m or 250ms" if bare_seconds else "30m, 12h or 7d"
        raise InputError(f"{text!r} is no duration above 0", place=place, remedy=f"Write {example}")
    if value > _LONGEST_DAYS * UNITS["d"]:  # 64 bits of nanoseconds hold little more
        raise InputError(f"{text!r} is longer than {_LONGEST_DAYS} days", place=place, remedy="Write less")
    return round(value)
