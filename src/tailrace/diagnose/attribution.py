"""Where the tail, or its change, lies: every attribution that a body of evidence bears, each computed once on demand.

A rule asks for the one that it needs (`evidence.attributed.gaps`); the diagnosis lists what they all say. Everything is
computed with fixed seeds: the same data give the same numbers.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.attribution.contribution import Contribution, contributions
from tailrace.analyze.attribution.gaps_together import (
    Episodes,
    GapsTogether,
    Stops,
    Streams,
    episodes_of,
    gaps_together,
)
from tailrace.analyze.attribution.mix_split import MixSplit, mix_split
from tailrace.analyze.attribution.moments import Happening, Moment, moments
from tailrace.analyze.attribution.regressions import KindChange, regressions
from tailrace.analyze.attribution.replicas import ReplicaSkew, replica_skew
from tailrace.analyze.decompose import (
    StageChange,
    StageInterval,
    TailStages,
    stage_change,
    stage_intervals,
    tail_stages,
)
from tailrace.diagnose.observed import Clock
from tailrace.diagnose.prefill_stalls import PrefillStalls, prefill_stalls
from tailrace.stats.blocks import Blocks, blocks_of
from tailrace.stats.periods import Period, Spike, period_of, spike_of
from tailrace.stats.quantiles import supported

if TYPE_CHECKING:
    from tailrace.diagnose.evidence import EvidenceSet

__all__ = ["SPIKES", "Attributed"]

_SEED: Final = 20
_LEAST: Final = 100
"""Requests in each window below which two are not laid beside each other."""
SPIKES: Final = ("queue_engine", "queue_gateway", "queue", "ttft", "failed")
"""Waits that a timer may govern; `failed` is the age at which requests failed, by reason."""
_NO_EVENTS: Final = frozenset({"finished", "aborted", "stack", "request"})
"""Kinds of events that belong to single requests: there is one at any moment."""


def _seeded() -> np.random.Generator:
    return np.random.default_rng(_SEED)


class Attributed:
    """The attributions of one body of evidence. What cannot be computed is `None` or empty."""

    def __init__(self, evidence: EvidenceSet) -> None:
        self.evidence = evidence
        self._stages: dict[str, TailStages | None] = {}
        self._splits: dict[str, MixSplit | None] = {}
        self._regressions: dict[str, list[KindChange]] = {}
        self._shifts: dict[str, dict[str, StageChange]] = {}
        self._spikes: dict[str, Spike | None] = {}

    # -- one window

    def stages(self, total: str = "e2e") -> TailStages | None:
        """The stages of the requests near the p99 (p95, p50 where n supports no more) of `e2e` or `ttft`."""
        if total not in self._stages:
            n = self.evidence.now.n
            p = next((q for q in (0.99, 0.95, 0.5) if supported(q, n)), None)
            self._stages[total] = None if p is None else tail_stages(self.evidence.now.done, total, p)
        return self._stages[total]

    def stage_parts(self, tail: TailStages) -> list[StageInterval]:
        """Their intervals, the largest excess over the typical request first."""
        return stage_intervals(self.evidence.now.done, tail, _seeded())

    @cached_property
    def _streams(self) -> tuple[Streams, Stops] | None:
        window = self.evidence.now
        stalls = window.stalls
        rows = window.streams
        rows = rows[~np.isnan(window.first[rows])]
        if not rows.size or not stalls.row.size:
            return None
        place = np.full(window.n, -1, dtype=np.int64)
        place[rows] = np.arange(rows.size)
        _, group = np.unique(window.done.column("backend")[rows].astype(str), return_inverse=True)
        keep = place[stalls.row] >= 0
        return (
            Streams(
                first=window.first[rows],
                end=window.end[rows],
                group=group.astype(np.int64),
                weight=window.done.column("keep_weight")[rows].astype(np.float64),
            ),
            Stops(stream=place[stalls.row[keep]], begin=stalls.begin[keep], end=stalls.end[keep]),
        )

    @cached_property
    def gaps(self) -> GapsTogether | None:
        """Whether streams stop together or one alone; `None` without stalls in known timelines."""
        return None if self._streams is None else gaps_together(*self._streams)

    @cached_property
    def episodes(self) -> Episodes | None:
        """Stalls that overlap, joined (times in ns on the window's axis)."""
        return None if self._streams is None else episodes_of(self._streams[1], self._streams[0])

    @cached_property
    def period(self) -> Period | None:
        """The period of the moments at which streams stop; of those that stop several where there are such."""
        episodes = self.episodes
        if episodes is None:
            return None
        several = episodes.streams >= 2
        begin = episodes.begin[several] if several.sum() >= 5 else episodes.begin
        return period_of(begin / 1e9)

    @cached_property
    def prefills(self) -> PrefillStalls | None:
        """The stalls laid beside the prefills of long prompts; `relation` is gap length against prompt / rate."""
        window = self.evidence.now
        return prefill_stalls(window) if window.stalls.row.size and window.long.any() else None

    @cached_property
    def skew(self) -> ReplicaSkew | None:
        """How evenly replicas are loaded; `None` with fewer than two known ones."""
        return replica_skew(self.evidence.now.every, _seeded())

    def spike(self, wait: str) -> Spike | None:
        """The value at which waits of one kind (`SPIKES`, or any duration of the record) cluster."""
        if wait not in self._spikes:
            window = self.evidence.now
            if wait == "failed":
                left = np.ones(len(window.every), dtype=bool)
                left[window.rows] = False
                reasons = window.every.column("reason")[left]
                ages = window.every.ms("e2e")[left]
                found = [spike_of(ages[reasons == reason]) for reason in sorted(set(reasons.tolist()))]
                self._spikes[wait] = max((one for one in found if one), key=lambda one: one.n, default=None)
            else:
                self._spikes[wait] = spike_of(window.done.ms(wait))
        return self._spikes[wait]

    @cached_property
    def moments(self) -> list[Moment]:
        """When in the window it became slower or faster, and what else changed then."""
        return moments(self.evidence.now.every, self.happenings)

    @cached_property
    def happenings(self) -> list[Happening]:
        """Events whose moment is known on the wall clock: what the evidence was told, and what its logs say."""
        told = [Happening(*one) for one in self.evidence.events]
        told += [
            Happening(event.at, f"{event.kind}: {event.text}" if event.text else event.kind)
            for event in self.evidence.observed.events
            if event.at is not None and event.clock is Clock.UTC and event.kind not in _NO_EVENTS
        ]
        return sorted(told)

    @cached_property
    def blocks(self) -> Blocks:
        """The window cut into blocks of time as long as what the requests lose depends on its past."""
        window = self.evidence.now
        return blocks_of(window.lost.total, window.start / 1e9)

    @cached_property
    def contributions(self) -> list[Contribution]:
        """Each tenant's, route's, lane's … share of the tail against its share of the traffic."""
        window = self.evidence.now
        slow: NDArray[np.bool_] = np.zeros(window.n, dtype=bool)
        slow[window.tail] = True
        # The tail is chosen among interactive requests: the share of traffic is of the same.
        rows = np.flatnonzero(window.interactive)
        blocks = self.blocks._replace(of=self.blocks.of[rows])
        return contributions(window.done.where(rows), slow[rows], blocks, _seeded())

    # -- two windows

    @property
    def comparable(self) -> bool:
        """Whether there is a window from before, and both are large enough to be laid beside each other."""
        before = self.evidence.before
        return before is not None and min(before.n, self.evidence.now.n) >= _LEAST

    def split(self, metric: str = "ttft") -> MixSplit | None:
        """The change of a metric's p99 and mean as mix and within."""
        if metric not in self._splits:
            before = self.evidence.before
            self._splits[metric] = (
                mix_split(before.done, self.evidence.now.done, _seeded(), metric=metric)
                if before is not None and self.comparable
                else None
            )
        return self._splits[metric]

    def regressions(self, metric: str = "ttft") -> list[KindChange]:
        """Every kind of requests that both windows have, compared by itself; false discoveries bounded at 5 %."""
        if metric not in self._regressions:
            before = self.evidence.before
            self._regressions[metric] = (
                regressions(before.done, self.evidence.now.done, _seeded(), metric=metric)
                if before is not None and self.comparable
                else []
            )
        return self._regressions[metric]

    def shift(self, total: str = "e2e") -> dict[str, StageChange]:
        """How each stage's part of the p99 of `e2e` or `ttft` changed; empty without a window from before."""
        if total not in self._shifts:
            before = self.evidence.before
            if before is None or not self.comparable:
                return {}
            n = min(before.n, self.evidence.now.n)
            p = next(q for q in (0.99, 0.95, 0.5) if supported(q, n))
            self._shifts[total] = stage_change(
                before.done, self.evidence.now.done, _seeded(), total=total, p=p, block_s=None
            )
        return self._shifts[total]
