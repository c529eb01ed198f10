"""How long a WAV file is, from its first bytes."""

from __future__ import annotations

from typing import Final

_UNKNOWN_SIZES: Final = frozenset({0, 0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF, 0x7FFFF000})
"""What encoders write that do not know yet how much they will write."""


def wave_seconds(head: bytes, *, at_most: int | None = None) -> float | None:
    """Seconds of audio that a RIFF/WAVE header announces: bytes of `data` / bytes a second.

    `head`: the file from its first byte, as far as it is at hand. `at_most`: bytes that the file can have; a header
    that announces more is not believed. `None` where there is no header, or it does not say.
    """
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    rate = 0
    at = 12
    while at + 8 <= len(head):
        name, size = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if name == b"data":
            if size in _UNKNOWN_SIZES or not rate or (at_most is not None and size > at_most):
                return None
            return size / rate
        if name == b"fmt " and size >= 16:
            rate = int.from_bytes(head[at + 16 : at + 20], "little")
        at += 8 + size + (size & 1)
    return None
