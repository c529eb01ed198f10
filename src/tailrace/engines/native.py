"""What the engines' own streaming APIs have in common: one JSON object a frame, errors by event name or by content."""

from __future__ import annotations

from typing import Any

from tailrace.measure.dialect import Meaning
from tailrace.measure.fault import find_fault, named_fault
from tailrace.measure.openai import decode_leniently
from tailrace.model.timeline import EventKind


def open_frame(event: bytes | None, data: bytes) -> dict[str, Any] | Meaning:
    """The object of a frame, or already its meaning: an error, or nothing that can be read."""
    obj = decode_leniently(data)
    if event == b"error":
        return Meaning(EventKind.ERROR, fault=named_fault(data, obj))
    if not isinstance(obj, dict):
        return Meaning(EventKind.OTHER)
    fault = find_fault(obj)
    return obj if fault is None else Meaning(EventKind.ERROR, fault=fault)


def or_done(meaning: Meaning, data: bytes) -> Meaning:
    """For the APIs that end with `[DONE]`: what could not be read may be that."""
    if meaning.kind is EventKind.OTHER and data.strip() == b"[DONE]":
        return Meaning(EventKind.DONE, done=True)
    return meaning
