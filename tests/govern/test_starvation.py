"""Nobody waits for ever, whatever the others do, under every order, rule and mix."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.lane import LaneMatch, LanePolicy, Order, RequestFacts
from tailrace.govern.sharing import Between, Sharing
from tailrace.model.thresholds import Budgets, S

ENDLESS = Budgets(queue_ns=10**9 * S)
orders = st.sampled_from(list(Order))


@st.composite
def lane(draw: st.DrawFn, name: str) -> LanePolicy:
    return LanePolicy(
        name=name,
        match=LaneMatch(path=f"/{name}"),
        running=draw(st.integers(1, 4)),
        queued=draw(st.integers(1, 12)),
        order=draw(orders),
        prefill_order=draw(st.one_of(st.none(), orders)),
        priority=draw(st.integers(-20, 20)),
        weight=draw(st.floats(0.1, 10)),
        running_tokens=draw(st.one_of(st.none(), st.integers(200, 5_000))),
        prefill_tokens=draw(st.one_of(st.none(), st.integers(200, 5_000))),
        prefill_requests=draw(st.one_of(st.none(), st.integers(1, 3))),
        patience_ns=draw(st.integers(0, 20)) * S,
        budgets=ENDLESS,
    )


@st.composite
def newcomer(draw: st.DrawFn) -> tuple[str, str, int, int | None]:
    """(lane, tenant, prompt, deadline from now in s)."""
    return (
        draw(st.sampled_from("abc")),
        draw(st.sampled_from(["", "x", "y", "z"])),
        draw(st.sampled_from([1, 50, 900, 8_000])),
        draw(st.one_of(st.none(), st.integers(1, 10**6))),
    )


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_everybody_who_waits_is_served_in_the_end(data):
    """The others' mix is drawn, and then comes again and again, so that every queue is full all the time.

    The bound: each lane's queue is emptied within so many turns of the lane (at most 12 wait, four tenants take turns
    by tokens of requests whose sizes are up to 8,256 to 257 apart, half of the turns are by age), and each lane has its
    turn at least once in so many by ageing.
    """
    policies = [data.draw(lane(name)) for name in "abc"]
    sharing = Sharing(
        running=data.draw(st.one_of(st.none(), st.integers(1, 5))),
        running_tokens=data.draw(st.one_of(st.none(), st.integers(200, 20_000))),
        prefill_requests=data.draw(st.one_of(st.none(), st.integers(1, 3))),
        between=data.draw(st.sampled_from(list(Between))),
        ageing_ns=data.draw(st.integers(1, 30)) * S,
        tenant_weights=data.draw(st.dictionaries(st.sampled_from("xyz"), st.floats(0.2, 5))),
    )
    mix = data.draw(st.lists(newcomer(), min_size=1, max_size=6))
    victim = data.draw(newcomer())
    admission = Admission(policies, sharing=sharing)
    at_work: list[str] = []
    number = now = 0

    def arrive(who: tuple[str, str, int, int | None], request_id: str) -> DecisionKind:
        where, tenant, prompt, due = who
        asked = RequestFacts(
            request_id=request_id,
            prompt_tokens=prompt,
            tenant=tenant,
            path=f"/{where}",
            deadline_ns=None if due is None else now + due * 10**6 * S,
        )
        kind = admission.arrive(asked, now).kind
        if kind is DecisionKind.ADMIT:
            at_work.append(request_id)
        return kind

    def crowd() -> None:
        nonlocal number
        for who in mix:
            arrive(who, f"r{number}")
            number += 1

    for _ in range(20):
        crowd()
    for turn in range(6_000):
        kind = arrive(victim, f"victim{turn}")
        if kind is not DecisionKind.REFUSE:
            break
        now += S
        if at_work:  # its lane's queue is full: somebody must go first
            at_work += admission.finish(at_work.pop(turn % len(at_work)), now)
    else:
        raise AssertionError("its lane's queue never had a place")
    name = f"victim{turn}"
    for turn in range(6_000):
        if name in at_work:
            return
        now += S
        if at_work:
            one = at_work[turn % len(at_work)]
            at_work += admission.first_token(one, now)
            at_work.remove(one)
            at_work += admission.finish(one, now)
        at_work += admission.settle(now)
        if name not in at_work:
            crowd()
    raise AssertionError(f"{victim} waits for ever; {admission.snapshot(now)}")
