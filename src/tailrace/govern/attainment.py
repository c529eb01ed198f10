"""How many requests of a lane met its objectives, and how fast its error budgets burn.

A p99 of 500 ms allows one request in a hundred to be slower: that hundredth is the error budget of the objective. The
burn rate is the share of requests that missed, over that budget: 1 spends it exactly, 10 ten times as fast. Counted by
requests, not by time, so that a quiet night does not pay for a bad hour. Refused, cancelled, timed-out and failed
requests have missed every objective of theirs: whoever got no answer got none in time.

A request counts when it passes a bound, not when it ends: one that hangs for ten minutes is seen in the first of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from tailrace.govern.objectives import objective_text
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import Objectives, S

_FIELDS: Final = {"ttft": "ttft_ns", "tpot": "tpot_ns", "chunk_gap": "chunk_gap_max_ns", "e2e": "e2e_ns"}
CELL_NS: Final = 30 * S
"""Windows up to `FINE_NS` move in steps of this."""
FINE_NS: Final = 6 * 3600 * S
COARSE_NS: Final = 1800 * S
"""Longer windows move in steps of this: three days are 144 of them."""
LONGEST_NS: Final = 7 * 86_400 * S
"""No window reaches further back."""
WINDOWS: Final = {"5m": 300 * S, "1h": 3600 * S}
"""The windows that every view has. The short one says that it burns now, the long one that it is no blip."""


class _Ring:
    """Counts by cells of time, as running sums: any window is one difference, however many cells it has."""

    def __init__(self, width: int, cell_ns: int, kept_ns: int) -> None:
        self.cell_ns = cell_ns
        self._most = kept_ns // cell_ns
        self._cells: list[int] = [-1]
        self._sums: list[list[int]] = [[0] * width]
        """Up to the end of each cell; the first entry is what was before all that is kept."""

    def __len__(self) -> int:
        return len(self._cells) - 1

    def add(self, counts: Sequence[int], now: int) -> None:
        cell = now // self.cell_ns
        if self._cells[-1] < cell:
            self._cells.append(cell)
            self._sums.append(list(self._sums[-1]))
            if self._cells[1] <= cell - 2 * self._most:
                old = bisect_left(self._cells, cell - self._most + 1) - 1
                del self._cells[:old], self._sums[:old]
        newest = self._sums[-1]
        for at, count in enumerate(counts):
            newest[at] += count

    def within(self, window_ns: int, now: int) -> list[int]:
        """Counted in the cells that the window reaches into, the newest being that of `now`."""
        first = now // self.cell_ns - max(1, window_ns // self.cell_ns) + 1
        before = self._sums[max(0, bisect_left(self._cells, first) - 1)]
        return [a - b for a, b in zip(self._sums[-1], before, strict=True)]


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
    """One lane's requests of the last days. Memory: some thousand small lists at most."""

    def __init__(self, objectives: Objectives) -> None:
        self.objectives = objectives
        self._bounds = [
            (metric, quantile, bound)
            for metric, bounds in objectives.bounds.items()
            for quantile, bound in sorted(bounds.items())
        ]
        # Of each bound, who missed it and who was judged by it at all: the misses of one request may lie minutes apart,
        # and a window that holds a miss must hold its request.
        width = 2 + 2 * len(self._bounds)
        self._fine = _Ring(width, CELL_NS, FINE_NS)
        self._coarse = _Ring(width, COARSE_NS, LONGEST_NS)
        self._early: dict[str, int] = {}
        """Requests in flight that have been counted already -> which of the bounds they had passed, as bits."""
        self.requests = 0
        """Since the start, and how many of them met every objective."""
        self.met = 0

    def heard(self, record: RequestRecord, now: int) -> None:
        """A request of the lane has ended."""
        passed = self._early.pop(record.request_id, None)
        met = met_all(record, self.objectives)
        self.requests += 1
        self.met += met
        late = [not (passed or 0) >> at & 1 for at in range(len(self._bounds))]
        misses = [
            due and missed(record, metric, bound) for due, (metric, _, bound) in zip(late, self._bounds, strict=True)
        ]
        self._add([passed is None, met, *misses, *late], now)

    def passed(self, request_id: str, metric: str, age_ns: int, now: int) -> None:
        """A request in flight has waited `age_ns` for what `metric` measures, and still waits."""
        already = self._early.get(request_id)
        fresh = 0
        for at, (name, _, bound) in enumerate(self._bounds):
            if name == metric and age_ns > bound and not (already or 0) >> at & 1:
                fresh |= 1 << at
        if fresh:
            self._early[request_id] = (already or 0) | fresh
            misses = [fresh >> at & 1 for at in range(len(self._bounds))]
            self._add([already is None, 0, *misses, *misses], now)

    def forget(self, alive: Container[str]) -> None:
        """Requests that ended without a record (a reload moved their lane) must not be remembered for ever."""
        for request_id in [one for one in self._early if one not in alive]:
            del self._early[request_id]

    def _add(self, counts: Sequence[int], now: int) -> None:
        self._fine.add(counts, now)
        self._coarse.add(counts, now)

    def view(self, now: int, windows: Mapping[str, int] = WINDOWS) -> dict[str, Any]:
        """Counts of the windows (name -> ns), and the burn rate of each objective; a rate of no request is absent.

        `missed` has plain counts, which add up over processes: objective -> window -> the requests that it judged (each
        when it ends, or passes the bound), and those of them that missed.
        """
        attained: dict[str, dict[str, int]] = {}
        burn: dict[str, dict[str, float]] = {}
        counts: dict[str, dict[str, dict[str, int]]] = {}
        for name, window_ns in {**WINDOWS, **windows}.items():
            sums = (self._fine if window_ns <= FINE_NS else self._coarse).within(window_ns, now)
            if name in WINDOWS:
                attained[name] = {"requests": sums[0], "met": sums[1]}
            for at, (metric, quantile, _) in enumerate(self._bounds, 2):
                objective = objective_text(metric, quantile)
                judged = sums[at + len(self._bounds)]
                counts.setdefault(objective, {})[name] = {"requests": judged, "missed": sums[at]}
                if judged and name in WINDOWS:
                    burn.setdefault(objective, {})[name] = round(sums[at] / judged / (1 - quantile), 3)
        return {"attainment": attained, "burn_rate": burn, "missed": counts}
