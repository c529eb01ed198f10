"""One lane at work: what runs, what waits, and whether one more may run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tailrace.govern.lane import LanePolicy
from tailrace.govern.lane_queue import LaneQueue, Waiting
from tailrace.govern.occupancy import ROOM_IN_PREFILL, ROOM_TO_RUN, Demand, Limits, Occupancy
from tailrace.govern.service_floor import ServiceFloor
from tailrace.govern.share import Share

_SERVICE_WEIGHT: Final = 0.1
"""Weight of a new sample in the moving mean of service time: about the last 20 requests decide."""


class Running(msgspec.Struct, gc=False):
    """One request that runs."""

    since: int
    demand: Demand
    tenant: str
    model: str
    max_tokens: int | None
    in_prefill: bool = True


class LaneState:
    """One lane's running set and queue."""

    __slots__ = (
        "cap",
        "charged",
        "finished",
        "floor",
        "limits",
        "policy",
        "prefill_binds",
        "queue",
        "rank",
        "refused",
        "running",
        "service_ns",
        "share",
        "used",
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
        self.service_ns: float | None = None
        self.floor = ServiceFloor()
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
        count = len(self.running)
        places = self.policy.running if self.share is None else self.share.running
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
        if self.share is not None:
            self.share.seat(waiting.facts.request_id, len(self.queue))

    def unseat(self, request_id: str) -> None:
        """It has left the queue."""
        if self.share is not None:
            self.share.unseat(request_id, len(self.queue))

    def served(self, service_ns: int) -> None:
        """A request of the lane ended after so long."""
        self.finished += 1
        previous = self.service_ns
        self.service_ns = (
            float(service_ns) if previous is None else previous + _SERVICE_WEIGHT * (service_ns - previous)
        )

    def inherit(self, old: LaneState) -> None:
        """Take over what ran and what was learnt under the lane's earlier policy; who waits is sorted in anew."""
        self.running, self.used = old.running, old.used
        self.service_ns, self.floor, self.cap = old.service_ns, old.floor, old.cap
        self.finished, self.refused, self.charged = old.finished, old.refused, old.charged

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

    def predicted_wait(self, ahead: int) -> int | None:
        """`ahead` requests and this one's place must come free first; `running` are served at a time (Little's law)."""
        if self.service_ns is None:
            return None
        return round(ahead * self.service_ns / max(1, self.policy.running))

    def view(self, now: int) -> dict[str, Any]:
        """Limits and occupancy, for metrics and the admin port (times in ms)."""
        policy, used, queue = self.policy, self.used, self.queue
        oldest = queue.oldest
        predicted = self.predicted_wait(len(queue) + self.elsewhere(now) + 1)
        return {
            "running": len(self.running),
            "running_limit": policy.running,
            "queued": len(queue),
            "queued_limit": policy.queued,
            "order": policy.order.value,
            "priority": policy.priority,
            "oldest_wait_ms": (now - oldest.since) / 1e6 if oldest else 0.0,
            "predicted_wait_ms": predicted / 1e6 if predicted is not None else None,
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
            "tenants_waiting": queue.tenants,
            "weight": policy.weight,
            "backends": list(policy.backends),
        }
