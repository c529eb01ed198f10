"""W3C trace context: continue a caller's trace or begin one. https://www.w3.org/TR/trace-context/"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from tailrace.gateway.ids import random_hex

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class Trace(NamedTuple):
    """Our place in a trace."""

    trace_id: str
    parent_id: str
    """The caller's span; empty when the trace begins here."""
    span_id: str
    """Ours: the parent of what the engine reports."""
    header: bytes
    """What goes upstream: same trace, our span, the flags that `Sampler` leaves. Empty: nothing goes upstream."""


class Sampler(Protocol):
    """Who decides which requests an engine is asked to trace."""

    def begins(self, trace_id: str) -> bool:
        """Whether to ask for a trace that begins here."""

    def goes_on(self) -> bool:
        """Whether to ask on for one whose caller asks."""


class _Never:
    def begins(self, trace_id: str) -> bool:  # noqa: ARG002
        return False

    def goes_on(self) -> bool:
        return True


AS_IT_COMES = _Never()
"""The caller's flags as they are; nothing that begins here is traced."""


def continue_trace(
    traceparent: bytes | None, sampler: Sampler = AS_IT_COMES, *, asked: bool = False, only_sampled: bool = False
) -> Trace:
    """Read `traceparent`; a missing or malformed one starts a new trace, as the standard asks.

    `asked`: this very request is to be traced, whatever the flags say. `only_sampled`: the engine traces whatever has a
    parent, so that it is told of one only where it is to trace.
    """
    match = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    random = random_hex(24)
    span = random[32:]
    if (
        match is None
        or match[1] == b"ff"
        or (match[1] == b"00" and match[5] is not None)
        or match[2] == b"0" * 32
        or match[3] == b"0" * 16
    ):
        trace_id = random[:32]
        sampled = asked or sampler.begins(trace_id)
        if only_sampled and not sampled:
            return Trace(trace_id, "", span, b"")
        return Trace(trace_id, "", span, f"00-{trace_id}-{span}-0{sampled:d}".encode())
    trace_id = match[2].decode()
    flags = int(match[4], 16)
    sampled = asked or (flags & _SAMPLED == _SAMPLED and sampler.goes_on())
    if only_sampled and not sampled:
        return Trace(trace_id, match[3].decode(), span, b"")
    flags = flags | _SAMPLED if sampled else flags & ~_SAMPLED
    return Trace(trace_id, match[3].decode(), span, f"00-{trace_id}-{span}-{flags:02x}".encode())
