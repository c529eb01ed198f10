"""Token shares of tenants and of lanes, with sizes as uneven as they come."""

from __future__ import annotations

import random

import pytest

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.fair_turns import FORGET_NS, REMEMBERED, FairTurns
from tailrace.govern.lane import LaneMatch, LanePolicy, Order, RequestFacts
from tailrace.govern.sharing import Between, Sharing
from tailrace.model.thresholds import MS, Budgets, S

PATIENT = Budgets(queue_ns=10_000 * S)


class Load:
    """Senders who each keep so many requests waiting, and an engine that ends them in an order of its own."""

    def __init__(self, policies: list[LanePolicy], sharing: Sharing, senders: dict[str, tuple[int, float]]) -> None:
        """`senders`: name -> (requests it keeps here, median prompt). A name is a tenant and a path."""
        self.random = random.Random(7)
        self.admission = Admission(policies, sharing=sharing)
        self.senders = senders
        self.running: list[str] = []
        self.real: dict[str, tuple[str, int, int]] = {}
        self.tokens = dict.fromkeys(senders, 0)
        self.ended = dict.fromkeys(senders, 0)
        self.now = 0
        self._ids = 0
        for name, (depth, _) in senders.items():
            for _ in range(depth):
                self._send(name)

    def _send(self, name: str) -> None:
        self._ids += 1
        request_id = f"{name}-{self._ids}"
        prompt = max(1, int(self.random.lognormvariate(0, 1.0) * self.senders[name][1]))
        output = self.random.randrange(1, 800)
        self.real[request_id] = (name, prompt, output)
        facts = RequestFacts(request_id=request_id, prompt_tokens=prompt, tenant=name, path=f"/{name}")
        decision = self.admission.arrive(facts, self.now)
        assert decision.kind is not DecisionKind.REFUSE
        if decision.kind is DecisionKind.ADMIT:
            self.running.append(request_id)

    def end_one(self) -> None:
        self.now += 20 * MS
        request_id = self.running.pop(self.random.randrange(len(self.running)))
        name, prompt, output = self.real.pop(request_id)
        self.tokens[name] += prompt + output
        self.ended[name] += 1
        self.running += self.admission.finish(request_id, self.now, prompt_tokens=prompt, output_tokens=output)
        self._send(name)

    def shares(self, warm: int, ends: int) -> dict[str, float]:
        for _ in range(warm):
            self.end_one()
        self.tokens = dict.fromkeys(self.senders, 0)
        for _ in range(ends):
            self.end_one()
        whole = sum(self.tokens.values())
        return {name: count / whole for name, count in self.tokens.items()}


def expected(weights: dict[str, float]) -> dict[str, float]:
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize(
    "weights", [{"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 2.0, "c": 5.0, "d": 0.5}], ids=str
)
def test_tenants_get_tokens_by_their_weights(order, weights):
    policy = LanePolicy(running=8, queued=10_000, order=order, budgets=PATIENT)
    senders = {name: (40, 200.0 * 10**number) for number, name in enumerate(weights)}
    if len(weights) > 2:
        senders = {name: (60, 100.0 + 400 * number) for number, name in enumerate(weights)}
    load = Load([policy], Sharing(tenant_weights=weights), senders)
    shares = load.shares(500, 8_000)
    for name, share in expected(weights).items():
        assert abs(shares[name] - share) / share < 0.05, shares


def test_a_tenant_that_floods_takes_nothing_from_one_that_asks_now_and_then():
    policy = LanePolicy(running=4, queued=10_000, order=Order.SHORTEST_FIRST, budgets=PATIENT)
    load = Load([policy], Sharing(), {"flood": (2_000, 300.0)})
    for _ in range(200):
        load.end_one()
    load.senders["modest"] = (1, 300.0)
    load.tokens["modest"] = load.ended["modest"] = 0
    load._send("modest")
    ends = 0
    while not load.ended["modest"] and ends < 40:
        load.end_one()
        ends += 1
    # Its place is the next that becomes free; then it is one of four that run.
    assert load.ended["modest"]


def test_a_tenant_whose_queue_is_short_does_not_lose_its_debt_with_it():
    admission = Admission([LanePolicy(running=1, queued=2, budgets=PATIENT)])
    admission.arrive(RequestFacts(request_id="first", tenant="eager"), 0)
    admission.arrive(RequestFacts(request_id="eager", tenant="eager"), 0)
    admission.arrive(RequestFacts(request_id="shy", tenant="shy"), 0)
    assert admission.finish("first", 1) == ["eager"]
    admission.arrive(RequestFacts(request_id="again", tenant="eager"), 2)
    assert admission.finish("eager", 3) == ["shy"]


def lanes(order: Order) -> list[LanePolicy]:
    return [
        LanePolicy(
            name=name,
            match=LaneMatch(path=f"/{name}"),
            running=16,
            queued=10_000,
            order=order,
            weight=weight,
            budgets=PATIENT,
        )
        for name, weight in (("a", 1.0), ("b", 4.0))
    ]


@pytest.mark.parametrize("order", [Order.FIRST_COME, Order.SHORTEST_FIRST])
def test_lanes_share_a_total_by_their_weights(order):
    sharing = Sharing(running=8, between=Between.WEIGHTED, ageing_ns=100_000 * S)
    load = Load(lanes(order), sharing, {"a": (40, 400.0), "b": (40, 2_000.0)})
    shares = load.shares(500, 8_000)
    assert abs(shares["a"] - 0.2) / 0.2 < 0.05, shares


def test_ageing_lifts_a_light_lane_that_waits_long():
    kept = {}
    for ageing in (100_000 * S, S):
        sharing = Sharing(running=8, between=Between.WEIGHTED, ageing_ns=ageing)
        load = Load(lanes(Order.FIRST_COME), sharing, {"a": (400, 400.0), "b": (20, 400.0)})
        kept[ageing] = load.shares(500, 3_000)["a"]
    assert kept[S] > 1.5 * kept[100_000 * S]


def test_turns_are_forgotten_after_a_rush():
    turns = FairTurns({})
    turns.enter("a", 0)
    turns.enter("b", 0)
    turns.charge("a", 1_000_000)
    assert turns.next() == "b"
    turns.leave("a", 1)
    turns.leave("b", 1)
    late = FORGET_NS + 2
    turns.enter("a", late)
    turns.enter("b", late)
    assert turns.next() == "a"


def test_invented_tenants_leave_nothing_behind():
    turns = FairTurns({})
    for number in range(3 * REMEMBERED):
        name = f"t{number}"
        turns.enter(name, number)
        assert turns.next() == name
        turns.leave(name, number)
        turns.charge(name, 1_000)
    assert len(turns._accounts) <= REMEMBERED + 1
    assert len(turns._debts) <= REMEMBERED + 1
    assert len(turns._turns) <= 128


def test_a_correction_gives_no_credit_for_later():
    turns = FairTurns({})
    for name in "ab":
        turns.enter(name, 0)
    turns.charge("a", 10)
    assert turns.next() == "b"
    turns.charge("b", 100)
    assert turns.next() == "a"
    turns.charge("b", -1_000_000)
    served = []
    for _ in range(6):
        name = turns.next()
        assert name is not None
        served.append(name)
        turns.charge(name, 10)
    assert sorted(served) == ["a", "a", "a", "b", "b", "b"]
