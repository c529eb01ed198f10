"""What both encodings of OTLP have in common: ids, stamps, and the error for what is none of them."""

from __future__ import annotations

from typing import Final

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8
_LATEST: Final = 2**63


class OtlpError(ValueError):
    """The bytes are no OTLP trace request; says where it went wrong."""


def trace_id(raw: bytes) -> str:
    """32 hexadecimal digits. `OtlpError` for another length, or for zero, which OTLP calls invalid."""
    if len(raw) != _TRACE_BYTES or not any(raw):
        raise OtlpError("a span has no sound trace id")
    return raw.hex()


def span_id(raw: bytes) -> str:
    """16 hexadecimal digits; nothing for zero. `OtlpError` for another length."""
    if len(raw) != _SPAN_BYTES:
        raise OtlpError("a span id has not 8 bytes")
    return raw.hex() if any(raw) else ""


def stamp(unix_ns: int) -> int:
    """A wall clock (ns) that our own integers can hold."""
    if not 0 <= unix_ns < _LATEST:
        raise OtlpError(f"{unix_ns} is no time")
    return unix_ns


def status_message(code: int, text: str) -> bytes:
    """A `google.rpc.Status`: the code is field 1, the text field 2. Written here, because no package of ours has it."""
    said = text.encode()[:1000]
    size = len(said)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([0x08, code, 0x12]) + length + said
