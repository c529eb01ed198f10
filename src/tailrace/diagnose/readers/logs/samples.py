"""Gauges that a log prints together again and again, kept in bounded memory.

Up to `LIMIT` lines all are kept. Beyond it stretches without work keep their two ends, then every second of the
ordinary lines goes, as often as needed; lines that tell of trouble (somebody waits, the cache is full, running
requests produce hardly anything) stay the longest. How many are left is told.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Clock, Place, Series

__all__ = ["LIMIT", "MOST_GROUPS", "TOGETHER", "UNITS", "Groups", "Samples"]

LIMIT: Final = 100_000
_BLOCK: Final = 20_000
_PIECE: Final = 1_000
"""Rows that wait as tuples, which take five times what they take in an array."""
TOGETHER: Final = 10 * LIMIT
"""Rows of all engines of a log: a log of a hundred pods may not take a hundred times the memory of one."""
MOST_GROUPS: Final = 1_000
_FEWEST: Final = 500
_BACK_S: Final = 60.0
"""Lines of several threads are out of order by moments; further back is another thing."""
_HOUR_S: Final = 3600.0
_MOMENT_S: Final = 120.0
"""Between two load lines at most, where it is to be told whether an hour was turned back between them."""
_SHOWN: Final = 3

UNITS: Final = {
    "prompt_tok_s": "tok/s",
    "output_tok_s": "tok/s",
    "running": "count",
    "waiting": "count",
    "deferred": "count",
    "swapped": "count",
    "preemptions": "count",
    "kv_usage": "share",
    "cpu_kv_usage": "share",
    "swa_usage": "share",
    "mamba_usage": "share",
    "prefix_hit": "share",
    "external_prefix_hit": "share",
    "mm_hit": "share",
    "encoder_cache_usage": "share",
    "accept_length": "tokens",
    "accept_share": "share",
    "cuda_graph": "",
    "kv_tokens_used": "tokens",
    "new_requests": "count",
    "new_tokens": "tokens",
    "cached_tokens": "tokens",
    "pending_tokens": "tokens",
    "after_idle": "",
    "step": "ms",
    "step_prompt_tokens": "tokens",
    "step_prefills": "count",
    "step_decodes": "count",
}
"""Names of the series that logs give, and their units."""


class Samples:
    """Rows of `names`, one a log line."""

    def __init__(self, names: tuple[str, ...], *, limit: int = LIMIT) -> None:
        """`limit` rows are kept at most (and up to one block more while they are read)."""
        self.names = names
        self.total = 0
        self.keep(limit)
        self._rows: list[tuple[float, ...]] = []
        self._blocks: list[NDArray[np.float64]] = []
        self._kept = 0
        self._since = 0
        """Rows since it was last seen whether there are too many."""
        self.back: list[tuple[int, float]] = []
        """(line, s) of each place at which the stamps went back; known once the rows were asked for."""

    def add(self, row: tuple[float, ...]) -> None:
        """One row: (time, line, value of each name); NaN where the line does not say."""
        self._rows.append(row)
        if len(self._rows) >= self._piece:
            self._lay()
            if self._since >= min(_BLOCK, self.limit):
                self._pack()

    def keep(self, limit: int) -> None:
        """From here on, so many rows are kept."""
        self.limit = limit
        self._piece = min(_PIECE, max(limit // 200, 10))

    def _lay(self) -> None:
        if self._rows:
            self.total += len(self._rows)
            self._since += len(self._rows)
            self._blocks.append(np.array(self._rows, dtype=np.float64))
            self._kept += len(self._rows)
            self._rows = []

    def _pack(self) -> None:
        self._lay()
        self._since = 0
        if self._kept > self.limit:
            kept = self._thinned(np.concatenate(self._blocks))
            self._blocks, self._kept = [kept], len(kept)

    def _column(self, rows: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        if name not in self.names:
            return np.full(len(rows), np.nan)
        return rows[:, 2 + self.names.index(name)]

    def _thinned(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        running, waiting = self._column(rows, "running"), self._column(rows, "waiting")
        made, step = self._column(rows, "output_tok_s"), self._column(rows, "step")
        with np.errstate(invalid="ignore", divide="ignore"):
            idle = (running == 0) & ~(waiting > 0)
            inner = idle.copy()
            inner[0] = inner[-1] = False
            inner[1:-1] &= idle[:-2] & idle[2:]
            rate = np.where(running > 0, made / running, np.nan)
            usual = np.nanmedian(rate) if bool(np.isfinite(rate).any()) else np.nan
            trouble = (
                (waiting > 0)
                | (self._column(rows, "kv_usage") >= 0.9)
                | (rate < 0.2 * usual)
                | (self._column(rows, "swapped") > 0)
                | (self._column(rows, "preemptions") > 0)
            )
            if bool(np.isfinite(step).any()):
                trouble |= step > 5 * np.nanmedian(step)
        rows, trouble = rows[~inner], trouble[~inner]
        goal = self.limit // 2
        while len(rows) > goal:
            # Trouble is as ordinary as the rest once it fills half of what may stay.
            if trouble.sum() > goal // 2:
                trouble = trouble & (np.cumsum(trouble) % 2 == 0)
            keep = trouble | (np.arange(len(rows)) % 2 == 0)
            rows, trouble = rows[keep], trouble[keep]
        return rows

    @property
    def kept(self) -> int:
        """Rows that are left."""
        self._pack()
        return self._kept

    def rows(self) -> NDArray[np.float64]:
        """All kept rows in order of time; shape (n, 2 + names).

        Where the stamps go back by an hour, less the moment between two lines, summer time has ended: what follows is
        counted on. Where they go back otherwise, a clock was set or two logs stand in one file, and it is said.
        """
        self._pack()
        if not self._blocks:
            return np.empty((0, 2 + len(self.names)))
        rows = np.concatenate(self._blocks)
        shift = np.zeros(len(rows))
        self.back = []
        with np.errstate(invalid="ignore"):
            turns = np.flatnonzero(np.diff(rows[:, 0]) < -_BACK_S) + 1
        for turn in turns.tolist():
            seconds = float(rows[turn - 1, 0] - rows[turn, 0])
            if 0.0 <= _HOUR_S - seconds <= _MOMENT_S:
                shift[turn:] += _HOUR_S
            self.back.append((int(rows[turn, 1]), seconds))
        if shift.any():
            rows = rows.copy()
            rows[:, 0] += shift
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def said(self) -> list[str]:
        """Where the stamps went back, in words; known once the rows were asked for."""
        out = []
        for line, seconds in self.back[:_SHOWN]:
            if 0.0 <= _HOUR_S - seconds <= _MOMENT_S:
                out.append(
                    f"its stamps go back by an hour at line {line}: taken for the end of summer time, what follows is "
                    "counted on"
                )
            else:
                out.append(
                    f"its stamps go back by {seconds / 60:,.0f} min at line {line}: a clock was set, or two logs stand "
                    "in one file; its lines were put in order of their stamps"
                )
        if len(self.back) > _SHOWN:
            out.append(f"its stamps go back {len(self.back)} times in all")
        return out

    def series(self, labels: dict[str, str], place: Place, clock: Clock) -> list[Series]:
        """One series a name that has any value."""
        rows = self.rows()
        if not len(rows):
            return []
        timeless = bool(np.isnan(rows[:, 0]).any())
        at = np.arange(len(rows), dtype=np.float64) if timeless else rows[:, 0]
        lines = rows[:, 1].astype(np.int64)
        return [
            Series(
                name=name,
                labels=labels,
                axis="line" if timeless else "time",
                at=at,
                values=rows[:, 2 + column],
                unit=UNITS[name],
                clock=Clock.NONE if timeless else clock,
                lines=lines,
                place=place,
            )
            for column, name in enumerate(self.names)
            if not np.isnan(rows[:, 2 + column]).all()
        ]


class Groups:
    """Samples of several engines, which keep `TOGETHER` rows among them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` as of `Samples`."""
        self.names = names
        self.of: dict[tuple[str, str], Samples] = {}
        """(who wrote it, engine) -> its rows."""
        self.left = 0
        """Lines of engines beyond the first `MOST_GROUPS`."""

    def add(self, group: tuple[str, str], row: tuple[float, ...]) -> None:
        """One row, as of `Samples`."""
        found = self.of.get(group)
        if found is None:
            if len(self.of) >= MOST_GROUPS:
                self.left += 1
                return
            found = self.of[group] = Samples(self.names)
            share = min(LIMIT, max(TOGETHER // len(self.of), _FEWEST))
            for samples in self.of.values():
                samples.keep(share)
        found.add(row)

    def said(self, kind: str, owner: str) -> list[str]:
        """What was thinned, and what was left out."""
        out = [
            f"of {samples.total:,} {kind} lines of {owner} {engine or '0'}{f' ({origin})' if origin else ''} "
            f"{samples.kept:,} were kept: all that tell of trouble as far as they fit, of the others every second "
            "again and again"
            for (origin, engine), samples in self.of.items()
            if samples.kept < samples.total
        ]
        if self.left:
            out.append(f"{self.left:,} {kind} lines of further {owner}s were left out: {MOST_GROUPS:,} are looked at")
        return out

    def turned(self) -> list[str]:
        """Where the clocks went back."""
        return [said for samples in self.of.values() for said in samples.said()]
