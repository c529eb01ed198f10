"""The ends of all steps of an engine so far, in one array that grows: each is computed once."""

from __future__ import annotations

import numpy as np

from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.incidents.blocks import Stamps
from tailrace.simulate.step_log import StepLog


class StepEnds:
    """Steps are counted from 1; stamps in ns."""

    __slots__ = ("_ends", "count")

    def __init__(self) -> None:
        self._ends: Stamps = np.empty(4096, dtype=np.int64)
        self.count = 0
        """Steps whose ends are known."""

    def follow(self, log: StepLog) -> None:
        """Take in what the log has beyond what is known."""
        new = log.end_step
        if new <= self.count:
            return
        if new > self._ends.size:
            grown = np.empty(max(new, 2 * self._ends.size), dtype=np.int64)
            grown[: self.count] = self._ends[: self.count]
            self._ends = grown
        self._ends[self.count : new] = log.ends(self.count + 1, new) // PS_PER_NS
        self.count = new

    def of(self, spans: list[tuple[int, int]]) -> Stamps:
        """The ends of the steps in these spans (first, last), in order. Not to be written to."""
        if len(spans) == 1:
            low, high = spans[0]
            return self._ends[low - 1 : high]
        return np.concatenate([self._ends[low - 1 : high] for low, high in spans])
