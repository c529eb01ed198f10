"""Numbers that an operator may set: when a request counts as slow, how long a stage may take."""

from __future__ import annotations

import msgspec

MS = 1_000_000
"""Nanoseconds in a millisecond."""
S = 1_000_000_000
"""Nanoseconds in a second."""
UNITS = {"us": 1_000, "ms": MS, "s": S, "m": 60 * S, "min": 60 * S, "h": 3600 * S, "d": 86_400 * S, "w": 604_800 * S}
"""Nanoseconds in the units in which people write durations."""


class SlowThresholds(msgspec.Struct, frozen=True):
    """When a request is slow. Defaults are the design's; all in nanoseconds unless said."""

    ttft_ns: int = 500 * MS
    tpot_ns: int = 80 * MS
    gap_ns: int = 150 * MS
    gaps_in_a_row: int = 3
    single_gap_ns: int = 500 * MS
    """A single gap is a stall above max(this, `single_gap_factor` x the median of the last ten gaps)."""
    single_gap_factor: float = 10.0
    window: int = 10


class Budgets(msgspec.Struct, frozen=True):
    """The longest a stage may take (ns). `first_token` counts from the send upstream, `idle` between token events."""

    queue_ns: int = 2 * S
    first_token_ns: int = 5 * S
    idle_ns: int = 2 * S
    total_ns: int = 120 * S
    unstreamed_total_ns: int = 30 * S


class Objectives(msgspec.Struct, frozen=True):
    """Latency objectives: metric -> quantile -> bound (ns). `{"ttft": {0.99: 500 ms}}`."""

    bounds: dict[str, dict[float, int]] = msgspec.field(
        default_factory=lambda: {"ttft": {0.99: 500 * MS}, "tpot": {0.99: 80 * MS}}
    )
    tokens_per_s: float | None = None
    """Output tokens a second that all requests together should get done: the aim of work for which nobody waits."""
