"""What can be asked of an admission without changing it."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.govern.decision import Decision
from tailrace.govern.lane import Classifier, LanePolicy, RequestFacts
from tailrace.govern.lane_state import LaneState
from tailrace.govern.length_model import LengthModel
from tailrace.govern.wait_model import WaitPrediction


class AdmissionViews:
    """The questions; `Admission` has the state, and is their only subclass."""

    lengths: LengthModel
    _classifier: Classifier
    _lanes: dict[str, LaneState]
    _lane_of: dict[str, LaneState]
    _hopeless: dict[str, LaneState]

    def lane_of(self, facts: RequestFacts) -> str:
        """The lane whose match accepts a request."""
        return self._classifier.lane(facts).name

    def policy(self, lane: str) -> LanePolicy:
        """The policy of a lane that a decision named."""
        return self._lanes[lane].policy

    def policy_of(self, request_id: str) -> LanePolicy:
        """The policy of the lane that holds a request now: a change of the lanes may have moved it while it waited."""
        return self._lane_of[request_id].policy

    def predicted_wait_ns(self, lane: str, now: int) -> int | None:
        """What the next arrival in `lane` would wait; absent while that is not known, or there is no such lane."""
        state = self._lanes.get(lane)
        predicted = None if state is None else state.next_wait(now)
        return None if predicted is None else predicted.expected_ns

    def predicted_duration(self, decision: Decision) -> WaitPrediction | None:
        """How long a request about which was decided holds its place, from admission to its end; absent until enough
        ended.
        """
        lane = None if decision.work is None else self._lanes.get(decision.lane)
        return None if lane is None or decision.work is None else lane.waits.duration(decision.work)

    def standing(self, request_id: str, now: int) -> tuple[int | None, int | None]:
        """Where a waiting request stands (1 is next), and how long it is likely to wait still (ns)."""
        lane = self._lane_of.get(request_id)
        if lane is None or request_id not in lane.queue:
            return None, None
        waiting = lane.queue[request_id]
        ahead, work = lane.queue.ahead(waiting)
        predicted = lane.predict(ahead, work, now, held=True, size=waiting.demand.work)
        return ahead + lane.elsewhere(now) + 1, None if predicted is None else predicted.expected_ns

    @property
    def hopeless(self) -> bool:
        """Whether `expire` would name somebody at once, because its turn came too late for its deadline."""
        return bool(self._hopeless)

    def snapshot(self, now: int) -> dict[str, dict[str, Any]]:
        """Lane -> limits and occupancy, for metrics and the admin port (times in ms)."""
        return {
            name: {**lane.view(now), "predicted_length_error": msgspec.to_builtins(self.lengths.error(name))}
            for name, lane in self._lanes.items()
        }
