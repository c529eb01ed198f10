"""How many requests a lane runs at once, found while it works: more when many short ones wait, fewer otherwise.

A larger batch serves a queue faster and makes every token in it slower. So the limit rises only where there is somebody
to serve (a deep queue), who is served soon (short work), while the measured time per output token keeps the objective;
it falls where the objective is missed, or where nobody needs it. Between the two lies a band in which it stays.

Steps are a tenth to a half up and at most a half down, each judged only by requests that ended after it. A limit that
missed the objective is remembered, and gone beyond again only after a while.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tailrace.model.thresholds import MS, S

_UP: Final = 0.1
_MOST_UP: Final = 0.5
_MOST_DOWN: Final = 0.5
_UNUSED: Final = 0.05
"""Share of the limit that is given up at a time where nobody needs it."""
_QUIET: Final = 0.85
"""The limit may rise below this share of the objective."""
_HEADROOM: Final = 1.25
"""What a lane that nobody waits for keeps above the most that ran: a burst begins without a queue."""
_LONG: Final = 2.0
"""Waiting work of so many times that of a running request is not short."""
_FEW: Final = 20
"""Measured requests before a quantile of theirs is believed."""
_PATIENCE: Final = 4
_FEWEST: Final = 3
"""After `_PATIENCE` steps so many must do: a lane of long requests ends few of them."""
_MOST_PATIENCE: Final = 16
"""After so many steps the lane is looked at without."""
_MOST: Final = 1024
"""Measured times kept between two steps."""


class AdaptiveLimitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and aims of a limit that moves."""

    minimum: int = 1
    maximum: int = 256
    start: int | None = None
    """`None`: the maximum, as a fixed limit would be: it falls only where it must."""
    tpot_ns: int = 80 * MS
    """Time per output token that is to be kept."""
    quantile: float = 0.9
    """By so many of the requests. Not the objective's own p99: the limit must move before a hundred have missed it."""
    deep: float = 0.25
    """A queue is deep from this share of the limit on."""
    step_ns: int = S
    """The shortest time between two steps."""
    probe_ns: int = 30 * S
    """How long a limit that missed the objective is not gone beyond."""


class AdaptiveLimit:
    """Tell it what ends (`observe`) and what the lane looks like (`look`); ask for the `limit`."""

    __slots__ = (
        "_ceiling",
        "_ceiling_at",
        "_judged_from",
        "_limit",
        "_moved_at",
        "_peak",
        "_policy",
        "_queue",
        "_queue_work",
        "_running_work",
        "_tpots",
        "why",
    )

    def __init__(self, policy: AdaptiveLimitPolicy) -> None:
        self._policy = policy
        start = policy.maximum if policy.start is None else policy.start
        self._limit = float(min(max(start, policy.minimum), policy.maximum))
        self._moved_at: int | None = None
        self._judged_from = 0
        """When the limit last moved: what ran mostly before this says nothing of the limit now."""
        self._tpots: list[int] = []
        self._queue = 0
        self._queue_work = 0.0
        self._running_work = 0.0
        self._peak = 0
        self._ceiling: float | None = None
        self._ceiling_at = 0
        self.why = "start"
        """What the last step was taken for: `objective`, `queue`, `unused`, `long work`; `start` before any."""

    def observe(self, tpot_ns: int | None, started: int, now: int) -> None:
        """A request ended that was sent at `started`; `None` where it had too few tokens to tell its time a token."""
        if tpot_ns is None or len(self._tpots) >= _MOST:
            return
        if now - self._judged_from >= (now - started) // 2:
            self._tpots.append(tpot_ns)

    def look(self, running: int, queued: int, running_work: float, queued_work: float, now: int) -> None:
        """The lane now: requests and their work (sums, in any unit) that run and that wait. At an arrival will do."""
        self._peak = max(self._peak, running)
        self._queue = queued
        self._queue_work = queued_work / queued if queued else 0.0
        self._running_work = running_work / running if running else 0.0
        if self._moved_at is None:
            self._moved_at = self._judged_from = now

    def due(self, now: int) -> bool:
        """Whether `limit` judges what was looked at last; in between only the most that ran is kept of a look."""
        return self._moved_at is not None and now - self._moved_at >= self._policy.step_ns

    def limit(self, now: int) -> int:
        """Requests that may run at once, within the policy's bounds."""
        if self._moved_at is not None and self.due(now):
            self._step(now, now - self._moved_at)
        return max(self._policy.minimum, min(self._policy.maximum, math.floor(self._limit + 1e-9)))

    def tpot_ns(self) -> int | None:
        """The policy's quantile of the measured times per token since the last step; `None` without any."""
        if not self._tpots:
            return None
        ordered = sorted(self._tpots)
        return ordered[min(len(ordered) - 1, math.ceil(self._policy.quantile * len(ordered)) - 1)]

    # -- inside

    def _step(self, now: int, since: int) -> None:
        policy = self._policy
        steps = since // policy.step_ns
        if len(self._tpots) < (_FEW if steps < _PATIENCE else _FEWEST if steps < _MOST_PATIENCE else 0):
            return
        tpot = self.tpot_ns()
        load = None if tpot is None else tpot / policy.tpot_ns
        before = self._limit
        if load is not None and load > 1.0:
            self._ceiling, self._ceiling_at = before, now
            self._move(max(before * max(0.95 / load, 1.0 - _MOST_DOWN), 1.0), "objective", now)
            return
        deep = self._queue >= max(1.0, policy.deep * before)
        short = self._queue_work <= _LONG * self._running_work or not self._running_work
        quiet = load is not None and load < _QUIET
        if deep and short and load is not None and quiet and self._peak >= math.floor(before):
            # The limit is what holds them up, and a larger one is known to be harmless. Time per token grows at most
            # in proportion to the batch: half of the way that this leaves is safe.
            share = min(max((_QUIET / max(load, 0.01) - 1.0) / 2.0, _UP), _MOST_UP)
            self._move(self._below_ceiling(before + max(1.0, before * share), now), "queue", now)
        elif deep and not short and not quiet:
            self._move(before * (1.0 - _UNUSED), "long work", now)
        elif not deep:
            needed = self._peak * _HEADROOM + 1.0
            self._move(max(before * (1.0 - _UNUSED), min(needed, before)), "unused", now)
        else:
            self._rest(now)

    def _below_ceiling(self, wanted: float, now: int) -> float:
        if self._ceiling is None:
            return wanted
        if now - self._ceiling_at >= self._policy.probe_ns:
            self._ceiling = None
            return wanted
        return min(wanted, max(self._ceiling * 0.9, self._limit))

    def _move(self, wanted: float, why: str, now: int) -> None:
        limit = min(max(wanted, float(self._policy.minimum)), float(self._policy.maximum))
        if limit != self._limit:
            self._limit = limit
            self._judged_from = now
            self.why = why
        self._rest(now)

    def _rest(self, now: int) -> None:
        self._moved_at = now
        self._tpots.clear()
        self._peak = 0
