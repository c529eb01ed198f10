"""One lane at work: what runs, what waits, and whether one more may run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tailrace.govern.adaptive_limit import AdaptiveLimit, AdaptiveLimitPolicy
from tailrace.govern.lane import LanePolicy, Order
from tailrace.govern.lane_queue import LaneQueue, Waiting
from tailrace.govern.occupancy import ROOM_IN_PREFILL, ROOM_TO_RUN, Demand, Limits, Occupancy
from tailrace.govern.overtaking import Overtaking
from tailrace.govern.service_floor import ServiceFloor
from tailrace.govern.share import Share
from tailrace.govern.wait_model import WaitModel, WaitPrediction

_SOME_TOKENS: Final = 8
"""Output tokens from which a time per token means something: the first few come in bursts."""


class Running(msgspec.Struct, gc=False):
    """One request that runs."""

    since: int
    demand: Demand
    tenant: str
    model: str
    max_tokens: int | None
    sequences: int = 1
    engine: str = ""
    """Whom it is counted to, where engines' own state is a limit."""
    in_prefill: bool = True
    first_token: int = 0
    """When it left prefill (ns)."""


class LaneState:
    """One lane's running set and queue."""

    __slots__ = (
        "_ceiling",
        "adaptive",
        "cap",
        "charged",
        "finished",
        "floor",
        "guesses",
        "limits",
        "output_tokens",
        "overtaking",
        "policy",
        "prefill_binds",
        "queue",
        "rank",
        "refused",
        "running",
        "share",
        "used",
        "waits",
    )

    def __init__(
        self, policy: LanePolicy, share: Share | None, tenant_weights: Mapping[str, float], processes: int = 1
    ) -> None:
        """`processes`: among how many the limits that no keeper counts are divided."""
        self.policy = policy
        self.share = share
        self.limits = Limits(
            policy.running,
            policy.running_tokens,
            policy.running_kv_tokens,
            policy.prefill_requests,
            policy.prefill_tokens,
        ).divided(processes)
        self.queue = LaneQueue(policy, tenant_weights)
        self.used = Occupancy()
        self.running: dict[str, Running] = {}
        self.prefill_binds = False
        """Whether it was for prefill that the last one did not fit: then the order of prefill decides who is next."""
        self.charged = 0.0
        """Tokens started out of the queue, divided by the lane's weight: its account under weighted sharing."""
        self.rank = 0.0
        """Its place in the turns of lanes (`lane_turns`)."""
        self.cap: int | None = None
        """A bound on what runs that is below `running` for now."""
        self.waits = WaitModel(policy.running)
        self.overtaking = Overtaking() if policy.order is Order.SHORTEST_FIRST else None
        self.adaptive = None if policy.adaptive is None else AdaptiveLimit(_part(policy.adaptive, processes))
        self.guesses = True
        """Whether lengths of answers are still guesses here."""
        self._ceiling: int | None = None
        """What an operator or a degradation leaves of `running`."""
        self.floor = ServiceFloor()
        self.output_tokens = 0
        """Of all that have finished, as far as it was told."""
        self.finished = 0
        self.refused = 0

    # -- room

    def lacks(self, demand: Demand) -> str:
        """What the lane has no room of for one more; empty where it has."""
        if self.no_place():
            return ROOM_TO_RUN
        return self.used.lacks(self.limits, demand)

    def no_place(self) -> bool:
        """Whether the limit in requests is reached."""
        places = self.policy.running if self.share is None else self.share.running
        count = len(self.running)
        return count >= places or (self.cap is not None and count >= self.cap)

    def lacks_beyond_share(self, demand: Demand) -> bool:
        """Whether it would not fit even with places from the keeper: then it asks for none."""
        return (self.cap is not None and len(self.running) >= self.cap) or self.used.lacks(self.limits, demand) != ""

    def full(self) -> bool:
        """Whether one more can certainly not wait. With a share it may wait to be told."""
        if self.share is None:
            return len(self.queue) >= self.policy.queued
        # Even if all places of all processes were here.
        return len(self.running) + len(self.queue) >= self.policy.running + self.policy.queued

    def overfull(self, demand: Demand, processes: int) -> bool:
        """Whether so many tokens more may not wait. A single request may, however large it is."""
        bound = self.policy.queued_tokens
        return bound is not None and len(self.queue) > 0 and self.queue.tokens + demand.tokens > bound // processes

    # -- changes

    def begin(self, request_id: str, running: Running) -> None:
        """It runs."""
        self.running[request_id] = running
        self.used.begin(running.demand)

    def end(self, request_id: str) -> Running:
        """It runs no longer."""
        running = self.running.pop(request_id)
        self.used.end(running.demand, in_prefill=running.in_prefill)
        return running

    def wait(self, waiting: Waiting, now: int) -> None:
        """It waits."""
        self.queue.push(waiting, now)
        if self.overtaking is not None:
            self.overtaking.came(waiting.demand.work, now)
        if self.share is not None:
            self.share.seat(waiting.facts.request_id, len(self.queue))

    def unseat(self, request_id: str) -> None:
        """It has left the queue."""
        if self.share is not None:
            self.share.unseat(request_id, len(self.queue))

    def observe(self, running: Running, output_tokens: int | None, now: int) -> None:
        """One of the lane's requests has completed: what its time per token says of the limit."""
        adaptive = self.adaptive
        if adaptive is None:
            return
        tpot = None
        if output_tokens is not None and output_tokens >= _SOME_TOKENS and running.first_token:
            tpot = (now - running.first_token) // (output_tokens - 1)
        adaptive.observe(tpot, running.since, now)

    def look(self, now: int) -> None:
        """Let the adaptive limit see the lane, and follow it."""
        adaptive = self.adaptive
        if adaptive is not None:
            # Adding up what runs for every arrival would cost more than all the rest of it.
            running_work = sum(one.demand.work for one in self.running.values()) if adaptive.due(now) else 0.0
            adaptive.look(len(self.running), len(self.queue), running_work, self.queue.work, now)
            limit = adaptive.limit(now)
            self.cap = limit if self._ceiling is None else min(limit, self._ceiling)

    def throttle(self, ceiling: int | None) -> None:
        """Use no more than so many places; `None`: as many as there are."""
        self._ceiling = self.cap = ceiling

    def places(self) -> int:
        """Requests that may run at once, now."""
        places = self.policy.running if self.share is None else self.share.running
        return places if self.cap is None else min(places, self.cap)

    def bind(self, *, held: bool = False) -> None:
        """Tell the predictions by how many places the lane is bound now: fewer, where tokens or a total hold it.

        `held`: one that came now must wait.
        """
        places, count = max(1, self.places()), len(self.running)
        self.waits.bind(count if (held or self.queue) and count < places else places)

    def inherit(self, old: LaneState) -> None:
        """Take over what ran and what was learnt under the lane's earlier policy; who waits is sorted in anew."""
        self.running, self.used = old.running, old.used
        self.waits, self.floor, self._ceiling, self.cap = old.waits, old.floor, old._ceiling, old._ceiling
        self.finished, self.refused, self.charged = old.finished, old.refused, old.charged
        if self.policy.adaptive is not None and self.policy.adaptive == old.policy.adaptive:
            self.adaptive = old.adaptive
        self.guesses, self.output_tokens = old.guesses, old.output_tokens
        self.waits.resize(self.policy.running)

    def forget_queue(self, tenant_weights: Mapping[str, float]) -> None:
        """Nobody waits here any more."""
        self.queue = LaneQueue(self.policy, tenant_weights)

    # -- who is next

    def head(self, now: int) -> Waiting | None:
        """Who is next, without removing it."""
        return self.queue.head(now, in_prefill=self.prefill_binds)

    def fits(self, waiting: Waiting) -> bool:
        """Whether the lane's own limits let it run; learns which of them binds."""
        lacks = self.lacks(waiting.demand)
        if lacks:
            self.prefill_binds = lacks is ROOM_IN_PREFILL
        return not lacks

    # -- foresight

    def elsewhere(self, now: int) -> int:
        """Requests that wait in other processes."""
        return 0 if self.share is None else self.share.waiting_elsewhere(now)

    def predict(
        self, ahead: int, work: float, now: int, *, held: bool, size: float | None = None
    ) -> WaitPrediction | None:
        """The wait of one with so many requests and so much work of this process before it; `None` where not known.

        `held`: it must wait, whatever places there are. `size`: its own work, by which others may go before it.
        """
        share = self.share
        if share is not None:
            # Others wait for the same places, in other processes; of what becomes free this one gets its part.
            others = self.elsewhere(now)
            mine = min(1.0, max(1, share.running) / self.policy.running)
            # Those who wait only to be told that there is no place for them will not be served before it.
            whole = min(ahead + others, self.policy.queued)
            work = work * (whole / ahead if ahead else 1.0) + (others * self._mean_work() if not ahead else 0.0)
            ahead, work = round(whole * mine), work * mine
        self.bind(held=held)
        passed, patience = 0.0, math.inf
        if size is not None and self.overtaking is not None:
            place_ns = self.waits.place_ns
            passed = self.overtaking.share(size, now, place_ns)
            # From then on every second place is for the one that came first: no longer than behind all who are here.
            patience = max(float(self.policy.longest_overtaken_ns), place_ns * self.queue.work)
        predicted = self.waits.predict(work, ahead, now, passed=passed, patience_ns=patience)
        if predicted is not None and not predicted.expected_ns and held:
            return None  # a place is free, and something else lacks: nobody knows until when
        return predicted

    def _mean_work(self) -> float:
        count = len(self.running)
        return sum(one.demand.work for one in self.running.values()) / count if count else 1.0

    def next_wait(self, now: int) -> WaitPrediction | None:
        """The wait of an arrival behind everybody."""
        return self.predict(len(self.queue), self.queue.work, now, held=bool(self.queue))

    def view(self, now: int) -> dict[str, Any]:
        """Limits and occupancy, for metrics and the admin port (times in ms)."""
        policy, used, queue = self.policy, self.used, self.queue
        oldest = queue.oldest
        predicted = self.next_wait(now)
        return {
            "running": len(self.running),
            "running_limit": policy.running,
            "running_limit_now": self.places(),
            "queued": len(queue),
            "queued_limit": policy.queued,
            "order": policy.order.value,
            "priority": policy.priority,
            "oldest_wait_ms": (now - oldest.since) / 1e6 if oldest else 0.0,
            "predicted_wait_ms": None if predicted is None else predicted.expected_ns / 1e6,
            "predicted_wait_error": msgspec.to_builtins(self.waits.error),
            "finished": self.finished,
            "refused": self.refused,
            "running_tokens": used.tokens,
            "running_tokens_limit": policy.running_tokens,
            "running_kv_tokens": used.kv,
            "running_kv_tokens_limit": policy.running_kv_tokens,
            "queued_tokens": queue.tokens,
            "queued_tokens_limit": policy.queued_tokens,
            "prefill_requests": used.prefill_requests,
            "prefill_requests_limit": policy.prefill_requests,
            "prefill_tokens": used.prefill_tokens,
            "prefill_tokens_limit": policy.prefill_tokens,
            "output_tokens": self.output_tokens,
            "throughput_objective": policy.objectives.tokens_per_s,
            "tenants_waiting": queue.tenants,
            "weight": policy.weight,
            "backends": list(policy.backends),
            "adaptive": None if self.adaptive is None else self.adaptive.why,
        }


def _part(policy: AdaptiveLimitPolicy, processes: int) -> AdaptiveLimitPolicy:
    """One process's part of an adaptive limit."""
    if processes <= 1:
        return policy
    return msgspec.structs.replace(
        policy,
        minimum=max(1, policy.minimum // processes),
        maximum=max(1, policy.maximum // processes),
        start=None if policy.start is None else max(1, policy.start // processes),
    )
