"""The requests that wait in one lane: whose turn it is, and how much is ahead of whom.

Tenants take turns by tokens (`fair_turns`); within a tenant the lane's order decides. Whatever the order, nobody is
overtaken for ever: once the one that came first has waited for the lane's patience, every second place of its tenant
is for it. So who is the p-th by age then waits for at most 2p more places, and an order by length still is one while
everybody has waited long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import msgspec

from tailrace.govern.fair_turns import FairTurns
from tailrace.govern.lane import LanePolicy, Order, RequestFacts
from tailrace.govern.occupancy import Demand
from tailrace.govern.wait_model import WaitPrediction
from tailrace.govern.work_line import Key, WorkLine


class Waiting(msgspec.Struct, gc=False):
    """One request that waits."""

    facts: RequestFacts
    demand: Demand
    since: int
    expires: int
    sequence: int
    ahead: int = 0
    """Requests that were to go before it when it came, itself not counted."""
    predicted: WaitPrediction | None = None
    """The wait that was predicted when it came."""
    key: Key | None = None
    """Its place in its tenant's line; set when it is first looked for."""
    prefill_key: Key | None = None


class _Tenant:
    """One tenant's requests."""

    __slots__ = ("by_age", "by_key", "by_prefill", "owes_age", "tokens", "work")

    def __init__(self, *, prefill: bool) -> None:
        self.by_age: OrderedDict[str, Waiting] = OrderedDict()
        self.by_key = WorkLine()
        self.by_prefill = WorkLine() if prefill else None
        self.owes_age = True
        """Whether the next place is for the one that has waited longest, if it has waited for too long."""
        self.work = 0.0
        self.tokens = 0


def order_key(order: Order, policy: LanePolicy, waiting: Waiting, *, prefill: bool = False) -> Key:
    """What `order` compares; ties go by arrival."""
    facts = waiting.facts
    if order is Order.SHORTEST_FIRST:
        size = float(waiting.demand.prompt) if prefill else waiting.demand.work
        return (size, waiting.sequence, facts.request_id, waiting.demand.work)
    if order is Order.EARLIEST_DEADLINE:
        budgets = policy.budgets
        total = budgets.total_ns if facts.stream else budgets.unstreamed_total_ns
        due = waiting.since + total if facts.deadline_ns is None else facts.deadline_ns
        return (float(due), waiting.sequence, facts.request_id, waiting.demand.work)
    return (float(waiting.sequence), waiting.sequence, facts.request_id, waiting.demand.work)


class LaneQueue:
    """Who waits in one lane. Every method costs the logarithm of how many do."""

    __slots__ = ("_entries", "_prefill", "_tenants", "_turns", "policy", "tokens", "work")

    def __init__(self, policy: LanePolicy, tenant_weights: Mapping[str, float]) -> None:
        self.policy = policy
        order = policy.prefill_order
        self._prefill = None if order is None or order is policy.order else order
        self._entries: OrderedDict[str, Waiting] = OrderedDict()
        self._tenants: dict[str, _Tenant] = {}
        self._turns = FairTurns(tenant_weights)
        self.tokens = 0
        self.work = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._entries

    def __getitem__(self, request_id: str) -> Waiting:
        return self._entries[request_id]

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._entries.values())

    @property
    def oldest(self) -> Waiting | None:
        """Who has waited longest."""
        # An ordered dict's first entry is a link away; a plain dict's lies behind every entry that was deleted.
        return next(iter(self._entries.values()), None)

    @property
    def tenants(self) -> int:
        """How many tenants wait."""
        return self._turns.active

    def key(self, waiting: Waiting) -> Key:
        """Where one stands in its tenant's line."""
        key = waiting.key
        if key is None:
            key = waiting.key = order_key(self.policy.order, self.policy, waiting)
        return key

    def push(self, waiting: Waiting, now: int) -> None:
        """Wait."""
        name = waiting.facts.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(prefill=self._prefill is not None)
        request_id = waiting.facts.request_id
        self._entries[request_id] = waiting
        tenant.by_age[request_id] = waiting
        work = waiting.demand.work
        tenant.by_key.add(self.key(waiting))
        if tenant.by_prefill is not None:
            assert self._prefill is not None
            waiting.prefill_key = order_key(self._prefill, self.policy, waiting, prefill=True)
            tenant.by_prefill.add(waiting.prefill_key)
        tenant.work += work
        tenant.tokens += waiting.demand.tokens
        self.work += work
        self.tokens += waiting.demand.tokens
        self._turns.enter(name, now)

    def remove(self, request_id: str, now: int) -> Waiting:
        """Wait no longer, for whatever reason. `KeyError` for one that does not wait."""
        waiting = self._entries.pop(request_id)
        name = waiting.facts.tenant
        tenant = self._tenants[name]
        del tenant.by_age[request_id]
        tenant.by_key.remove(self.key(waiting))
        if tenant.by_prefill is not None and waiting.prefill_key is not None:
            tenant.by_prefill.remove(waiting.prefill_key)
        tenant.work -= waiting.demand.work
        tenant.tokens -= waiting.demand.tokens
        self.tokens -= waiting.demand.tokens
        self.work = self.work - waiting.demand.work if self._entries else 0.0
        if not tenant.by_age:
            del self._tenants[name]
        self._turns.leave(name, now)
        return waiting

    def start(self, waiting: Waiting, now: int) -> None:
        """Its turn has come: it waits no longer, and its tenant is charged."""
        name = waiting.facts.tenant
        tenant = self._tenants[name]
        aged = next(iter(tenant.by_age)) == waiting.facts.request_id
        if aged and now - waiting.since > self.policy.longest_overtaken_ns:
            tenant.owes_age = False
        else:
            tenant.owes_age = True
        # In this order: who waits for nothing and owes nothing is forgotten.
        self._turns.charge(name, waiting.demand.tokens)
        self.remove(waiting.facts.request_id, now)

    def correct(self, tenant: str, tokens: float) -> None:
        """A request of `tenant` took so many tokens more (less, where negative) than it was charged for."""
        self._turns.charge(tenant, tokens)

    def head(self, now: int, *, in_prefill: bool = False) -> Waiting | None:
        """Who is next, without removing it; `in_prefill`: for a place in prefill."""
        name = self._turns.next()
        if name is None:
            return None
        tenant = self._tenants[name]
        oldest = next(iter(tenant.by_age.values()))
        line = tenant.by_prefill if in_prefill and tenant.by_prefill is not None else tenant.by_key
        if tenant.owes_age and now - oldest.since > self.policy.longest_overtaken_ns:
            return oldest
        key = line.head()
        assert key is not None
        return self._entries[key[2]]

    def key_of(self, waiting: Waiting) -> Key | None:
        """Where one that is not here would stand; `None` where turns between tenants decide too."""
        return self.key(waiting) if len(self._tenants) <= 1 else None

    def out_of_turn(self, waiting: Waiting) -> bool:
        """Whether one that is next is not the first of its tenant's order: it is, by its age."""
        return self._tenants[waiting.facts.tenant].by_key.head() != self.key(waiting)

    def ahead(self, waiting: Waiting) -> tuple[int, float]:
        """(requests, work) that go before `waiting`, which may be here or about to come, if nobody else comes.

        Exact within its tenant. Of other tenants, what they are served meanwhile by their weights, but no more than
        they have; their requests are counted by their mean size.
        """
        name = waiting.facts.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            own, own_work, whole = 0, 0.0, 0.0
            waits = 0
        else:
            waits, whole = len(tenant.by_age), tenant.work
            own, own_work = tenant.by_key.ahead(self.key(waiting))
        others = len(self._entries) - waits
        if not others:
            return own, own_work
        weight = self._turns.weight_of(name)
        rivals = self._turns.rivals_weight - (weight if waits else 0.0)
        elsewhere = max(self.work - whole, 1e-9)
        theirs = min(elsewhere, (own_work + waiting.demand.work) * rivals / weight)
        return own + round(others * theirs / elsewhere), own_work + theirs
