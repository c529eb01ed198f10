"""A sweep as points of a curve: what was offered, what came through, and how long it took."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.model.measurement import BenchSummary, MetricSummary
from tailrace.store.sweep import Sweep

__all__ = ["LATENCIES", "SweepPoint", "sweep_points"]

LATENCIES: Final = ("ttft_ms", "e2e_ms", "tpot_ms")
"""What a curve is drawn of, the first that every point has."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep. Exactly one of `rate` and `concurrency` is set."""

    summary: BenchSummary
    rate: float | None = None
    """Offered requests a second."""
    concurrency: float | None = None
    """Requests at once."""
    run: str = ""
    """Name of its run file beside `sweep.json`."""
    saturated: str = ""
    """Why the point is beyond what the server can do; empty where it is not."""
    standing: str = ""
    """Of a search: `met`, `missed` or `undecided`."""

    @property
    def value(self) -> float:
        """Where the point lies on the sweep's axis."""
        found = self.rate if self.rate is not None else self.concurrency
        assert found is not None
        return found

    @property
    def throughput(self) -> float:
        """Completed requests a second."""
        return self.summary.requests_per_s

    @property
    def failed_share(self) -> float:
        """Requests that did not complete, of all."""
        return sum(self.summary.errors.values()) / self.summary.n if self.summary.n else 0.0

    def latency(self, metric: str = "ttft_ms") -> MetricSummary | None:
        """A metric from the intended time where there is a schedule, else from the send; `None` without values."""
        summary = self.summary
        found = summary.from_schedule.get(metric) or summary.metrics.get(metric)
        return found if found is not None and found.n else None


def sweep_points(sweep: Sweep) -> list[SweepPoint]:
    """The points in the order of the axis (of equal ones in the order in which they were measured)."""
    points = [
        SweepPoint(
            summary=one.summary,
            rate=one.value if sweep.axis == "rate" else None,
            concurrency=one.value if sweep.axis == "concurrency" else None,
            run=one.run,
            saturated=one.saturated,
            standing=one.standing,
        )
        for one in sweep.runs
    ]
    return sorted(points, key=lambda point: point.value)
