"""W3C trace context: continue a caller's trace or begin one. https://www.w3.org/TR/trace-context/"""

from __future__ import annotations

import re
from typing import NamedTuple

from tailrace.gateway.ids import random_hex

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Trace(NamedTuple):
    """Our place in a trace."""

    trace_id: str
    parent_id: str
    """The caller's span; empty when the trace begins here."""
    span_id: str
    """Ours: the parent of what the engine reports."""
    header: bytes
    """What goes upstream: same trace, our span, the caller's flags.

    A trace that begins here is not sampled (flag 00): engines decide at the start and we at the end, so asking them
    to trace every request would cost each of them a span for the few that are kept.
    """


def continue_trace(traceparent: bytes | None) -> Trace:
    """Read `traceparent`; a missing or malformed one starts a new trace, as the standard asks."""
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
        return Trace(trace_id, "", span, f"00-{trace_id}-{span}-00".encode())
    trace_id = match[2].decode()
    return Trace(trace_id, match[3].decode(), span, f"00-{trace_id}-{span}-{match[4].decode()}".encode())
