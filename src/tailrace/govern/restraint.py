"""What the degradation ladder asks of admission: who is refused, and who goes only when nobody else waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tailrace.govern.decision import Decision
from tailrace.govern.lane import LanePolicy
from tailrace.govern.lane_state import LaneState
from tailrace.govern.rungs import NOTHING_GIVEN_UP, Effects
from tailrace.model.thresholds import S


class Restraint:
    """The rungs in force as admission needs them. A lane of low priority is one whose number is above 0.

    Nobody who runs or waits already is sent away by it.
    """

    __slots__ = ("effects", "until_ns")

    def __init__(self, effects: Effects, until_ns: int) -> None:
        self.effects = effects
        self.until_ns = until_ns
        """The earliest instant at which less may be given up: before it a refused client need not ask again."""

    def turns_away(self, policy: LanePolicy) -> bool:
        """Whether the lane takes nobody at the moment."""
        return self.effects.refuses(policy.priority)

    def holds(self, lane: LaneState, backlog: Mapping[str, LaneState]) -> bool:
        """Whether nobody of the lane may begin, as somebody of no low priority waits. `backlog`: lanes with waiters."""
        if not self.effects.low_waits or lane.policy.priority <= 0:
            return False
        return any(other.policy.priority <= 0 for other in backlog.values())

    def told(self, decision: Decision, now: int) -> Decision:
        """A refusal of its own: nobody is asked back before less may be given up."""
        seconds = max(decision.retry_after_s or 1, -(-(self.until_ns - now) // S))
        return msgspec.structs.replace(decision, retry_after_s=seconds)


UNRESTRAINED: Final = Restraint(NOTHING_GIVEN_UP, 0)
