"""One arm of a comparison: its measured requests, and each metric as values with the moment they belong to."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import completed, measured
from tailrace.analyze.gaps import Gaps, longest_gap_ms, longest_wait_ms, pooled_gaps
from tailrace.analyze.timebase import starts_ns, timed
from tailrace.model.measurement import ClientHealth
from tailrace.stats.bootstrap import Arm
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["METRICS", "ArmData", "as_arm"]

METRICS: Final = ("longest_wait_ms", "ttft_ms", "longest_gap_ms", "chunk_gap_ms", "tpot_ms", "e2e_ms")
"""What a comparison looks at. `longest_wait` is the longest time in which a reader saw nothing new (TTFT or a gap),
`longest_gap` each request's longest chunk gap, `chunk_gap` all gaps of all requests pooled."""


class ArmData(NamedTuple):
    """An arm, ready to be compared. Latencies are those of completed requests."""

    name: str
    every: RecordTable
    """All measured requests."""
    done: RecordTable
    done_rows: NDArray[np.int64]
    """Rows of `every` that `done` holds."""
    at_s: NDArray[np.float64]
    """Start of each row of `done`."""
    gaps: Gaps
    client: ClientHealth
    closed_loop: bool
    duration_s: float
    dropped: float
    """Share of records that were lost on their way to the store."""

    def series(self, metric: str, keep: NDArray[np.bool_], weights: NDArray[np.float64] | None = None) -> Arm:
        """The values of `metric` among the rows of `done` that `keep` selects."""
        if metric == "chunk_gap_ms":
            inside = keep[self.gaps.row]
            rows = self.gaps.row[inside]
            # A gap belongs to the moment it ended, not to its request's start: a stall hits many streams at once.
            at = self.at_s[rows] + self.gaps.end_ns[inside] / 1e9
            return Arm(self.gaps.ms[inside], at, None if weights is None else weights[rows])
        values = self.column(metric)
        known = keep & ~np.isnan(values)
        return Arm(values[known], self.at_s[known], None if weights is None else weights[known])

    def column(self, metric: str) -> NDArray[np.float64]:
        """A per-request metric of `done` (ms)."""
        if metric == "longest_wait_ms":
            return longest_wait_ms(self.done)
        if metric == "longest_gap_ms":
            return longest_gap_ms(self.done)
        return self.done.ms(metric.removesuffix("_ms"))

    @property
    def failed(self) -> int:
        """Requests that did not complete, for whatever reason."""
        return len(self.every) - len(self.done)


def as_arm(source: Run | RecordTable, name: str, *, dropped: float = 0.0) -> ArmData:
    """Prepare a run or a table of records."""
    if isinstance(source, RecordTable):
        every, client, closed, duration = measured(source), ClientHealth(), False, 0.0
    else:
        every = measured(source.table())
        client = source.trailer.client if source.trailer else ClientHealth()
        closed = source.header.arrival.kind == "closed" and source.header.kind == "bench"
        duration = source.trailer.duration_s if source.trailer and len(every) == len(source.records) else 0.0
    rows = np.flatnonzero(completed(every))
    done = every.where(rows)
    starts = starts_ns(every)
    if duration and not timed(every):
        # Only the order is known, and the length of the run: requests are laid out evenly, so that neighbours in time
        # stay in one block. Whoever reads arrivals asks `timed` first.
        starts = (np.arange(len(every)) * (duration * 1e9 / len(every))).astype(np.int64)
    if not duration and len(every):
        duration = float((starts + every.column("e2e_ns")).max() - starts.min()) / 1e9
    return ArmData(
        name=name,
        every=every,
        done=done,
        done_rows=rows,
        at_s=starts[rows] / 1e9,
        gaps=pooled_gaps(done, np.arange(len(done))),
        client=client,
        closed_loop=closed,
        duration_s=duration,
        dropped=dropped,
    )
