"""WAV files of silence."""

from __future__ import annotations

import struct


def wave(
    seconds: float,
    *,
    rate: int = 16_000,
    extra: bool = False,
    size: int | None = None,
    byte_rate: int | None = None,
    body: bool = True,
) -> bytes:
    """16-bit mono. `extra`: a chunk of comments first; `size`, `byte_rate`: what the header claims instead."""
    data = round(seconds * rate) * 2
    form = struct.pack("<HHIIHH", 1, 1, rate, rate * 2 if byte_rate is None else byte_rate, 2, 16)
    chunks = b"WAVE" + (b"LIST\x05\0\0\0INFO!\0" if extra else b"") + b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", data if size is None else size)
    return b"RIFF" + struct.pack("<I", len(chunks) + data) + chunks + (bytes(data) if body else b"")
