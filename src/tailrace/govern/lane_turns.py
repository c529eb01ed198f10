"""Which lane is next where several draw on the same places."""

from __future__ import annotations

from typing import Final

from tailrace.govern.lane_state import LaneState
from tailrace.govern.sharing import Between, Sharing

FORGET_NS: Final = 10_000_000_000
"""How long nobody may have waited before what lanes were served counts no more."""


class LaneTurns:
    """The turns of lanes, by one of two rules.

    *Strict*: the least of priority minus the wait of the lane's oldest in steps of `ageing`; whoever waits longer than
    the steps between two lanes goes before every newcomer of the better one, so nobody starves.

    *Weighted*: the lane that was served least, in tokens divided by its weight (as tenants are, `fair_turns`). The
    weight counts the more the longer the lane's oldest has waited: double after one `ageing`.
    """

    __slots__ = ("_ageing", "_empty_since", "_now", "_weighted")

    def __init__(self, sharing: Sharing) -> None:
        self._weighted = sharing.between is Between.WEIGHTED
        self._ageing = sharing.age_ns
        self._now = 0.0
        self._empty_since: int | None = None

    def enter(self, lane: LaneState, *, others: bool, now: int) -> None:
        """Somebody waits in `lane`, in which nobody did; `others`: whether somebody does in other lanes."""
        if not others and self._empty_since is not None and now - self._empty_since > FORGET_NS:
            self._now = lane.charged
        lane.charged = max(lane.charged, self._now)

    def emptied(self, now: int) -> None:
        """Nobody waits in any lane."""
        self._empty_since = now

    def place(self, lane: LaneState) -> None:
        """Set the lane's rank, the least of which is next; due whenever its oldest or its account has changed.

        The strict one is `priority - wait / ageing` without what all lanes have in common at one moment.
        """
        if self._weighted:
            lane.rank = lane.charged
            return
        oldest = lane.queue.oldest
        lane.rank = lane.policy.priority * self._ageing + (0 if oldest is None else oldest.since)

    def started(self, lane: LaneState, tokens: int, waited_ns: int) -> None:
        """A request of this size was started out of the lane's queue, in which the oldest had waited so long."""
        self._now = lane.charged
        lane.charged += tokens / (lane.policy.weight * (1 + waited_ns / self._ageing))

    def correct(self, lane: LaneState, tokens: int) -> None:
        """One of the lane's requests took so many tokens more (less, where negative) than it was predicted to."""
        lane.charged = max(lane.charged + tokens / lane.policy.weight, min(lane.charged, self._now))
