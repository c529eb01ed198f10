"""Lanes at work: the governor's decisions, and who must be told of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Any, Protocol

from tailrace.gateway.routes import PASSTHROUGH_LANE
from tailrace.govern.admission import Admission, Decision, DecisionKind
from tailrace.govern.attainment import WINDOWS, Attainment
from tailrace.govern.canary_policy import SHADOW
from tailrace.govern.engine_rooms import EngineRooms
from tailrace.govern.lane import LanePolicy, RequestFacts
from tailrace.govern.restraint import Restraint
from tailrace.govern.shared_state import Order, SharedState
from tailrace.govern.sharing import Sharing
from tailrace.model.engine_state import EngineState
from tailrace.model.record import RequestRecord


class Queued(Protocol):
    """A request that waits for its lane."""

    def lane_admitted(self, now: int) -> None:
        """It may go."""

    def lane_refused(self, decision: Decision, now: int) -> None:
        """No process has room for it, nor a place to wait."""

    def lane_timed_out(self, now: int) -> None:
        """It waited for its whole queue budget."""


class LaneDesk:
    """Holds the one admission state machine of this process and the requests that wait in it.

    Whoever is admitted gives its place back with exactly one `finish`; whoever waits is either admitted, refused after
    all, told that its time is over, or takes itself out with `leave`. Only limits that are `shared` with other
    processes refuse one that waits.
    """

    def __init__(
        self,
        policies: Sequence[LanePolicy],
        *,
        total_running: int | None = None,
        shared: SharedState | None = None,
        sharing: Sharing | None = None,
        processes: int = 1,
        rooms: EngineRooms | None = None,
    ) -> None:
        """`processes`: how many share the limits; `rooms`: the engines' own state as a limit, where that is wanted."""
        self.admission = Admission(
            policies,
            total_running=total_running,
            shared=shared is not None,
            sharing=sharing,
            processes=processes,
            rooms=rooms,
        )
        self.follows_engines = rooms is not None
        self._waiting: dict[str, Queued] = {}
        self._attainment: dict[str, Attainment] = {}
        self.windows: Mapping[str, int] = WINDOWS
        """Name -> length (ns): how far back the lanes' views count what missed an objective."""
        self._admitted: deque[tuple[str, int]] = deque()
        """Who may go and since when, and has not been told yet."""
        self._telling = False
        self._shared = shared
        self._speaking = False
        if shared is not None:
            shared.listen(self._obey)

    def arrive(self, queued: Queued, facts: RequestFacts, now: int) -> Decision:
        """Ask for a place. On `WAIT`, `queued` is told later."""
        decision = self.admission.arrive(facts, now)
        if decision.kind is DecisionKind.WAIT:
            self._waiting[facts.request_id] = queued
            self._speak()
        return decision

    def lane_of(self, facts: RequestFacts) -> str:
        """The lane that a request would be in, without asking for a place."""
        return self.admission.lane_of(facts)

    def policy(self, lane: str) -> LanePolicy:
        """The policy of a lane that a decision named."""
        return self.admission.policy(lane)

    def policy_of(self, request_id: str) -> LanePolicy:
        """The policy of the lane that a request is in."""
        return self.admission.policy_of(request_id)

    def finish(self, request_id: str, now: int, *, completed: bool = True) -> None:
        """An admitted request has ended; `completed`: to its proper end."""
        self._admit(self.admission.finish(request_id, now, completed=completed), now)

    def first_token(self, request_id: str, now: int) -> None:
        """An admitted request has left prefill."""
        admitted = self.admission.first_token(request_id, now)
        if admitted:
            self._admit(admitted, now)

    def tokens_of(self, request_id: str) -> int | None:
        """Prompt and expected output of an admitted request; `None` for one that no lane has."""
        try:
            return self.admission.tokens_of(request_id)
        except KeyError:
            return None

    def heard(self, record: RequestRecord, now: int) -> None:
        """A request has ended: what it really took, and whether it met its lane's objectives."""
        self.admission.learn(record.request_id, prompt_tokens=record.prompt_tokens, output_tokens=record.output_tokens)
        if record.route == SHADOW or record.lane == PASSTHROUGH_LANE:
            return  # a copy is no client's request, and no lane has objectives for what is only relayed
        attainment = self.account(record.lane)
        if attainment is not None:
            attainment.heard(record, now)

    def account(self, lane: str) -> Attainment | None:
        """How far a lane's objectives were met; `None` for a lane that a reload has removed."""
        attainment = self._attainment.get(lane)
        if attainment is None:
            try:
                objectives = self.policy(lane).objectives
            except KeyError:
                return None
            attainment = self._attainment[lane] = Attainment(objectives)
        return attainment

    def sent(self, request_id: str, backend: str) -> None:
        """The backend that an admitted request goes to."""
        self.admission.sent(request_id, backend)

    def hear(self, backend: str, state: EngineState | None, now: int) -> None:
        """The last reading of a backend's metrics."""
        self._admit(self.admission.hear(backend, state, now), now)

    def leave(self, request_id: str) -> None:
        """A waiting request has ended; it will never be sent to an engine."""
        self._waiting.pop(request_id, None)
        self.admission.leave(request_id)
        self._speak()

    def sweep(self, now: int) -> None:
        """Tell those whose queue budget is over."""
        if self._waiting:
            self._expire(now)
            self._admit(self.admission.settle(now), now)

    def _expire(self, now: int) -> None:
        for request_id in self.admission.expire(now):
            self._waiting.pop(request_id).lane_timed_out(now)

    def replace(self, policies: Sequence[LanePolicy], now: int, sharing: Sharing | None = None) -> None:
        """Change the lanes, and what they share, without dropping a request."""
        self._admit(self.admission.replace(policies, now, sharing=sharing), now)
        objectives = {policy.name: policy.objectives for policy in policies}
        # Other objectives are another account: what met the old ones says nothing of them.
        self._attainment = {
            name: one for name, one in self._attainment.items() if objectives.get(name) == one.objectives
        }

    def degrade(self, restraint: Restraint, shares: Mapping[str, float], now: int) -> None:
        """What the rungs of the ladder ask of the lanes. `shares`: lane -> what is left of its running limit."""
        self._admit(self.admission.throttle(shares, now), now)
        self.admission.restraint = restraint
        self._admit(self.admission.settle(now), now)

    def retire(self) -> None:
        """This process ends soon: leave the places to the others as they become free."""
        self.admission.retire()
        self._speak()

    def predicted_wait_ns(self, lane: str, now: int) -> int | None:
        """What the next arrival in `lane` would wait, where that is known."""
        return self.admission.predicted_wait_ns(lane, now)

    def standing(self, request_id: str, now: int) -> tuple[int | None, int | None]:
        """Where a waiting request stands (1 is next), and how long it is likely to wait still (ns)."""
        return self.admission.standing(request_id, now)

    def snapshot(self, now: int) -> dict[str, dict[str, Any]]:
        """Lane -> limits, occupancy, and how far its objectives were met."""
        lanes = self.admission.snapshot(now)
        for name, lane in lanes.items():
            attainment = self._attainment.get(name)
            if attainment is not None:
                lane.update(attainment.view(now, self.windows))
        return lanes

    @property
    def attainment(self) -> Mapping[str, Attainment]:
        """Lane -> how far its objectives were met; lanes that saw nobody have none."""
        return self._attainment

    def _speak(self) -> None:
        """Tell the keeper of shared limits what has changed, once a turn of the loop."""
        if self._shared is not None and not self._speaking:
            self._speaking = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._speaking = False
        reports = self.admission.reports()
        if reports and self._shared is not None:
            self._shared.report(reports)

    def _obey(self, orders: list[Order]) -> None:
        now = monotonic_ns()
        self._speaking = True  # below, once
        for order in orders:
            admitted, refused = self.admission.obey(order, now)
            self._admit(admitted, now)
            for request_id, decision in refused:
                self._waiting.pop(request_id).lane_refused(decision, now)
        self._report()

    def _admit(self, request_ids: list[str], now: int) -> None:
        # One after the other, not one within the other: whoever is told may end at once (no engine takes requests),
        # which admits the next, and a queue is deeper than the stack.
        self._admitted.extend((request_id, now) for request_id in request_ids)
        if not self._telling:
            self._telling = True
            try:
                self._tell()
            finally:
                self._telling = False
            if self.admission.hopeless:
                self._expire(now)  # their turn came too late: they need not wait for the next sweep to hear it
        self._speak()

    def _tell(self) -> None:
        while self._admitted:
            request_id, at = self._admitted.popleft()
            queued = self._waiting.pop(request_id, None)
            if queued is None:  # it left between the decision and now: the place is free again
                self.finish(request_id, at)
            else:
                queued.lane_admitted(at)
