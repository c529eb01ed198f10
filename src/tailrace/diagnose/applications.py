"""A window of requests as the service before the gateway reports them: what they overran, and where they ended."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.bench_summary import completed
from tailrace.model.outcome import OutcomeKind
from tailrace.store.table import RecordTable

__all__ = ["ApplicationWindow", "root_of"]

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


def root_of(name: str) -> str:
    """The stage of a part."""
    return name.partition(".")[0]


class ApplicationWindow:
    """All requests of a window, whatever became of them."""

    def __init__(self, table: RecordTable) -> None:
        self.table = table
        self.n = len(table)

    @cached_property
    def failed(self) -> int:
        """How many did not complete."""
        return int((~completed(self.table)).sum())

    @cached_property
    def most_died_in(self) -> tuple[str, int]:
        """The stage or part in which most of those that did not complete ended, and how many."""
        died = self.table.column("died_in")[~completed(self.table)]
        return Counter(map(str, died)).most_common(1)[0] if len(died) else ("", 0)

    @cached_property
    def ended_in(self) -> list[str]:
        """Row -> the stage or part in which its time was over (its own budget's, or the request's), else nothing."""
        outcome, died = self.table.column("outcome"), self.table.column("died_in")
        deadline = self.table.column("reason") == "deadline"
        timed_out = (outcome == OutcomeKind.TIMED_OUT.value) | deadline
        return [str(name) if over else "" for name, over in zip(died, timed_out, strict=True)]

    @cached_property
    def overrun(self) -> list[list[str]]:
        """Row -> the stages that took longer than their budget and were not stopped."""
        return [[str(name) for name in names] for names in self.table.column("slow")]

    @cached_property
    def late(self) -> Mask:
        """Rows in which some stage's time was over."""
        return np.array(
            [bool(ended) or bool(names) for ended, names in zip(self.ended_in, self.overrun, strict=True)], dtype=bool
        )

    @cached_property
    def well(self) -> Mask:
        """Rows that completed with every stage within its budget."""
        return completed(self.table) & ~self.late

    def late_in(self, stage: str) -> list[str]:
        """Row -> the part of `stage` whose time was over; the part in which it ended before those that overran."""
        out = []
        for ended, names in zip(self.ended_in, self.overrun, strict=True):
            mine = [name for name in ([ended] if ended else names) if root_of(name) == stage]
            out.append(mine[0] if mine else "")
        return out

    def part_ms(self, name: str) -> Floats:
        """Time in a stage or part by row (ms), NaN where it is not known."""
        if "." not in name:
            return self.table.ms(name)
        return np.array([row.get(name, np.nan) / 1e6 for row in self.table.column("parts_ns")], dtype=np.float64)
