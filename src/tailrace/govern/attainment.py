"""How many requests of a lane met its objectives, and how fast its error budgets burn.

A p99 of 500 ms allows one request in a hundred to be slower: that hundredth is the error budget of the objective. The
burn rate is the share of requests that missed, over that budget: 1 spends it exactly, 10 ten times as fast. Counted by
requests, not by time, so that a quiet night does not pay for a bad hour. Refused, cancelled, timed-out and failed
requests have missed every objective of theirs: whoever got no answer got none in time.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from tailrace.govern.objectives import objective_text
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import Objectives, S

_FIELDS: Final = {"ttft": "ttft_ns", "tpot": "tpot_ns", "chunk_gap": "chunk_gap_max_ns", "e2e": "e2e_ns"}
CELL_NS: Final = 30 * S
"""Windows move in steps of this."""
WINDOWS: Final = {"5m": 10, "1h": 120}
"""Window -> cells. The short one says that it burns now, the long one that it is no blip."""


def missed(record: RequestRecord, metric: str, bound_ns: int) -> bool:
    """Whether a request missed one bound: it did not complete, was slower, or is a stream that never had a token."""
    if record.outcome is not OutcomeKind.COMPLETED:
        return True
    value: int | None = getattr(record, _FIELDS[metric])
    if value is None:
        return metric == "ttft" and record.stream
    return value > bound_ns


def met_all(record: RequestRecord, objectives: Objectives) -> bool:
    """Whether a request completed within every bound; of several quantiles of a metric the strictest bound counts."""
    return record.outcome is OutcomeKind.COMPLETED and not any(
        missed(record, metric, min(bounds.values())) for metric, bounds in objectives.bounds.items() if bounds
    )


class Attainment:
    """One lane's requests of the last hour. Memory: a small list for each of 120 cells."""

    def __init__(self, objectives: Objectives) -> None:
        self.objectives = objectives
        self._bounds = [
            (metric, quantile, bound)
            for metric, bounds in objectives.bounds.items()
            for quantile, bound in sorted(bounds.items())
        ]
        self._cells: deque[tuple[int, list[int]]] = deque()
        self.requests = 0
        """Since the start, and how many of them met every objective."""
        self.met = 0

    def heard(self, record: RequestRecord, now: int) -> None:
        """A request of the lane has ended."""
        cell = now // CELL_NS
        if not self._cells or self._cells[-1][0] != cell:
            self._cells.append((cell, [0] * (2 + len(self._bounds))))
            while self._cells[0][0] <= cell - max(WINDOWS.values()):
                self._cells.popleft()
        counts = self._cells[-1][1]
        met = met_all(record, self.objectives)
        self.requests += 1
        self.met += met
        counts[0] += 1
        counts[1] += met
        for at, (metric, _, bound) in enumerate(self._bounds, 2):
            counts[at] += missed(record, metric, bound)

    def view(self, now: int) -> dict[str, Any]:
        """Counts of the windows, and the burn rate of each objective in them; a rate of no request is absent."""
        newest = now // CELL_NS
        windows: dict[str, dict[str, int]] = {}
        burn: dict[str, dict[str, float]] = {}
        for name, cells in WINDOWS.items():
            sums = [0] * (2 + len(self._bounds))
            for cell, counts in self._cells:
                if newest - cells < cell <= newest:
                    sums = [a + b for a, b in zip(sums, counts, strict=True)]
            windows[name] = {"requests": sums[0], "met": sums[1]}
            for at, (metric, quantile, _) in enumerate(self._bounds, 2):
                if sums[0]:
                    rate = sums[at] / sums[0] / (1 - quantile)
                    burn.setdefault(objective_text(metric, quantile), {})[name] = round(rate, 3)
        return {"attainment": windows, "burn_rate": burn}
