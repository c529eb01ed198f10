"""One arm of a comparison: its measured requests, and each metric as values with the moment they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import completed, measured
from tailrace.analyze.gaps import Gaps, longest_gap_ms, longest_wait_ms, pooled_gaps
from tailrace.analyze.timebase import request_rate, starts_ns, timed
from tailrace.model.engine_state import EngineState
from tailrace.model.measurement import ClientHealth
from tailrace.stats.bootstrap import Arm
from tailrace.store.run_file import Run, RunHeader
from tailrace.store.table import RecordTable

__all__ = ["FROM_SCHEDULE", "METRICS", "ArmData", "Source", "as_arm", "pool"]

Source = Run | RecordTable

METRICS: Final = ("longest_wait_ms", "ttft_ms", "longest_gap_ms", "chunk_gap_ms", "tpot_ms", "e2e_ms")
"""What a comparison looks at. `longest_wait` is the longest time in which a reader saw nothing new (TTFT or a gap),
`longest_gap` each request's longest chunk gap, `chunk_gap` all gaps of all requests pooled."""
FROM_SCHEDULE: Final = {
    "longest_wait_ms": "longest_wait_from_schedule_ms",
    "ttft_ms": "ttft_from_schedule_ms",
    "e2e_ms": "e2e_from_schedule_ms",
}
"""Metrics counted from the send, and the same from the intended time. Gaps are the same from either origin."""
_SENT: Final = {intended: sent for sent, intended in FROM_SCHEDULE.items()}


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
    headers: tuple[RunHeader, ...] = ()
    """Of its run files; none where it is a table of records."""
    run: NDArray[np.int64] | None = None
    """Which of several runs each row of `done` is from."""
    parts: tuple[ArmData, ...] = ()
    """The runs that it is pooled from, where it is."""
    states: tuple[EngineState, ...] = ()
    """What the engine's metrics said during its runs."""

    def series(self, metric: str, keep: NDArray[np.bool_], weights: NDArray[np.float64] | None = None) -> Arm:
        """The values of `metric` among the rows of `done` that `keep` selects."""
        if metric == "chunk_gap_ms":
            rows = self.gaps.row
            inside = keep[rows]
            rows = rows[inside]
            # A gap belongs to the moment it ended, not to its request's start: a stall hits many streams at once.
            at = self.at_s[rows] + self.gaps.end_ns[inside] / 1e9
            return Arm(self.gaps.ms[inside], at, _of(weights, rows), _of(self.run, rows))
        values = self.column(metric)
        known = keep & ~np.isnan(values)
        return Arm(values[known], self.at_s[known], _of(weights, known), _of(self.run, known))

    def column(self, metric: str) -> NDArray[np.float64]:
        """A per-request metric of `done` (ms)."""
        if metric in _SENT:
            late: NDArray[np.float64] = self.column(_SENT[metric]) + self.late_ms()
            return late
        if metric == "longest_wait_ms":
            return longest_wait_ms(self.done)
        if metric == "longest_gap_ms":
            return longest_gap_ms(self.done)
        return self.done.ms(metric.removesuffix("_ms"))

    def late_ms(self) -> NDArray[np.float64]:
        """Intended time -> send of each row of `done`; NaN where there was no schedule."""
        return self.done.ms("intended_to_sent")

    @property
    def failed(self) -> int:
        """Requests that did not complete, for whatever reason."""
        return len(self.every) - len(self.done)

    @property
    def runs(self) -> int:
        """How many runs it is."""
        return max(1, len(self.parts))

    @property
    def request_rate(self) -> float:
        """Requests a second, each run over its own time: those of pooled runs lie over each other, or days apart."""
        return request_rate(part.every for part in self.parts or (self,))


def _of(values: NDArray | None, chosen: NDArray) -> NDArray | None:  # type: ignore[type-arg]
    return None if values is None else values[chosen]


def as_arm(source: Source, name: str, *, dropped: float = 0.0) -> ArmData:
    """Prepare a run or a table of records."""
    if isinstance(source, RecordTable):
        every, client, closed, duration = measured(source), ClientHealth(), False, 0.0
        headers: tuple[RunHeader, ...] = ()
    else:
        every = measured(source.table())
        client = source.trailer.client if source.trailer else ClientHealth()
        closed = source.header.arrival.kind == "closed" and source.header.kind == "bench"
        duration = source.trailer.duration_s if source.trailer and len(every) == len(source.records) else 0.0
        headers = (source.header,)
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
        headers=headers,
        states=tuple(getattr(source, "states", ())),
    )


def pool(arms: Sequence[ArmData], name: str, spans_s: Sequence[float]) -> ArmData:
    """Several runs as one arm: one run after the other, each in a stretch of time of its own (`spans_s`, seconds)."""
    if len(arms) == 1:
        return arms[0]._replace(name=name)
    begins = np.concatenate([[0.0], np.cumsum(spans_s)[:-1]])
    rows = np.cumsum([0, *(len(arm.every) for arm in arms)])
    dones = np.cumsum([0, *(len(arm.done) for arm in arms)])
    limited = [arm.client for arm in arms if arm.client.limited]
    gaps = Gaps(
        of=np.concatenate([arm.gaps.of + first for arm, first in zip(arms, dones, strict=False)]),
        each=np.concatenate([arm.gaps.each for arm in arms]),
        begin_ns=np.concatenate([arm.gaps.begin_ns for arm in arms]),
        length_ns=np.concatenate([arm.gaps.length_ns for arm in arms]),
        tokens=np.concatenate([arm.gaps.tokens for arm in arms]),
        rows=sum(arm.gaps.rows for arm in arms),
        thinned=sum(arm.gaps.thinned for arm in arms),
    )
    return ArmData(
        name=name,
        every=RecordTable.concat([arm.every for arm in arms]),
        done=RecordTable.concat([arm.done for arm in arms]),
        done_rows=np.concatenate([arm.done_rows + first for arm, first in zip(arms, rows, strict=False)]),
        at_s=np.concatenate([arm.at_s + begin for arm, begin in zip(arms, begins, strict=True)]),
        gaps=gaps,
        client=limited[0] if limited else arms[0].client,
        closed_loop=any(arm.closed_loop for arm in arms),
        duration_s=sum(arm.duration_s for arm in arms),
        dropped=max(arm.dropped for arm in arms),
        headers=tuple(header for arm in arms for header in arm.headers),
        run=np.concatenate([np.full(len(arm.done), i, dtype=np.int64) for i, arm in enumerate(arms)]),
        parts=tuple(arms),
        states=tuple(state for arm in arms for state in arm.states),
    )
