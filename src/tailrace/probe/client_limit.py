"""When the load generator, rather than the server, was the limit of a run: the rules, each on facts of the run."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.model.thresholds import S

FLOOR_MS: Final = 20.0
"""Loop lag and late sends below this are never the limit: two scheduler slices of a busy host."""
SHARE: Final = 0.10
"""... nor below this share of the measured TTFT p99, which they then cannot have made."""
MOVED_MS: Final = 3.0
MOVED_SHARE: Final = 0.03
"""What the client's delays may have done to the TTFT p99 (the larger of the two) in a run that stands."""
CPU_LIMIT: Final = 0.90
"""Of the one core that an event loop can use."""
RUN_QUEUE_LIMIT: Final = 0.30
"""Of the run's time. Waiting alone is no error of a stamp, so it counts together with half of a bound on delay."""
STARVED: Final = 0.50
"""Of the time in which the process had work to do."""
KEPT: Final = 0.99
"""Of the planned rate."""
MIN_SAMPLES: Final = 50
"""Half a second of samples; fewer have no p99."""
MIN_REQUESTS: Final = 50
"""Fewer say nothing of a p99 or of a rate."""
MIN_WALL_NS: Final = S
"""Shares of a shorter time say nothing: a run of ten milliseconds is all processor."""


class ClientFacts(NamedTuple):
    """What one process measured of itself. `None` and 0 samples: not known."""

    wall_ns: int
    samples: int
    """Of loop lag."""
    lag_p99_ms: float | None
    event_delay_p99_ms: float | None
    p99_ms: float | None
    """TTFT p99 of the run."""
    moved_ms: float | None
    """What the client's own delays did to it."""
    late_p99_ms: float | None
    requests: int
    """Requests with a schedule."""
    kept: float | None
    cpu_share: float
    wait_share: float | None
    not_sent: int

    @property
    def bound_ms(self) -> float:
        """Delays up to this are not the client's fault."""
        return max(FLOOR_MS, SHARE * self.p99_ms) if self.p99_ms is not None else FLOOR_MS

    def limits(self) -> list[str]:
        """Why the client was the limit, one sentence each; empty where it was not."""
        why: list[str] = []
        bound = self.bound_ms
        long = self.wall_ns >= MIN_WALL_NS
        sampled = self.samples >= MIN_SAMPLES
        lag, late = self.lag_p99_ms, self.late_p99_ms
        if self.not_sent:
            why.append(f"{self.not_sent} requests were not sent: no more connections can be opened (ulimit -n)")
        if lag is not None and lag > bound and sampled:
            why.append(f"the event loop ran {lag:.0f} ms late at p99 (bound {bound:.0f} ms)")
        if late is not None and late > bound:
            why.append(f"sends were {late:.0f} ms late at p99 (bound {bound:.0f} ms)")
        if self.kept is not None and self.kept < KEPT and self.requests >= MIN_REQUESTS and long:
            why.append(f"the schedule was not kept: {self.kept:.1%} of the planned rate")
        if self.cpu_share > CPU_LIMIT and long:
            why.append(f"the client used {self.cpu_share:.0%} of the one core that it can use")
        moved = self._moved()
        if moved:
            why.append(moved)
        starved = self._starved()
        if starved and long:
            why.append(starved)
        return why

    def _moved(self) -> str:
        moved, p99 = self.moved_ms, self.p99_ms
        if moved is None or p99 is None or moved <= max(MOVED_MS, MOVED_SHARE * p99):
            return ""
        return f"its own delays added {moved:.1f} ms to the TTFT p99 of {p99:.0f} ms"

    def _starved(self) -> str:
        waited = self.wait_share
        if waited is None:
            return ""
        lag = self.lag_p99_ms
        if waited > RUN_QUEUE_LIMIT and lag is not None and lag > self.bound_ms / 2:
            return f"the client waited for a processor during {waited:.0%} of the run"
        return ""
