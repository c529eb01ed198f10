"""How full a KV cache is, in words that all rules share: full, not the reason, with room for more."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.observed import Event, Observed

__all__ = ["KV_CLEAR", "KV_FULL", "KV_ROOM", "thrown_out"]

KV_FULL: Final = 0.98
"""From here on new blocks are had by throwing others out: engines keep a percent or two back, and say 98 to 100 %."""
KV_CLEAR: Final = 0.90
"""Below it, with no preemption counted, the cache is not what holds requests up."""
KV_ROOM: Final = 0.80
"""Below it more requests fit: what keeps them out is a limit, not the memory."""


def thrown_out(observed: Observed) -> list[Event]:
    """The log's lines of requests that lost their blocks, in either engine's word."""
    return [event for kind in ("preempted", "retracted") for event in observed.of_kind(kind)]
