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
DELAY_MS: Final = 5.0
DELAY_MOST_MS: Final = 15.0
"""Event delay at p99: up to the first it is never the limit, above the second always where gaps between tokens are
measured, which are tens of milliseconds; between them it may be `MOVED_SHARE` of the TTFT p99."""
CPU_LIMIT: Final = 0.90
"""Of the one core that an event loop can use."""
RUN_QUEUE_LIMIT: Final = 0.20
"""Of the run's time. Waiting alone is no error of a stamp, so it counts together with half of a bound on delay."""
KEPT: Final = 0.99
"""Of the planned rate."""
MIN_SAMPLES: Final = 50
"""Half a second of samples; fewer have no p99."""
MIN_REQUESTS: Final = 50
"""Fewer say nothing of a p99 or of a rate."""
MIN_WALL_NS: Final = S
"""Shares of a shorter time say nothing: a run of ten milliseconds is all processor."""


def _ms(value: float) -> str:
    """With a decimal where two values that differ could read the same."""
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


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
    streamed: bool = True

    @property
    def delay_bound_ms(self) -> float:
        """Event delays up to this, at p99, leave the figures as they are."""
        bound = max(DELAY_MS, MOVED_SHARE * (self.p99_ms or 0.0))
        return min(bound, DELAY_MOST_MS) if self.streamed else bound

    @property
    def bound_ms(self) -> float:
        """Loop lag and late sends up to this are not the client's fault."""
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
            why.append(f"the event loop ran {_ms(lag)} late at p99 (bound {_ms(bound)})")
        delay, most = self.event_delay_p99_ms, self.delay_bound_ms
        if delay is not None and delay > most and sampled:
            why.append(f"what arrived was stamped {_ms(delay)} late at p99 (bound {_ms(most)})")
        if late is not None and late > bound:
            why.append(f"sends were {_ms(late)} late at p99 (bound {_ms(bound)})")
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
        lag, delay = self.lag_p99_ms, self.event_delay_p99_ms
        late = (delay is not None and delay > self.delay_bound_ms / 2) or (lag is not None and lag > self.bound_ms / 2)
        if waited > RUN_QUEUE_LIMIT and late:
            return f"the client waited for a processor during {waited:.0%} of the run"
        return ""
