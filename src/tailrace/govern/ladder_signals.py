"""What the ladder measures of requests: the last seconds of each lane, and what its tail was at least.

A quantile of few requests is their slowest one, and a ladder that follows it degrades everybody for one. So a tail
counts as long as it *surely* is: the order statistic that stays below the true quantile with about 95 % confidence
(normal approximation of the binomial count of values above it). Of fewer than a hundred requests that is never the
slowest one, and a single outlier moves nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tailrace.govern.ladder import Signal
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import MS, Objectives, S

KEPT: Final = 512
"""Requests of a lane that are looked at; at higher rates the window is shorter than it was asked to be."""
_ONE_SIDED_95: Final = 1.645
_WAIT_QUANTILE: Final = 0.95


def surely(ordered: Sequence[float], quantile: float) -> float | None:
    """What the `quantile` of the source of these ascending values is at least; `None` where they are too few."""
    n = len(ordered)
    above = math.floor(n * (1 - quantile)) + math.ceil(_ONE_SIDED_95 * math.sqrt(n * quantile * (1 - quantile)))
    return ordered[n - 1 - above] if above < n - 1 else None


class LaneTail:
    """Times to the first token and waits of one lane, as shares of its TTFT objective (ns)."""

    __slots__ = ("_first_tokens", "_strictest", "_ttft", "_waits")

    def __init__(self, objectives: Objectives) -> None:
        self._ttft = objectives.bounds.get("ttft", {})
        self._strictest = min(self._ttft.values(), default=None)
        self._first_tokens: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self._waits: deque[tuple[int, int]] = deque(maxlen=KEPT)

    def first_token(self, ttft_ns: int, now: int) -> None:
        """A request got its first token."""
        self._first_tokens.append((now, ttft_ns))

    def gave_up(self, age_ns: int, now: int) -> None:
        """A request ended in vain, without a first token; says nothing where that was before the objective."""
        if self._strictest is not None and age_ns > self._strictest:
            self.first_token(age_ns, now)

    def waited(self, wait_ns: int, now: int) -> None:
        """A request left the lane's queue: it was admitted, or gave up."""
        self._waits.append((now, wait_ns))

    def forget(self) -> None:
        """What was measured so far belongs to another step of the ladder."""
        self._first_tokens.clear()
        self._waits.clear()

    def ttft(self, since: int, pending: Iterable[int] = ()) -> float | None:
        """The tail over its objective. `pending`: ages of those that have no token yet; they count once they are over
        it, or a server that hangs would look calm.
        """
        strictest = self._strictest
        if strictest is None:
            return None
        seen = [ttft for at, ttft in self._first_tokens if at >= since]
        seen += [age for age in pending if age > strictest]
        seen.sort()
        shares = [
            value / bound for quantile, bound in self._ttft.items() if (value := surely(seen, quantile)) is not None
        ]
        return max(shares, default=None)

    def queue_wait(self, since: int, pending: Iterable[int] = ()) -> float | None:
        """p95 of the wait in the lane, over the objective. `pending`: ages of those that wait."""
        if self._strictest is None:
            return None
        seen = [wait for at, wait in self._waits if at >= since]
        seen += pending
        seen.sort()
        value = surely(seen, _WAIT_QUANTILE)
        return None if value is None else value / self._strictest

    def share(self, wait_ns: int | None) -> float | None:
        """A predicted wait over the objective."""
        return None if wait_ns is None or self._strictest is None else wait_ns / self._strictest


class LadderSignals:
    """Collects what happens between two looks of the ladder, in all lanes that it watches."""

    def __init__(self, objectives: Mapping[str, Objectives], *, window_ns: int = 10 * S) -> None:
        self._lanes = {name: LaneTail(objective) for name, objective in objectives.items()}
        self._window_ns = window_ns
        self._gaps: deque[int] = deque(maxlen=KEPT)
        self._answers: deque[tuple[int, bool]] = deque(maxlen=KEPT)
        self._since = 0
        """Nothing before this instant counts: the ladder stood elsewhere."""

    def lane(self, name: str) -> LaneTail | None:
        """Where a lane's requests are entered; `None` for one that the ladder does not watch."""
        return self._lanes.get(name)

    def gap(self, now: int) -> None:
        """A stream stood still for longer than its lane allows."""
        self._gaps.append(now)

    def answered(self, now: int, *, refused: bool) -> None:
        """A request of no low priority was let in, or refused by the ladder."""
        self._answers.append((now, refused))

    def stepped(self, now: int) -> None:
        """The ladder has moved: the next step is decided by what comes from now on."""
        self._since = now
        self._gaps.clear()
        self._answers.clear()
        for lane in self._lanes.values():
            lane.forget()

    def read(
        self,
        now: int,
        *,
        without_token: Mapping[str, Sequence[int]] | None = None,
        waiting: Mapping[str, Sequence[int]] | None = None,
        predicted: Mapping[str, int | None] | None = None,
        engines: Iterable[EngineState] = (),
        loop_lag_ns: int | None = None,
    ) -> dict[Signal, float | None]:
        """All signals at `now`. By lane: ages (ns) of requests without a token and in the queue, predicted waits."""
        since = max(self._since, now - self._window_ns)
        ages, queued, waits = without_token or {}, waiting or {}, predicted or {}
        lanes = self._lanes.items()
        states = tuple(engines)
        while self._gaps and self._gaps[0] < since:
            self._gaps.popleft()
        while self._answers and self._answers[0][0] < since:
            self._answers.popleft()
        # A window that has just begun must not make one gap a storm.
        length_s = max(now - since, self._window_ns // 2) / S
        return {
            Signal.TTFT: _worst(tail.ttft(since, ages.get(name, ())) for name, tail in lanes),
            Signal.QUEUE_WAIT: _worst(tail.queue_wait(since, queued.get(name, ())) for name, tail in lanes),
            Signal.PREDICTED_WAIT: _worst(tail.share(waits.get(name)) for name, tail in lanes),
            Signal.ENGINE_WAITING: _least(state.waiting for state in states),
            Signal.KV_USAGE: _least(state.kv_usage for state in states),
            Signal.GAPS_PER_S: len(self._gaps) / length_s,
            Signal.LOOP_LAG_MS: None if loop_lag_ns is None else loop_lag_ns / MS,
            Signal.TURNED_AWAY: sum(refused for _, refused in self._answers) / max(1, len(self._answers)),
        }


def _least(values: Iterable[float | None]) -> float | None:
    """Of several engines: while one has room, balance helps and giving things up does not."""
    return min((value for value in values if value is not None), default=None)


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
