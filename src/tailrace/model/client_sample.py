"""How the load generator was over one second of a run."""

from __future__ import annotations

import msgspec


class ClientSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """About a second of one process of the load generator. What was not measured is `None`, never 0."""

    at_ns: int
    """Its end: offset from the start of the run's measured part (negative in a warm-up)."""
    span_ns: int
    """How long it was."""
    process: int = 0
    """Which of the load generator's processes, from 0."""
    loop_lag_p99_ns: int | None = None
    loop_lag_max_ns: int | None = None
    """How late the event loop's own timers fired."""
    cpu_share: float | None = None
    """Cores that the process used; 1.0 is all of the one that an event loop can use."""
    run_queue_wait_share: float | None = None
    """Share of the time in which it was runnable and had no processor."""
    in_flight: int | None = None
    """Requests under way at its end."""
    sent: int | None = None
    """Requests sent so far."""
    done: int | None = None
    """Requests that are over so far."""
    tokens: int | None = None
    """Output tokens read so far."""
    open_files: int | None = None
