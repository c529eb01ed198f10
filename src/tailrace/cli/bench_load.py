"""`tailrace bench`: how much load, from its options to arrivals and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.cli.durations import parse_span

if TYPE_CHECKING:
    from tailrace.workload.arrivals import Arrivals

DEFAULT_CONCURRENCY: Final = 8
DEFAULT_DURATION: Final = "30s"
MOST_SEED: Final = 2**53
"""The run file holds 64 bits, and other readers of its JSON fewer; a search and an A/B count on from the seed."""


class Load(NamedTuple):
    """The options under `How much`, as they were typed."""

    rate: str | None
    concurrency: str | None
    requests: int | None
    duration: str | None
    arrival: str | None
    burstiness: float | None
    warmup: str
    processes: str
    seed: int

    def duration_ns(self, *, trace: bool) -> int | None:
        """When sending ends; `None` where a number of requests, or a trace played at its own times, ends it."""
        duration = self.duration
        if (
            duration is None
            and self.requests is None
            and not (trace and self.rate is None and self.concurrency is None)
        ):
            from tailrace.cli.arrivals_from import natural_span_ns

            whole = natural_span_ns(self.rate, self.concurrency)
            if whole is not None:
                return whole
            duration = DEFAULT_DURATION
        return None if duration is None else parse_span(duration, place="--duration")

    def process_count(self) -> int:
        """Processes that generate the load; 0 (`shares.AUTO`): as many as it asks for."""
        from tailrace.model.errors import InputError

        if self.processes == "auto":
            return 0
        if not self.processes.isdecimal() or int(self.processes) < 1:
            raise InputError(f"cannot read {self.processes!r}", place="--processes", remedy="Write auto, or a number")
        return int(self.processes)

    def warm_up(self) -> tuple[int, int]:
        """Requests and time (ns) before the measured part; one of them is 0."""
        if self.warmup.isdecimal():
            return int(self.warmup), 0
        return 0, parse_span(self.warmup, place="--warmup")

    def arrivals(self, *, trace: bool) -> Arrivals:
        """The arrivals that the options name; with a trace and neither rate nor concurrency, the trace's own times.

        Raises `InputError` for a name that there is not, and where options contradict each other.
        """
        from tailrace.cli.arrivals_from import arrivals_from

        return arrivals_from(
            rate=self.rate,
            concurrency=self.concurrency,
            arrival=self.arrival,
            burstiness=self.burstiness,
            trace=trace,
            default_concurrency=DEFAULT_CONCURRENCY,
        )
