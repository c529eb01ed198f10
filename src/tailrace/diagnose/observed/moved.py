"""Observations of a part of a text, with the line numbers of the whole."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tailrace.diagnose.observed.body import Observed
from tailrace.diagnose.observed.kinds import Place

__all__ = ["moved"]


def moved(observed: Observed, by: int, *, source: str = "") -> Observed:
    """The same observations `by` lines further down, and in `source` where that is given."""
    out = Observed()
    for name in Observed.__struct_fields__:
        setattr(out, name, [_moved(item, by, source) for item in getattr(observed, name)])
    return out


def _moved(item: Any, by: int, source: str) -> Any:
    if isinstance(item, Place):
        return Place(source or item.source, item.line + by if item.line else 0)
    if isinstance(item, dict):
        return {key: _moved(value, by, source) for key, value in item.items()}
    if not isinstance(item, msgspec.Struct):
        return item
    changed: dict[str, Any] = {}
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if name == "lines" and value is not None:
            changed[name] = value + by
        elif name == "place" or (name == "values" and isinstance(value, dict)):
            changed[name] = _moved(value, by, source)
        elif name == "examples":
            texts: list[str] = value or []
            changed[name] = [re.sub(r"^(\d+)(?=: )", lambda found: str(int(found[1]) + by), text) for text in texts]
        elif name == "source" and source:
            changed[name] = source
    return msgspec.structs.replace(item, **changed) if changed else item
