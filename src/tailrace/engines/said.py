"""Reading numbers out of what engines say about one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ABSURD_NS: Final = 10**18
"""Some thirty years: no request took that long, so the field means something else."""


def duration_ns(said: Mapping[str, Any], key: str, unit_ns: int) -> int | None:
    """A duration in nanoseconds from a field in units of `unit_ns`; `None` where it is absent or makes no sense."""
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    scaled = value * unit_ns
    return round(scaled) if 0 <= scaled < _ABSURD_NS else None


def count(said: Mapping[str, Any], key: str) -> int | None:
    """A count, `None` where it is absent or no count."""
    value = said.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
