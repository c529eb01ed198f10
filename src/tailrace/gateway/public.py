"""Interim public form of a record, until `export.jsonl` is there."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.model.record import RequestRecord


def to_public(record: RequestRecord) -> dict[str, Any]:
    """Durations in ms, stages as a map."""
    out: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(record).items():
        if key.endswith("_unix_ns") or not key.endswith("_ns"):
            out[key] = value
        elif value is not None:
            out[key.removesuffix("_ns") + "_ms"] = value / 1e6
    out["stages_ms"] = {name: value / 1e6 for name, value in record.stages().items()}
    return out
