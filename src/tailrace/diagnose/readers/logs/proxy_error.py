"""What a proxy's error log says of the two sides of a request: who closed, who timed out."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.readers.logs.context import Context

__all__ = ["is_proxy_error", "proxy_error"]

_TIMED_OUT: Final = re.compile(
    rb"upstream timed out|upstream[ _]re(?:quest|sponse)[ _]timeout|stream timeout|i/o timeout"
    rb"|context deadline exceeded"
    rb"|ReadTimeout|Gateway Time-?out",
    re.IGNORECASE,
)
_PHASE: Final = re.compile(
    rb"while ((?:connecting to|reading response header from|reading|sending request to) upstream)"
)
_CLIENT: Final = re.compile(
    rb"client (?:prematurely )?(?:closed|disconnected|went away|has gone)|client disconnect|context canceled"
    rb"|write: broken pipe"
    rb"|downstream.{0,20}(?:closed|reset|disconnect)",
    re.IGNORECASE,
)
_UPSTREAM: Final = re.compile(
    rb"upstream (?:prematurely closed|disconnect)|upstream.{0,30}(?:reset|closed)|recovered from upstream disconnect"
    rb"|read:? .{0,60}connection reset by peer|unexpected EOF",
    re.IGNORECASE,
)


def is_proxy_error(line: bytes) -> bool:
    """Cheap: whether it is worth a look."""
    return (
        b"pstream" in line
        or b"client" in line
        or b"ownstream" in line
        or b"imeout" in line
        or b"context " in line
        or b"EOF" in line
        or b"pipe" in line
    )


def proxy_error(context: Context, line: bytes) -> bool:
    """`upstream_timeout` with its phase, or `disconnect` with the side that the words name, right or wrong."""
    timed = _TIMED_OUT.search(line)
    if timed is not None:
        phase = _PHASE.search(line)
        attributes: dict[str, float | str] = {"phase": phase[1].decode()} if phase is not None else {}
        context.events.add("upstream_timeout", context.number, context.stamp(line), line, attributes)
        return context.understood("proxy error log")
    side = "client" if _CLIENT.search(line) else "upstream" if _UPSTREAM.search(line) else ""
    if not side:
        return False
    context.events.add("disconnect", context.number, context.stamp(line), line, {"side": side})
    return context.understood("proxy error log")
