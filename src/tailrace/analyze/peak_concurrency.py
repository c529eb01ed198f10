"""How many requests ran at once in a body of records: the load that production has seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailrace.analyze.timebase import starts_ns
from tailrace.model.outcome import OutcomeKind
from tailrace.store.table import RecordTable


class PeakConcurrency(NamedTuple):
    """Requests in progress at once."""

    peak: int
    mean: float
    """Over the time from the first start to the last end (Little: sum of the durations / that time)."""
    n: int
    """Requests that were looked at."""

    def between(self) -> tuple[int, int]:
        """From half the peak to all of it: the loads at which a test resembles what was seen."""
        return max(1, -(-self.peak // 2)), max(1, self.peak)


def peak_concurrency(table: RecordTable) -> PeakConcurrency:
    """The largest number of requests in progress at once; refused ones took no part. All 0 without requests."""
    served = table.where((table.column("outcome") != OutcomeKind.REJECTED.value).astype(bool))
    if not len(served):
        return PeakConcurrency(0, 0.0, 0)
    starts = starts_ns(served)
    lasting = served.column("e2e_ns").astype(np.int64)
    ends = starts + lasting
    at = np.concatenate((starts, ends))
    change = np.concatenate((np.ones(len(starts), dtype=np.int64), -np.ones(len(ends), dtype=np.int64)))
    # At equal times ends come first: one worker's next request does not overlap its last.
    order = np.lexsort((change, at))
    span = int(ends.max() - starts.min())
    running = np.cumsum(change[order])
    return PeakConcurrency(int(running.max()), float(lasting.sum()) / span if span else float(len(served)), len(served))
