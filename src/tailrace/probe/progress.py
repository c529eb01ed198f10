"""How a run is going, as the live view shows it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot, about every half second. Counts are of the measured requests; warm-up ones are in flight only."""

    phase: str
    """`look`, `warm-up`, `measuring`, `draining` (waiting for the last answers)."""
    elapsed_s: float = 0.0
    """Since the measured part began."""
    planned_s: float | None = None
    planned_requests: int | None = None
    sent: int = 0
    in_flight: int = 0
    done: int = 0
    """Ended, in whatever way."""
    errors: int = 0
    """Of those, not completed."""
    tokens: int = 0
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_bins: dict[int, int] = {}
    """Counts by bin of an `ExponentialHistogram` of TTFT (ms), so that several processes' can be added."""


OnProgress = Callable[[Progress], None]
