"""A run's conditions as rows for people: what is not known is said to be unknown."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.model.conditions import Conditions

UNKNOWN: Final = "unknown"


def condition_rows(conditions: Conditions) -> list[tuple[str, str]]:
    """(name, value in words) of every condition, in the order of its fields."""
    rows = []
    for info in msgspec.structs.fields(Conditions):
        value = getattr(conditions, info.name)
        if value is None or value == {}:
            text = UNKNOWN
        elif isinstance(value, dict):
            text = ", ".join(f"{key}={one}" for key, one in value.items())
        elif isinstance(value, list):
            text = ", ".join(str(one) for one in value) or "none"
        else:
            text = str(value)
        rows.append((info.name.replace("_", " "), text))
    return rows
