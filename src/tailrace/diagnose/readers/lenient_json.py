"""JSON as programs write it: `NaN` and `Infinity` stand where there is no number (Python's `json.dump` writes them)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE

__all__ = ["NO_NUMBER", "decode_json"]

NO_NUMBER: Final = re.compile(rb"(?<=[:,\[\s])(?:NaN|-?Infinity)(?=\s*[,\]}])")
"""What Python's `json` writes where there is no number; no JSON, and so `null` to everybody else."""

_decode: Final = msgspec.json.Decoder().decode


def decode_json(data: bytes | str) -> Any:
    """Decode a document; what is no number is absent (`None`). One of `UNREADABLE` for what is no JSON all the same."""
    try:
        return _decode(data)
    except UNREADABLE:
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise
        return _decode(NO_NUMBER.sub(b"null", raw))
