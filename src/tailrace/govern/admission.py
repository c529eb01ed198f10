"""Admission: one state machine for all lanes of a gateway or a simulated one.

`arrive` admits, queues or refuses; `finish`, `first_token`, `leave` and `expire` free places, and all but the last two
name who is admitted next. Each method takes `now` (monotonic ns) and touches nothing outside, so that every decision
can be replayed.

A true concurrency limit: at no time are more than `running` requests of a lane admitted and unfinished. Limits in
tokens hold likewise, but for a request that is larger than the limit and then runs alone.

With `shared`, the limits in requests hold over several processes: each lane then uses only the places of its `Share`,
`reports` says what it lacks or has to spare, and `obey` takes what the keeper of the limits grants (`shared_state`).
Limits in tokens and in prefill are divided among the processes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from tailrace.govern.admission_views import AdmissionViews
from tailrace.govern.decision import Decision, DecisionKind, refused
from tailrace.govern.demand import demand_of
from tailrace.govern.ended import Ended
from tailrace.govern.engine_rooms import EngineRooms
from tailrace.govern.expiry import Entry, Expiry
from tailrace.govern.lane import Classifier, LanePolicy, RequestFacts
from tailrace.govern.lane_queue import Waiting
from tailrace.govern.lane_state import LaneState, Running
from tailrace.govern.lane_turns import LaneTurns
from tailrace.govern.length_model import LengthModel
from tailrace.govern.occupancy import ROOM_IN_PREFILL, Demand, Limits, Occupancy
from tailrace.govern.restraint import UNRESTRAINED
from tailrace.govern.share import Share
from tailrace.govern.shared_state import Order as SharedOrder
from tailrace.govern.shared_state import Report
from tailrace.govern.sharing import Sharing
from tailrace.govern.wait_model import WaitPrediction
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import Reason

__all__ = ["Admission", "Decision", "DecisionKind"]

_UNLEARNT: Final = 1024
"""Finished requests whose real length may still be told. The gateway makes records in batches of 64 at most."""


class Admission(AdmissionViews):
    """All lanes of one gateway. `total_running` (optional) bounds the sum over lanes; lanes then share by priority.

    With `shared` the keeper of the limits holds the total, and what a lane may use is what it was granted.
    """

    def __init__(
        self,
        policies: Sequence[LanePolicy],
        *,
        total_running: int | None = None,
        shared: bool = False,
        sharing: Sharing | None = None,
        processes: int = 1,
        rooms: EngineRooms | None = None,
    ) -> None:
        """`sharing`: total limits and turns between lanes and tenants; `total_running` is its `running`, for short.

        `processes`: among how many the limits in tokens and in prefill are divided. `rooms`: the engines' own state as
        a limit, which `hear` is told of.
        """
        self._policies = list(policies)
        self._classifier = Classifier(self._policies)
        self._processes = max(1, processes)
        self._shares: dict[str, Share] | None = {} if shared else None
        self._retiring = False
        self._total_running = total_running
        self._set_sharing(sharing or Sharing())
        self.lengths = LengthModel()
        """Learns how long answers are; `finish` tells it."""
        self._rooms = rooms
        self._used = Occupancy()
        """Over all lanes."""
        self._lanes = {policy.name: self._new_lane(policy) for policy in self._policies}
        self._lane_of: dict[str, LaneState] = {}
        self._backlog: dict[str, LaneState] = {}
        """Lanes in which somebody waits."""
        self._expiry = Expiry()
        self._hopeless: dict[str, LaneState] = {}
        """Whose turn came too late for their deadlines; the next `expire` names them."""
        self._kept_free_for = ""
        """Who has waited too long for the total to have room for its size: nobody goes before it any more."""
        self._retired: set[str] = set()
        """Lanes that a change removed while requests of theirs were running."""
        self._unlearnt: OrderedDict[str, Ended] = OrderedDict()
        self._usable: frozenset[str] | None = None
        self.restraint = UNRESTRAINED
        """What the degradation ladder asks for; whoever changes it has the lanes settle."""
        self._sequence = 0
        self._latest = 0

    def _set_sharing(self, sharing: Sharing) -> None:
        self._sharing = sharing
        running = self._total_running if sharing.running is None else sharing.running
        self._limits = Limits(
            # Where limits are shared the keeper holds the total.
            running if self._shares is None else None,
            sharing.running_tokens,
            sharing.running_kv_tokens,
            sharing.prefill_requests,
            sharing.prefill_tokens,
        ).divided(self._processes)
        self._bound_together = any(value is not None for value in msgspec.structs.astuple(self._limits))
        """Whether what one lane leaves may be what another waits for."""
        self._turns = LaneTurns(sharing)

    # -- events

    def arrive(self, facts: RequestFacts, now: int) -> Decision:
        """Admit, queue or refuse a request. Raises `ValueError` for an id that is already here."""
        request_id = facts.request_id
        if request_id in self._lane_of:
            raise ValueError(f"request id {request_id!r} is already admitted or queued")
        self._latest = now
        lane = self._lane(self._classifier.lane(facts))
        policy, queue = lane.policy, lane.queue
        if self._usable is not None and not self._served(policy):
            return self._refuse(lane, Reason.NO_BACKEND, 0, None, status=503)
        restrained = self.restraint is not UNRESTRAINED
        if restrained and self.restraint.turns_away(policy):
            return self._refuse(lane, Reason.DEGRADED, 0, None)
        if lane.adaptive is not None:
            lane.look(now)
        demand = demand_of(facts, self.lengths.predict(facts, policy.name), lane.waits.price.ratio)
        lacks = lane.lacks(demand)
        if (
            not queue
            and not lacks
            and self._total_room(demand)
            and self._engine_room(lane, now)
            and not (restrained and self.restraint.holds(lane, self._backlog))
        ):
            if self._too_late(lane, facts, demand, now):
                return self._refuse(lane, Reason.PREDICTED_WAIT, 0, None, work=demand.work)
            self._begin(lane, facts, demand, now)
            return Decision(kind=DecisionKind.ADMIT, lane=policy.name, work=demand.work)
        if not queue:
            lane.prefill_binds = lacks is ROOM_IN_PREFILL
        return self._wait_or_refuse(lane, facts, demand, now)

    def _wait_or_refuse(self, lane: LaneState, facts: RequestFacts, demand: Demand, now: int) -> Decision:
        budget = self._queue_budget(lane, facts, now)
        self._sequence += 1
        waiting = Waiting(facts, demand, now, now + budget, self._sequence)
        ahead, work = lane.queue.ahead(waiting)
        position = ahead + lane.elsewhere(now) + 1
        predicted = waiting.predicted = lane.predict(ahead, work, now, held=True, size=demand.work)
        waiting.ahead = ahead
        wait_ns = None if predicted is None else predicted.expected_ns
        reason = Reason.NONE
        if self.restraint.effects.refuse:
            reason = Reason.DEGRADED
        elif lane.full():
            reason = Reason.QUEUE_FULL
        elif lane.overfull(demand, self._processes):
            reason = Reason.TOKEN_BACKLOG
        elif wait_ns is not None and (wait_ns > budget or self._too_late(lane, facts, demand, now + wait_ns)):
            reason = Reason.PREDICTED_WAIT
        if reason:
            if predicted is not None:
                lane.waits.foretell(predicted, ahead, now, key=lane.queue.key_of(waiting))
            return self._refuse(lane, reason, position, predicted, work=demand.work)
        self._wait(lane, waiting, now)
        return Decision(
            kind=DecisionKind.WAIT,
            lane=lane.policy.name,
            position=position,
            predicted_wait_ns=wait_ns,
            predicted=predicted,
            work=demand.work,
        )

    def first_token(self, request_id: str, now: int) -> list[str]:
        """A running request has left prefill; returns the ids that are admitted now, in order."""
        lane = self._lane_of.get(request_id)
        running = None if lane is None else lane.running.get(request_id)
        if lane is None or running is None or not running.in_prefill:
            return []
        running.in_prefill, running.first_token = False, now
        lane.used.leave_prefill(running.demand)
        self._used.leave_prefill(running.demand)
        if lane.limits.in_prefill or self._limits.in_prefill:
            return self._admit(now, lane)
        return []

    def finish(
        self,
        request_id: str,
        now: int,
        *,
        completed: bool = True,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> list[str]:
        """A running request ended, however it ended; returns the ids that are admitted now, in order.

        `completed`: to its proper end; what ended otherwise says little of how long others take. `prompt_tokens`,
        `output_tokens`: as `learn` has them, where they are known at once.
        """
        lane = self._lane_of.get(request_id)
        if lane is None or request_id not in lane.running:
            return []
        del self._lane_of[request_id]
        running = lane.end(request_id)
        self._used.end(running.demand, in_prefill=running.in_prefill)
        if self._rooms is not None:
            self._rooms.give(running.engine)
        lane.finished += 1
        lane.waits.freed(request_id, now, served=completed)
        if completed:
            lane.floor.saw(now - running.since, running.demand.work, now)
        ended = Ended(lane, running, now, completed=completed)
        if output_tokens is not None:
            ended.learn(self.lengths, self._turns, prompt_tokens, output_tokens)
        else:
            self._unlearnt[request_id] = ended
            if len(self._unlearnt) > _UNLEARNT:
                del self._unlearnt[next(iter(self._unlearnt))]
        if lane.share is not None:
            # Where places are scarce the keeper says whose turn it is; it may be ours again.
            lane.share.spare(len(lane.running), len(lane.queue))
        if not lane.running and lane.policy.name in self._retired:
            self._retired.discard(lane.policy.name)
            del self._lanes[lane.policy.name]
        return self._admit(now, lane)

    def tokens_of(self, request_id: str) -> int:
        """Prompt and expected output of a running request. KeyError for one that does not run."""
        return self._lane_of[request_id].running[request_id].demand.tokens

    def learn(self, request_id: str, *, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """What a request that has finished really took, once that is known: it need not hold up the next one.

        Tokens of all its sequences together. Nothing happens where it is unknown, or was told to `finish`.
        """
        ended = self._unlearnt.pop(request_id, None)
        if ended is not None and output_tokens is not None:
            ended.learn(self.lengths, self._turns, prompt_tokens, output_tokens)

    def leave(self, request_id: str) -> bool:
        """A queued request's client left; true if it was queued. It will never be admitted."""
        lane = self._lane_of.get(request_id)
        if lane is None or request_id in lane.running:
            return False
        if self._hopeless.pop(request_id, None) is None:
            self._unqueue(lane, request_id, self._latest)
        del self._lane_of[request_id]
        return True

    def expire(self, now: int) -> list[str]:
        """Remove and return the queued requests whose queue budget or deadline has passed, or can no longer be met."""
        out = list(self._hopeless)
        for request_id in out:
            del self._lane_of[request_id]
        self._hopeless.clear()
        for entry in self._expiry.due(now):
            if self._still_waits(entry):
                request_id = entry[1]
                self._unqueue(self._lane_of.pop(request_id), request_id, now)
                out.append(request_id)
        return out

    def settle(self, now: int) -> list[str]:
        """Time has passed, or something outside has changed; returns the ids that are admitted now, in order."""
        return self._admit(now, None) if self._backlog else []

    def hear(self, engine: str, state: EngineState | None, now: int) -> list[str]:
        """A reading of an engine's metrics; returns the ids that are admitted now."""
        if self._rooms is None:
            return []
        self._rooms.hear(engine, state, now)
        return self.settle(now)

    def engines(self, names: Collection[str]) -> None:
        """The engines whose own state is a limit."""
        if self._rooms is not None:
            self._rooms.follow(names)

    def sent(self, request_id: str, engine: str) -> None:
        """The engine that an admitted request really goes to."""
        lane = self._lane_of.get(request_id)
        running = None if lane is None or self._rooms is None else lane.running.get(request_id)
        if running is not None and self._rooms is not None:
            running.engine = self._rooms.moved(running.engine, engine)

    def usable(self, backends: Collection[str] | None) -> None:
        """Which backends may be sent to. A lane whose backends are all away is refused with 503; `None`: not known."""
        self._usable = None if backends is None else frozenset(backends)

    def throttle(self, shares: Mapping[str, float], now: int) -> list[str]:
        """Lane -> the share of its `running` that it may use for now, at least one place; 1 for lanes not named.

        Returns the ids that are admitted now.
        """
        for name, lane in self._lanes.items():
            share = shares.get(name, 1.0)
            lane.throttle(None if share >= 1.0 else max(1, int(lane.policy.running * share / self._processes)))
        return self.settle(now)

    def replace(self, policies: Sequence[LanePolicy], now: int, *, sharing: Sharing | None = None) -> list[str]:
        """Change the lanes at run time; returns the ids that are admitted now.

        Running requests stay counted in the lane that admitted them, by name; queued ones are classified again and
        keep their place by arrival. Nobody is refused by a change, even where a queue is now over its bound.
        """
        self._latest = now
        waiting = sorted(
            (entry for lane in self._lanes.values() for entry in lane.queue),
            key=lambda entry: (entry.since, entry.sequence),
        )
        old = self._lanes
        self._policies = list(policies)
        self._classifier = Classifier(self._policies)
        self.lengths.keep({policy.name for policy in policies})
        if sharing is not None:
            self._set_sharing(sharing)
        seated = {name for lane in old.values() for name in self._seated(lane)}
        for share in (self._shares or {}).values():
            share.empty_queue()
        self._backlog.clear()
        self._lanes = {policy.name: self._new_lane(policy) for policy in self._policies}
        self._retired.clear()
        for name, lane in old.items():
            new = self._lanes.get(name)
            if new is not None:
                new.inherit(lane)
                self._lane_of.update(dict.fromkeys(lane.running, new))
            elif lane.running:
                lane.forget_queue(self._sharing.tenant_weights)
                self._lanes[name] = lane
                self._retired.add(name)
            if name not in self._lanes or name in self._retired:
                self._leave_share(lane)
        for entry in waiting:
            lane = self._lane(self._classifier.lane(entry.facts))
            self._enqueue(lane, entry, now)
            if lane.share is not None and entry.facts.request_id in seated:
                lane.share.keep_seat(entry.facts.request_id)
        return self._admit(now, None)

    # -- limits shared with other processes

    def reports(self) -> list[Report]:
        """What the keeper of the limits must hear since the last call."""
        out: list[Report] = []
        for name, share in (self._shares or {}).items():
            lane = self._lanes.get(name)
            waiting = 0 if lane is None else len(lane.queue)
            oldest = None if lane is None else lane.queue.oldest
            # Places that something else keeps from being used (this process's part of a limit in tokens, an engine
            # without room, the ladder) are not asked for: they would come, go back and come again.
            wanted = waiting if lane is None or not waiting or self._usable_place(lane) else 0
            report = share.report(name, waiting=waiting, wanted=wanted, oldest_ns=0 if oldest is None else oldest.since)
            if report is not None:
                out.append(report)
        return out

    def _usable_place(self, lane: LaneState) -> bool:
        if not self._engine_room(lane, self._latest) or self.restraint.holds(lane, self._backlog):
            return False
        head = lane.head(self._latest)
        return head is None or not (lane.lacks_beyond_share(head.demand) or self._used.lacks(self._limits, head.demand))

    def obey(self, order: SharedOrder, now: int) -> tuple[list[str], list[tuple[str, Decision]]]:
        """Take what the keeper grants; returns the ids that are admitted now, and those for whom there is no place."""
        share = self._share(order.lane)
        assert share is not None, "an order came to an admission that shares nothing"
        self._latest = now
        share.obey(order, now)
        lane = self._lanes.get(order.lane)
        if lane is None or self._retiring or order.lane in self._retired:
            share.tight = True
        if lane is None:
            share.spare(0, 0)
            return [], []
        admitted = self._admit(now, None)
        share.seat_more(len(lane.queue))
        refused: list[tuple[str, Decision]] = []
        for request_id in share.settled(order.settled):
            self._unqueue(lane, request_id, now)
            del self._lane_of[request_id]
            position = len(lane.queue) + lane.elsewhere(now) + 1
            refused.append((request_id, self._refuse(lane, Reason.QUEUE_FULL, position, lane.next_wait(now))))
        share.spare(len(lane.running), len(lane.queue))
        return admitted, refused

    def retire(self) -> None:
        """This process takes no more requests soon: give back every place as it becomes free."""
        self._retiring = True
        for lane in self._lanes.values():
            self._leave_share(lane)

    @staticmethod
    def _leave_share(lane: LaneState) -> None:
        if lane.share is not None:
            lane.share.tight = True
            lane.share.spare(len(lane.running), len(lane.queue))

    def _share(self, name: str) -> Share | None:
        return None if self._shares is None else self._shares.setdefault(name, Share())

    @staticmethod
    def _seated(lane: LaneState) -> list[str]:
        """Who waits and was told that it may."""
        unseated = () if lane.share is None else lane.share.unseated
        return [entry.facts.request_id for entry in lane.queue if entry.facts.request_id not in unseated]

    # -- inside

    def _new_lane(self, policy: LanePolicy) -> LaneState:
        return LaneState(policy, self._share(policy.name), self._sharing.tenant_weights, self._processes)

    def _lane(self, policy: LanePolicy) -> LaneState:
        lane = self._lanes.get(policy.name)
        if lane is None:
            lane = self._lanes[policy.name] = self._new_lane(policy)
        return lane

    def _served(self, policy: LanePolicy) -> bool:
        """Whether any backend of the lane may be sent to."""
        assert self._usable is not None
        return not self._usable.isdisjoint(policy.backends) if policy.backends else bool(self._usable)

    def _engine_room(self, lane: LaneState, now: int) -> bool:
        return self._rooms is None or self._rooms.pick(lane.policy.backends, now) is not None

    def _total_room(self, demand: Demand) -> bool:
        """Whether the total has room for one that comes now."""
        if self._kept_free_for in self._lane_of:
            return False
        return not self._bound_together or not self._used.lacks(self._limits, demand)

    def _too_late(self, lane: LaneState, facts: RequestFacts, demand: Demand, start: int) -> bool:
        """Whether it cannot meet its deadline if it begins at `start`."""
        due = facts.deadline_ns
        return due is not None and start + lane.floor.least_ns(demand.least_work, self._latest) > due

    def _begin(self, lane: LaneState, facts: RequestFacts, demand: Demand, now: int) -> None:
        running = Running(now, demand, facts.tenant, facts.model, facts.max_tokens, facts.sequences)
        if self._rooms is not None:
            engine = self._rooms.pick(lane.policy.backends, now)
            assert engine is not None, "admitted where no engine has room"
            running.engine = engine
            self._rooms.take(engine)
        lane.begin(facts.request_id, running)
        lane.waits.started(facts.request_id, demand.work, now)
        self._used.begin(demand)
        self._lane_of[facts.request_id] = lane

    def _wait(self, lane: LaneState, waiting: Waiting, now: int) -> None:
        self._enqueue(lane, waiting, now)
        self._expiry.add((waiting.expires, waiting.facts.request_id, waiting.sequence))
        self._expiry.tidy(len(self._lane_of), self._still_waits)

    def _enqueue(self, lane: LaneState, waiting: Waiting, now: int) -> None:
        name = lane.policy.name
        if name not in self._backlog:
            self._turns.enter(lane, others=bool(self._backlog), now=now)
            self._backlog[name] = lane
        lane.wait(waiting, now)
        if len(lane.queue) == 1:
            self._turns.place(lane)
        self._lane_of[waiting.facts.request_id] = lane

    def _unqueue(self, lane: LaneState, request_id: str, now: int) -> None:
        """It waits no longer, and was not started."""
        waiting = lane.queue.remove(request_id, now)
        lane.waits.left(waiting.since)
        self._has_left(lane, request_id, now)

    def _has_left(self, lane: LaneState, request_id: str, now: int) -> None:
        lane.unseat(request_id)
        if lane.queue:
            self._turns.place(lane)
        else:
            del self._backlog[lane.policy.name]
            lane.prefill_binds = False
            lane.bind()
            if not self._backlog:
                self._turns.emptied(now)

    def _still_waits(self, entry: Entry) -> bool:
        lane = self._lane_of.get(entry[1])
        return lane is not None and entry[1] in lane.queue and lane.queue[entry[1]].sequence == entry[2]

    def _admit(self, now: int, freed: LaneState | None) -> list[str]:
        """Start whoever may go. `freed`: the lane in which something came free; `None`: it may be any."""
        self._latest = now
        self._kept_free_for = ""
        if not self._backlog:
            return []
        # Where the ladder holds lanes back, what one leaves is what another waits for, too.
        together = self._bound_together or self._rooms is not None or self.restraint.effects.low_waits
        only = None if together else freed
        out: list[str] = []
        passed: set[str] = set()
        while self._limits.requests is None or self._used.requests < self._limits.requests:
            lane = self._next_lane(passed, only)
            if lane is None:
                break
            head = lane.head(now)
            assert head is not None
            if not lane.fits(head) or not self._engine_room(lane, now):
                passed.add(lane.policy.name)
            elif self._too_late(lane, head.facts, head.demand, now):
                self._unqueue(lane, head.facts.request_id, now)
                self._hopeless[head.facts.request_id] = lane
            elif self._bound_together and (lacks := self._used.lacks(self._limits, head.demand)):
                lane.prefill_binds = lacks is ROOM_IN_PREFILL
                # Smaller ones may pass it, for a while: then what comes free is kept for it.
                if now - head.since > lane.policy.longest_overtaken_ns:
                    self._kept_free_for = head.facts.request_id
                    break
                passed.add(lane.policy.name)
            else:
                self._start(lane, head, now)
                out.append(head.facts.request_id)
        return out

    def _start(self, lane: LaneState, head: Waiting, now: int) -> None:
        oldest = lane.queue.oldest
        assert oldest is not None
        self._turns.started(lane, head.demand.tokens, now - oldest.since)
        if head.predicted is not None:
            lane.waits.answered(head.predicted, now - head.since, head.ahead + 1)
        if lane.waits.awaits:
            lane.waits.given(lane.queue.key(head), now, by_age=lane.queue.out_of_turn(head))
        lane.queue.start(head, now)
        self._has_left(lane, head.facts.request_id, now)
        self._begin(lane, head.facts, head.demand, now)

    def _next_lane(self, passed: set[str], only: LaneState | None) -> LaneState | None:
        best: LaneState | None = None
        best_rank = math.inf
        lanes = self._backlog.values() if only is None else (only,) if only.policy.name in self._backlog else ()
        for lane in lanes:
            if lane.rank >= best_rank:
                continue  # first, because it is all that there is to say of most
            if lane.no_place() or self.restraint.holds(lane, self._backlog):
                lane.prefill_binds = False
            elif lane.policy.name not in passed:
                best, best_rank = lane, lane.rank
        return best

    @staticmethod
    def _queue_budget(lane: LaneState, facts: RequestFacts, now: int) -> int:
        budget = lane.policy.budgets.queue_ns
        if facts.deadline_ns is not None:
            budget = max(0, min(budget, facts.deadline_ns - now))
        return budget

    def _refuse(
        self,
        lane: LaneState,
        reason: Reason,
        position: int,
        predicted: WaitPrediction | None,
        *,
        status: int = 429,
        work: float | None = None,
    ) -> Decision:
        lane.refused += 1
        decision = refused(lane.policy.name, reason, position, predicted, status=status, work=work)
        return self.restraint.told(decision, self._latest) if reason is Reason.DEGRADED else decision
