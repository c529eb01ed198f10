"""What requests missed before this process began, read from its own records: an alarm's windows reach over a restart.

The counts that alarms go by live in the processes that serve, and begin with them. A gateway that is restarted in the
middle of an incident would have to burn its budget anew before anybody heard of it again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic_ns, time_ns
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.govern.attainment import CELL_NS
from tailrace.govern.objectives import objective_name
from tailrace.model.errors import TailraceError
from tailrace.store.query import RecordStore

__all__ = ["AlertPast", "Counts"]

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
_COLUMNS: Final = {"chunk_gap": "chunk_gap_max"}
"""What the store calls the metric of an objective, where the names differ."""
Counts = Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]
"""Lane -> objective -> window -> `{"requests", "missed"}`."""


class _Cells(NamedTuple):
    """Requests by when they ended (monotonic clock, ns), cells of `CELL_NS`."""

    at: Ints
    requests: Ints
    missed: Ints


class AlertPast:
    """Counts by lane and objective from before `began`; every request since then is counted by whoever served it."""

    def __init__(self) -> None:
        self._began_unix_ns, self._began_ns = time_ns(), monotonic_ns()
        self._cells: dict[tuple[str, str, int], _Cells] = {}
        """(lane, objective, bound ns) -> cells: with another bound what was counted holds no more."""

    def read(self, directory: str, bounds: Mapping[str, Mapping[str, int]], longest_ns: int) -> int:
        """Count what ended in the last `longest_ns` before the beginning; returns how many requests that were. For a
        thread. A directory that cannot be read leaves the past empty, and the log says so.
        """
        since = self._began_unix_ns - longest_ns
        found = 0
        try:
            store = RecordStore(directory, threads=1)
            wanted = {(objective, bound) for named in bounds.values() for objective, bound in named.items()}
            for objective, bound in sorted(wanted):
                named = objective_name(objective)
                if named is None:
                    continue
                rows = store.ask(
                    "missed_over_time",
                    metric=_COLUMNS.get(named[0], named[0]),
                    since_unix_ns=since,
                    until_unix_ns=self._began_unix_ns,
                    amended=False,
                    numbers={"bound_ms": bound / 1e6, "cell_s": CELL_NS / 1e9, "absent_misses": named[0] == "ttft"},
                ).rows
                found = max(found, self._keep(objective, bound, rows))
        except TailraceError as error:
            log.warning("alarms begin without what was before this start: %s", error)
        return found

    def _keep(self, objective: str, bound: int, rows: list[tuple[Any, ...]]) -> int:
        lanes: dict[str, list[tuple[int, int, int]]] = {}
        for lane, end, requests, missed in rows:
            # The last cell is that in which this process began: its requests are of before, though its end is not.
            ended = min(int(end), self._began_unix_ns)
            lanes.setdefault(str(lane), []).append((ended, int(requests), int(missed)))
        total = 0
        for lane, cells in lanes.items():
            table = np.array(sorted(cells), dtype=np.int64)
            at = table[:, 0] - self._began_unix_ns + self._began_ns
            self._cells[lane, objective, bound] = _Cells(at, table[:, 1], table[:, 2])
            total += int(table[:, 1].sum())
        return total

    def joined(
        self, live: Counts, bounds: Mapping[str, Mapping[str, int]], windows: Mapping[str, int], now: int
    ) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        """What is counted live, and what was before, by window; of objectives that are still asked for."""
        out = {
            lane: {name: {window: dict(seen) for window, seen in of.items()} for name, of in objectives.items()}
            for lane, objectives in live.items()
        }
        for (lane, objective, bound), cells in self._cells.items():
            if bounds.get(lane, {}).get(objective) != bound:
                continue
            kept = out.setdefault(lane, {}).setdefault(objective, {})
            for window, length in windows.items():
                inside = cells.at > now - length
                seen = kept.setdefault(window, {"requests": 0, "missed": 0})
                seen["requests"] += int(cells.requests[inside].sum())
                seen["missed"] += int(cells.missed[inside].sum())
        return out
