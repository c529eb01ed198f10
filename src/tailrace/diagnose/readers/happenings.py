"""What a gateway says has happened to it (`GET /happenings`), as events for the points of change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["events_of", "read_happenings"]

_decode = msgspec.json.Decoder().decode


def events_of(happenings: Iterable[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """(wall clock in s, words), in order of time."""
    return sorted((float(one["at_unix_ms"]) / 1e3, _words(one)) for one in happenings)


def _words(one: Mapping[str, Any]) -> str:
    return f"{one['text']} (by {one['by']})" if one.get("by") else str(one["text"])


def read_happenings(body: bytes, name: str) -> list[tuple[float, str]]:
    """The events of an answer of `/happenings`. InputError for anything else."""
    try:
        return events_of(_decode(body)["happenings"])
    except (*UNREADABLE, TypeError, KeyError, ValueError) as error:
        raise InputError(f"this is no answer of /happenings: {error}", place=name) from None
