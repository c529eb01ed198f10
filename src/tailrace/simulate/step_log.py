"""When each step ended, in closed form: one entry a run of steps, not one a step."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np


class StepLog:
    """Steps are counted from 1; step `k` of a run that began at `start` ends at `start + k*first + grow*k*(k-1)/2`."""

    __slots__ = ("_first", "_grow", "_start", "_step", "enabled", "end_step")

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._step: list[int] = []
        """Steps done before each run."""
        self._start: list[int] = []
        self._first: list[int] = []
        self._grow: list[int] = []
        self.end_step = 0

    def add(self, step: int, start: int, first: int, grow: int, count: int) -> None:
        """`count` steps after `step` steps, begun at `start` (ps): the first lasts `first`, each next `grow` more."""
        self._step.append(step)
        self._start.append(start)
        self._first.append(first)
        self._grow.append(grow)
        self.end_step = step + count

    def __len__(self) -> int:
        return len(self._step)

    def end_of(self, step: int) -> int:
        """When step number `step` ended (ps)."""
        i = bisect_right(self._step, step - 1) - 1
        k = step - self._step[i]
        return self._start[i] + k * self._first[i] + self._grow[i] * (k * (k - 1) // 2)

    def ends(self, first: int, last: int) -> np.ndarray:
        """When the steps `first` … `last` (inclusive) ended, ps, as int64."""
        lo = bisect_right(self._step, first - 1) - 1
        hi = bisect_right(self._step, last - 1)
        begins = np.array(self._step[lo:hi], dtype=np.int64)
        bounds = np.append(begins[1:], last)
        counts = bounds - begins
        index = np.repeat(np.arange(hi - lo), counts)
        k = np.arange(self._step[lo] + 1, last + 1, dtype=np.int64) - begins[index]
        start = np.array(self._start[lo:hi], dtype=np.int64)[index]
        step = np.array(self._first[lo:hi], dtype=np.int64)[index]
        grow = np.array(self._grow[lo:hi], dtype=np.int64)[index]
        out: np.ndarray = start + k * step + grow * (k * (k - 1) // 2)
        return out[first - 1 - self._step[lo] :]

    def forget(self, before: int) -> None:
        """Drop runs that ended with or before step `before`."""
        keep = len(self._step) if before >= self.end_step else bisect_right(self._step, before) - 1
        if keep > 0:
            del self._step[:keep], self._start[:keep], self._first[:keep], self._grow[:keep]
