"""Reading numbers out of what engines say about one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.measure.dialect import as_count

_ABSURD_NS: Final = 10**18
"""Some thirty years: no request took that long, so the field means something else."""

_LONGEST_NUMBER: Final = 24


def duration_ns(said: Mapping[str, Any], key: str, unit_ns: int) -> int | None:
    """A duration in nanoseconds from a field in units of `unit_ns`; `None` where it is absent or makes no sense."""
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and value > _ABSURD_NS:
        return None  # beyond what a float holds, `round` and the comparison below would not bear it everywhere
    scaled = value * unit_ns
    return round(scaled) if 0 <= scaled < _ABSURD_NS else None


def count(said: Mapping[str, Any], key: str) -> int | None:
    """A count, `None` where it is absent or no count."""
    return as_count(said.get(key))


def header_ns(headers: Mapping[str, str], name: str, unit_ns: int) -> int | None:
    """A duration in nanoseconds from a header that holds a plain number; `None` where it does not."""
    text = headers.get(name, "").strip()
    if not text or len(text) > _LONGEST_NUMBER:
        return None
    try:
        return duration_ns({name: float(text)}, name, unit_ns)
    except ValueError:
        return None
