"""Requests whose stages an engine's log tells one by one, in bounded memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Clock, Place, Rows

__all__ = ["LIMIT", "RequestTable"]

LIMIT: Final = 100_000


class RequestTable:
    """Rows of one table; when there are too many, every second goes."""

    def __init__(self, source: str, kind: str = "requests", *, limit: int = LIMIT) -> None:
        """`source` stands in its place."""
        self.source, self.kind, self.limit = source, kind, limit
        self.total = 0
        self.clock = Clock.NONE
        self._every = 1
        self._rows: list[tuple[int, dict[str, float | str]]] = []

    def add(self, line: int, values: dict[str, float | str]) -> None:
        """One request. Durations in ms."""
        self.total += 1
        if self.total % self._every:
            return
        self._rows.append((line, values))
        if len(self._rows) > self.limit:
            del self._rows[::2]
            self._every *= 2

    def table(self) -> Rows | None:
        """All kept rows; `None` without one."""
        if not self._rows:
            return None
        columns: dict[str, NDArray[Any]] = {}
        for name in dict.fromkeys(key for _, row in self._rows for key in row):
            cells = [row.get(name) for _, row in self._rows]
            if any(isinstance(cell, str) for cell in cells):
                columns[name] = np.array([cell or "" for cell in cells], dtype=object)
            else:
                columns[name] = np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
        lines = np.array([line for line, _ in self._rows], dtype=np.int64)
        return Rows(kind=self.kind, columns=columns, clock=self.clock, lines=lines, place=Place(self.source))

    def said(self) -> list[str]:
        """What was thinned."""
        kept = len(self._rows)
        return [f"of {self.total:,} requests {kept:,} were kept, evenly"] if kept < self.total else []
