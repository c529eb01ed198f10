"""A run's conditions in words: what is not known is said to be unknown."""

from __future__ import annotations

from typing import Final

from tailrace.model.conditions import Conditions

UNKNOWN: Final = "unknown"


def conditions_line(conditions: Conditions) -> str:
    """What decides first whether two runs can be compared, in one line."""
    flags = len(conditions.engine_flags)
    parts = [
        f"engine {' '.join(one for one in (conditions.engine, conditions.engine_version) if one) or UNKNOWN}",
        f"dtype {_words(conditions.dtype)}",
        f"quantization {_words(conditions.quantization)}",
        f"GPU {_words(conditions.gpu)}",
        f"{flags} engine flags in the run file" if flags else f"engine flags {UNKNOWN}",
    ]
    return ", ".join(parts)


def _words(value: object) -> str:
    if value is None or value == {}:
        return UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "none"
    return str(value)
