"""Admission: one state machine for all lanes of a gateway or a simulated one.

`arrive` admits, queues or refuses; `finish`, `leave` and `expire` free places and name who is admitted next. Each
method takes `now` (monotonic ns) and touches nothing outside, so that every decision can be replayed.

A true concurrency limit: at no time are more than `running` requests of a lane admitted and unfinished.

With `shared`, the limits hold over several processes: each lane then uses only the places of its `Share`, `reports`
says what it lacks or has to spare, and `obey` takes what the keeper of the limits grants (`shared_state`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from tailrace.govern.lane import LanePolicy, Order, RequestFacts, classify
from tailrace.govern.rungs import NOTHING_GIVEN_UP, Effects
from tailrace.govern.share import Share
from tailrace.govern.shared_state import Order as SharedOrder
from tailrace.govern.shared_state import Report
from tailrace.model.outcome import Reason

_SERVICE_WEIGHT: Final = 0.1
"""Weight of a new sample in the moving mean of service time: about the last 20 requests decide."""
AGEING_NS: Final = 1_000_000_000
"""A waiting request gains one step of priority a second, so that a low lane is late but never starved."""
_DEFAULT_RETRY_S: Final = 1
"""Retry-After before any request has finished and a drain rate is known."""


class DecisionKind(StrEnum):
    """What admission decided."""

    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an arrival."""

    kind: DecisionKind
    lane: str
    position: int = 0
    """Place in the lane's queue, 1 is next; 0 when admitted."""
    predicted_wait_ns: int | None = None
    """Absent until a request of the lane has finished."""
    reason: Reason = Reason.NONE
    http_status: int = 200
    retry_after_s: int | None = None


class _Waiting(msgspec.Struct):
    facts: RequestFacts
    since: int
    expires: int


class _Lane:
    """One lane's running set and queue."""

    __slots__ = ("by_key", "finished", "policy", "refused", "running", "service_ns", "share", "waiting")

    def __init__(self, policy: LanePolicy, share: Share | None) -> None:
        self.policy = policy
        self.share = share
        self.running: dict[str, int] = {}
        self.waiting: dict[str, _Waiting] = {}
        # Only for orders other than first come; entries of requests that left are skipped when popped.
        self.by_key: list[tuple[int, int, str]] = []
        self.service_ns: float | None = None
        self.finished = 0
        self.refused = 0

    def room(self, factor: float = 1.0) -> bool:
        """`factor`: of the limit, what may be used; one place always may."""
        limit = self.policy.running if self.share is None else self.share.running
        return len(self.running) < (limit if factor == 1.0 else min(limit, max(1, int(limit * factor))))

    def full(self) -> bool:
        """Whether one more can certainly not wait. With a share it may wait to be told."""
        if self.share is None:
            return len(self.waiting) >= self.policy.queued
        # Even if all places of all processes were here.
        return len(self.running) + len(self.waiting) >= self.policy.running + self.policy.queued

    def ahead(self, now: int) -> int:
        """Requests that wait before the next one: those of other processes too."""
        return len(self.waiting) + (0 if self.share is None else self.share.waiting_elsewhere(now))

    def predicted_wait(self, position: int) -> int | None:
        """`position` requests must finish first; `running` of them are served at a time (Little's law)."""
        if self.service_ns is None:
            return None
        return round(position * self.service_ns / max(1, self.policy.running))

    def without_seat(self, request_id: str) -> bool:
        """Whether it still waits to be told that it may wait."""
        return self.share is not None and request_id in self.share.unseated

    def key(self, facts: RequestFacts) -> int:
        if self.policy.order is Order.SHORTEST_FIRST:
            return facts.prompt_tokens
        return facts.deadline_ns if facts.deadline_ns is not None else 1 << 62

    def push(self, waiting: _Waiting, sequence: int) -> None:
        request_id = waiting.facts.request_id
        self.waiting[request_id] = waiting
        if self.share is not None:
            self.share.seat(request_id, len(self.waiting))
        if self.policy.order is not Order.FIRST_COME:
            heapq.heappush(self.by_key, (self.key(waiting.facts), sequence, request_id))

    def pop(self, request_id: str) -> _Waiting:
        """It waits no longer."""
        waiting = self.waiting.pop(request_id)
        if self.share is not None:
            self.share.unseat(request_id, len(self.waiting))
        return waiting

    def head(self, now: int) -> str | None:
        """Who is next, without removing it."""
        oldest = next(iter(self.waiting), None)
        if oldest is None or self.policy.order is Order.FIRST_COME:
            return oldest
        # Reordering must not starve: whoever waited for half the queue budget goes first.
        if now - self.waiting[oldest].since > self.policy.budgets.queue_ns // 2:
            return oldest
        while self.by_key and self.by_key[0][2] not in self.waiting:
            heapq.heappop(self.by_key)
        return self.by_key[0][2] if self.by_key else oldest


class Admission:
    """All lanes of one gateway. `total_running` (optional) bounds the sum over lanes; lanes then share by priority.

    With `shared` the keeper of the limits holds the total, and what a lane may use is what it was granted.
    """

    def __init__(
        self, policies: Sequence[LanePolicy], *, total_running: int | None = None, shared: bool = False
    ) -> None:
        self._policies = list(policies)
        self._shares: dict[str, Share] | None = {} if shared else None
        self._retiring = False
        self._lanes = {policy.name: _Lane(policy, self._share(policy.name)) for policy in self._policies}
        self._lane_of: dict[str, str] = {}
        self._retired: set[str] = set()
        """Lanes that a change removed while requests of theirs were running."""
        self._total_running = total_running
        self._sequence = 0
        self._effects = NOTHING_GIVEN_UP

    # -- events

    def arrive(self, facts: RequestFacts, now: int) -> Decision:
        """Admit, queue or refuse a request. Raises `ValueError` for an id that is already here."""
        if facts.request_id in self._lane_of:
            raise ValueError(f"request id {facts.request_id!r} is already admitted or queued")
        policy = classify(self._policies, facts)
        lane = self._lane(policy)
        effects = self._effects
        if effects.refuses(policy.priority):
            return self._refuse(lane, Reason.DEGRADED, lane.ahead(now) + 1, lane.predicted_wait(lane.ahead(now) + 1))
        if not lane.waiting and self._may_run(lane) and self._total_room():
            lane.running[facts.request_id] = now
            self._lane_of[facts.request_id] = policy.name
            return Decision(kind=DecisionKind.ADMIT, lane=policy.name)
        position = lane.ahead(now) + 1
        predicted = lane.predicted_wait(position)
        if effects.refuse:
            return self._refuse(lane, Reason.DEGRADED, position, predicted)
        budget = self._queue_budget(lane, facts, now)
        if lane.full():
            return self._refuse(lane, Reason.QUEUE_FULL, position, predicted)
        if predicted is not None and predicted > budget:
            return self._refuse(lane, Reason.PREDICTED_WAIT, position, predicted)
        self._sequence += 1
        lane.push(_Waiting(facts, now, now + budget), self._sequence)
        self._lane_of[facts.request_id] = policy.name
        return Decision(kind=DecisionKind.WAIT, lane=policy.name, position=position, predicted_wait_ns=predicted)

    def finish(self, request_id: str, now: int) -> list[str]:
        """A running request ended, however it ended; returns the ids that are admitted now, in order."""
        lane = self._lanes.get(self._lane_of.get(request_id, ""))
        if lane is None or request_id not in lane.running:
            return []
        del self._lane_of[request_id]
        service = now - lane.running.pop(request_id)
        lane.finished += 1
        previous = lane.service_ns
        lane.service_ns = service if previous is None else previous + _SERVICE_WEIGHT * (service - previous)
        if lane.share is not None:
            # Where places are scarce the keeper says whose turn it is; it may be ours again.
            lane.share.spare(len(lane.running), len(lane.waiting))
        if not lane.running and lane.policy.name in self._retired:
            self._retired.discard(lane.policy.name)
            del self._lanes[lane.policy.name]
        return self._admit(now)

    def leave(self, request_id: str) -> bool:
        """A queued request's client left; true if it was queued. It will never be admitted."""
        lane = self._lanes.get(self._lane_of.get(request_id, ""))
        if lane is None or request_id not in lane.waiting:
            return False
        lane.pop(request_id)
        del self._lane_of[request_id]
        return True

    def expire(self, now: int) -> list[str]:
        """Remove and return the queued requests whose queue budget or deadline has passed."""
        out: list[str] = []
        for lane in self._lanes.values():
            late = [request_id for request_id, waiting in lane.waiting.items() if waiting.expires <= now]
            for request_id in late:
                lane.pop(request_id)
                del self._lane_of[request_id]
            out += late
        return out

    def replace(self, policies: Sequence[LanePolicy], now: int) -> list[str]:
        """Change the lanes at run time; returns the ids that are admitted now.

        Running requests stay counted in the lane that admitted them, by name; queued ones are classified again and
        keep their place by arrival. Nobody is refused by a change, even where a queue is now over its bound.
        """
        waiting = sorted(
            (entry for lane in self._lanes.values() for entry in lane.waiting.values()), key=lambda entry: entry.since
        )
        old = self._lanes
        self._policies = list(policies)
        seated = {name for lane in old.values() for name in lane.waiting if not lane.without_seat(name)}
        for share in (self._shares or {}).values():
            share.empty_queue()
        self._lanes = {policy.name: _Lane(policy, self._share(policy.name)) for policy in self._policies}
        self._retired.clear()
        for name, lane in old.items():
            lane.waiting.clear()
            lane.by_key.clear()
            if name in self._lanes:
                new = self._lanes[name]
                new.running, new.service_ns, new.finished = lane.running, lane.service_ns, lane.finished
                new.refused = lane.refused
            elif lane.running:
                self._lanes[name] = lane
                self._retired.add(name)
            if name not in self._lanes or name in self._retired:
                self._leave_share(lane)
        for entry in waiting:
            policy = classify(self._policies, entry.facts)
            lane = self._lane(policy)
            self._sequence += 1
            lane.push(entry, self._sequence)
            if lane.share is not None and entry.facts.request_id in seated:
                lane.share.keep_seat(entry.facts.request_id)
            self._lane_of[entry.facts.request_id] = policy.name
        return self._admit(now)

    def degrade(self, effects: Effects, now: int) -> list[str]:
        """Give up what a rung of the ladder gives up, from now on; returns the ids that are admitted now.

        Nobody who runs or waits is sent away by it.
        """
        self._effects = effects
        return self._admit(now)

    # -- limits shared with other processes

    def reports(self) -> list[Report]:
        """What the keeper of the limits must hear since the last call."""
        out: list[Report] = []
        for name, share in (self._shares or {}).items():
            lane = self._lanes.get(name)
            waiting = {} if lane is None else lane.waiting
            oldest = next(iter(waiting.values()), None)
            report = share.report(name, waiting=len(waiting), oldest_ns=0 if oldest is None else oldest.since)
            if report is not None:
                out.append(report)
        return out

    def obey(self, order: SharedOrder, now: int) -> tuple[list[str], list[tuple[str, Decision]]]:
        """Take what the keeper grants; returns the ids that are admitted now, and those for whom there is no place."""
        share = self._share(order.lane)
        assert share is not None, "an order came to an admission that shares nothing"
        share.obey(order, now)
        lane = self._lanes.get(order.lane)
        if lane is None or self._retiring or order.lane in self._retired:
            share.tight = True
        if lane is None:
            share.spare(0, 0)
            return [], []
        admitted = self._admit(now)
        share.seat_more(len(lane.waiting))
        refused: list[tuple[str, Decision]] = []
        for request_id in share.settled(order.settled):
            lane.pop(request_id)
            del self._lane_of[request_id]
            position = lane.ahead(now) + 1
            refused.append((request_id, self._refuse(lane, Reason.QUEUE_FULL, position, lane.predicted_wait(position))))
        share.spare(len(lane.running), len(lane.waiting))
        return admitted, refused

    def retire(self) -> None:
        """This process takes no more requests soon: give back every place as it becomes free."""
        self._retiring = True
        for lane in self._lanes.values():
            self._leave_share(lane)

    @staticmethod
    def _leave_share(lane: _Lane) -> None:
        if lane.share is not None:
            lane.share.tight = True
            lane.share.spare(len(lane.running), len(lane.waiting))

    def _share(self, name: str) -> Share | None:
        return None if self._shares is None else self._shares.setdefault(name, Share())

    # -- views

    def lane_of(self, facts: RequestFacts) -> str:
        """The lane whose match accepts a request."""
        return classify(self._policies, facts).name

    def policy(self, lane: str) -> LanePolicy:
        """The policy of a lane that a decision named."""
        return self._lanes[lane].policy

    def snapshot(self, now: int) -> dict[str, dict[str, Any]]:
        """Lane -> limits and occupancy, for metrics and the admin port (times in ms)."""
        out: dict[str, dict[str, Any]] = {}
        for name, lane in self._lanes.items():
            oldest = next(iter(lane.waiting.values()), None)
            predicted = lane.predicted_wait(lane.ahead(now) + 1)
            out[name] = {
                "running": len(lane.running),
                "running_limit": lane.policy.running,
                "queued": len(lane.waiting),
                "queued_limit": lane.policy.queued,
                "order": lane.policy.order.value,
                "priority": lane.policy.priority,
                "oldest_wait_ms": (now - oldest.since) / 1e6 if oldest else 0.0,
                "predicted_wait_ms": predicted / 1e6 if predicted is not None else None,
                "finished": lane.finished,
                "refused": lane.refused,
            }
        return out

    # -- inside

    def _lane(self, policy: LanePolicy) -> _Lane:
        lane = self._lanes.get(policy.name)
        if lane is None:
            lane = self._lanes[policy.name] = _Lane(policy, self._share(policy.name))
        return lane

    def _total_room(self) -> bool:
        if self._total_running is None:
            return True
        return sum(len(lane.running) for lane in self._lanes.values()) < self._total_running

    def _may_run(self, lane: _Lane) -> bool:
        """Whether the lane's own limit, and what is given up, let one more of it run."""
        effects = self._effects
        if not lane.room(effects.limit_factor):
            return False
        if effects.low_waits and lane.policy.priority > 0:
            return not any(other.waiting for other in self._lanes.values() if other.policy.priority <= 0)
        return True

    def _admit(self, now: int) -> list[str]:
        out: list[str] = []
        while self._total_room():
            lane = self._next_lane(self._lanes.values(), now)
            if lane is None:
                break
            request_id = lane.head(now)
            if request_id is None:  # pragma: no cover  (the lane was chosen because somebody waits in it)
                break
            lane.pop(request_id)
            lane.running[request_id] = now
            out.append(request_id)
        return out

    def _next_lane(self, lanes: Iterable[_Lane], now: int) -> _Lane | None:
        best: _Lane | None = None
        best_rank = math.inf
        for lane in lanes:
            if not lane.waiting or not self._may_run(lane):
                continue
            waited = now - next(iter(lane.waiting.values())).since
            rank = lane.policy.priority - waited / AGEING_NS
            if rank < best_rank:
                best, best_rank = lane, rank
        return best

    @staticmethod
    def _queue_budget(lane: _Lane, facts: RequestFacts, now: int) -> int:
        budget = lane.policy.budgets.queue_ns
        if facts.deadline_ns is not None:
            budget = max(0, min(budget, facts.deadline_ns - now))
        return budget

    @staticmethod
    def _refuse(lane: _Lane, reason: Reason, position: int, predicted: int | None) -> Decision:
        lane.refused += 1
        retry = _DEFAULT_RETRY_S if predicted is None else max(1, math.ceil(predicted / 1e9))
        return Decision(
            kind=DecisionKind.REFUSE,
            lane=lane.policy.name,
            position=position,
            predicted_wait_ns=predicted,
            reason=reason,
            http_status=429,
            retry_after_s=retry,
        )
