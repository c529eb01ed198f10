"""Limits in tokens, in KV tokens and in prefill; backends that are away; deadlines that cannot be met."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.admission import Admission, Decision, DecisionKind
from tailrace.govern.demand import demand_of
from tailrace.govern.lane import LaneMatch, LanePolicy, Order, RequestFacts
from tailrace.govern.length_model import LengthModel
from tailrace.govern.occupancy import Demand
from tailrace.govern.service_floor import SEEN_FIRST, STALE_NS
from tailrace.govern.sharing import Between, Sharing
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Budgets, S

PATIENT = Budgets(queue_ns=10_000 * S)


def facts(request_id: str, prompt_tokens: int = 100, **more) -> RequestFacts:
    more.setdefault("max_tokens", 100)
    return RequestFacts(request_id=request_id, prompt_tokens=prompt_tokens, **more)


def demand(asked: RequestFacts) -> Demand:
    return demand_of(asked, LengthModel().predict(asked, "default"), 0.01)


def lane(**more) -> LanePolicy:
    more.setdefault("budgets", PATIENT)
    return LanePolicy(**more)


def test_a_limit_in_tokens_counts_prompt_and_predicted_output():
    admission = Admission([lane(running_tokens=1_000)])
    kinds = [admission.arrive(facts(str(number), 400), 0).kind for number in range(3)]
    assert kinds == [DecisionKind.ADMIT, DecisionKind.ADMIT, DecisionKind.WAIT]
    assert admission.snapshot(0)["default"]["running_tokens"] == 1_000
    assert admission.finish("0", S) == ["2"]


def test_a_request_larger_than_the_limit_runs_alone():
    admission = Admission([lane(running_tokens=1_000)])
    assert admission.arrive(facts("large", 5_000), 0).kind is DecisionKind.ADMIT
    assert admission.arrive(facts("small", 1), 0).kind is DecisionKind.WAIT
    admission = Admission([lane(running_tokens=1_000)])
    assert admission.arrive(facts("small", 1), 0).kind is DecisionKind.ADMIT
    assert admission.arrive(facts("large", 5_000), 0).kind is DecisionKind.WAIT
    assert admission.finish("small", S) == ["large"]


def test_each_sequence_has_its_own_place_in_the_kv_cache():
    assert demand(facts("a", 100, sequences=4)).kv == 100 + 4 * 100
    admission = Admission([lane(running_kv_tokens=900)])
    assert admission.arrive(facts("a", 100, sequences=4), 0).kind is DecisionKind.ADMIT
    assert admission.arrive(facts("b", 100, sequences=4), 0).kind is DecisionKind.WAIT
    assert admission.arrive(facts("c", 100), 0).kind is DecisionKind.WAIT
    assert admission.finish("a", S) == ["b", "c"]


def test_a_queue_is_bounded_in_tokens_but_one_request_may_always_wait():
    admission = Admission([lane(running=1, queued_tokens=1_000)])
    admission.arrive(facts("running"), 0)
    assert admission.arrive(facts("long", 9_000), 0).kind is DecisionKind.WAIT
    refused = admission.arrive(facts("short"), 0)
    assert (refused.kind, refused.reason, refused.http_status) == (DecisionKind.REFUSE, Reason.TOKEN_BACKLOG, 429)
    assert refused.retry_after_s


def test_prefill_is_bounded_until_the_first_token():
    admission = Admission([lane(running=8, prefill_requests=2)])
    for name in "abcd":
        admission.arrive(facts(name), 0)
    assert admission.first_token("a", MS) == ["c"]
    assert admission.first_token("a", 2 * MS) == []
    assert admission.finish("b", 3 * MS) == ["d"], "one that ends without a token has left prefill, too"
    assert admission.snapshot(3 * MS)["default"]["prefill_requests"] == 2


def test_prefill_is_bounded_in_tokens():
    admission = Admission([lane(prefill_tokens=1_000)])
    assert admission.arrive(facts("doc", 4_000), 0).kind is DecisionKind.ADMIT, "alone it fits whatever the bound"
    assert admission.arrive(facts("chat", 10), 0).kind is DecisionKind.WAIT
    assert admission.first_token("doc", MS) == ["chat"]
    assert admission.arrive(facts("chat2", 900), MS).kind is DecisionKind.ADMIT
    assert admission.arrive(facts("chat3", 200), MS).kind is DecisionKind.WAIT


def test_places_in_prefill_have_an_order_of_their_own():
    admission = Admission([lane(running=3, prefill_requests=1, prefill_order=Order.SHORTEST_FIRST)])
    for name, prompt in (("a", 10), ("b", 5_000), ("c", 3_000), ("d", 50), ("e", 4_000)):
        admission.arrive(facts(name, prompt), 0)
    assert admission.first_token("a", 1) == ["d"], "prefill was what lacked: the shortest prompt"
    assert admission.first_token("d", 2) == ["c"]
    assert admission.first_token("c", 3) == []
    assert admission.finish("a", 4) == ["b"], "a place to run was what lacked: whoever came first"


def test_prefill_can_be_bounded_over_all_lanes():
    policies = [lane(name="a", match=LaneMatch(path="/a")), lane()]
    admission = Admission(policies, sharing=Sharing(prefill_requests=1))
    admission.arrive(facts("one", path="/a"), 0)
    assert admission.arrive(facts("two"), 0).kind is DecisionKind.WAIT
    assert admission.first_token("one", 1) == ["two"]


def test_a_large_request_is_passed_for_a_while_and_then_room_is_kept_for_it():
    policies = [
        lane(name="doc", match=LaneMatch(path="/doc"), patience_ns=5 * S),
        lane(running=4, queued=100),
    ]
    admission = Admission(policies, sharing=Sharing(running_tokens=1_000))
    for number in range(5):
        admission.arrive(facts(f"chat{number}"), 0)
    assert admission.arrive(facts("large", 800, path="/doc"), 0).kind is DecisionKind.WAIT
    assert admission.finish("chat0", S) == ["chat4"], "it has not waited long"
    assert admission.arrive(facts("chat5"), S).kind is DecisionKind.WAIT
    admitted = admission.finish("chat1", 6 * S)
    assert admitted == []
    assert admission.arrive(facts("chat6"), 6 * S).kind is DecisionKind.WAIT, "what comes free is kept"
    assert admission.finish("chat2", 7 * S) == []
    assert admission.finish("chat3", 7 * S) == []
    assert "large" in admission.finish("chat4", 8 * S)


def test_what_is_kept_free_goes_to_others_when_its_request_leaves():
    policies = [lane(name="doc", match=LaneMatch(path="/doc"), patience_ns=S), lane(running=2)]
    admission = Admission(policies, sharing=Sharing(running_tokens=400))
    admission.arrive(facts("a"), 0)
    admission.arrive(facts("b"), 0)
    admission.arrive(facts("large", 300, path="/doc"), 0)
    assert admission.finish("a", 5 * S) == []
    assert admission.leave("large")
    assert admission.arrive(facts("c"), 6 * S).kind is DecisionKind.ADMIT


def test_no_backend_is_503_and_only_for_the_lanes_that_need_it():
    policies = [lane(name="big", match=LaneMatch(path="/big"), backends=("b",)), lane()]
    admission = Admission(policies)
    admission.usable({"a"})
    gone = admission.arrive(facts("one", path="/big"), 0)
    assert (gone.kind, gone.reason, gone.http_status) == (DecisionKind.REFUSE, Reason.NO_BACKEND, 503)
    assert gone.retry_after_s
    assert gone.retry_after_ns is None
    assert admission.arrive(facts("two"), 0).kind is DecisionKind.ADMIT
    admission.usable(set())
    assert admission.arrive(facts("three"), 0).http_status == 503
    admission.usable(None)
    assert admission.arrive(facts("four", path="/big"), 0).kind is DecisionKind.ADMIT


def trained(policy: LanePolicy, service_ns: int, count: int = SEEN_FIRST) -> tuple[Admission, int]:
    """An admission that has seen enough requests of this length, and the time."""
    admission, now = Admission([policy]), 0
    for number in range(count):
        admission.arrive(facts(f"t{number}"), now)
        now += service_ns
        admission.finish(f"t{number}", now, output_tokens=100)
    return admission, now


def test_what_cannot_meet_its_deadline_is_not_started():
    admission, now = trained(lane(running=1), 2 * S)
    late = admission.arrive(facts("late", deadline_ns=now + S), now)
    assert (late.kind, late.reason) == (DecisionKind.REFUSE, Reason.PREDICTED_WAIT)
    assert admission.arrive(facts("ok", deadline_ns=now + 3 * S), now).kind is DecisionKind.ADMIT
    queued = admission.arrive(facts("queued", deadline_ns=now + 3 * S), now)
    assert queued.kind is DecisionKind.REFUSE, "two seconds of waiting and two of work are more than three"


def test_one_whose_turn_comes_too_late_is_expired_instead_of_started():
    admission, now = trained(lane(running=1), 2 * S)
    admission.arrive(facts("running"), now)
    assert admission.arrive(facts("tight", deadline_ns=now + 9 * S // 2), now).kind is DecisionKind.WAIT
    admission.arrive(facts("patient"), now)
    assert admission.finish("running", now + 3 * S) == ["patient"]
    assert admission.snapshot(now + 3 * S)["default"]["queued"] == 0
    assert admission.expire(now + 3 * S) == ["tight"]
    assert not admission.leave("tight")


def test_one_whose_turn_came_too_late_can_still_leave():
    admission, now = trained(lane(running=1), 2 * S)
    admission.arrive(facts("running"), now)
    admission.arrive(facts("tight", deadline_ns=now + 9 * S // 2), now)
    assert admission.finish("running", now + 3 * S) == []
    assert admission.leave("tight")
    assert admission.expire(now + 3 * S) == []


def test_a_least_time_that_nobody_has_confirmed_for_a_minute_refuses_nobody():
    admission, now = trained(lane(running=1), 2 * S)
    later = now + STALE_NS + S
    assert admission.arrive(facts("tight", deadline_ns=later + S), later).kind is DecisionKind.ADMIT


def test_a_throttled_lane_uses_a_share_of_its_places():
    admission = Admission([lane(running=8)])
    admission.throttle({"default": 0.5}, 0)
    kinds = [admission.arrive(facts(str(number)), 0).kind for number in range(8)]
    assert kinds.count(DecisionKind.ADMIT) == 4
    assert admission.throttle({}, 1) == ["4", "5", "6", "7"]


def test_limits_in_tokens_are_divided_among_processes():
    admission = Admission([lane(running_tokens=1_000)], processes=2)
    admission.arrive(facts("a", 300), 0)
    assert admission.arrive(facts("b", 300), 0).kind is DecisionKind.WAIT


@pytest.mark.parametrize("between", list(Between))
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_limit_is_passed_but_by_one_that_runs_alone(between, data):
    limits = st.one_of(st.none(), st.integers(100, 3_000))
    counts = st.one_of(st.none(), st.integers(1, 4))
    policies = [
        lane(
            name=name,
            match=LaneMatch(path=f"/{name}"),
            running=data.draw(st.integers(1, 6)),
            queued=data.draw(st.integers(0, 8)),
            order=data.draw(st.sampled_from(list(Order))),
            prefill_order=data.draw(st.one_of(st.none(), st.sampled_from(list(Order)))),
            running_tokens=data.draw(limits),
            running_kv_tokens=data.draw(limits),
            queued_tokens=data.draw(limits),
            prefill_requests=data.draw(counts),
            prefill_tokens=data.draw(limits),
            priority=data.draw(st.integers(-3, 3)),
        )
        for name in ("a", "b")
    ]
    sharing = Sharing(
        running=data.draw(counts),
        running_tokens=data.draw(limits),
        running_kv_tokens=data.draw(limits),
        prefill_requests=data.draw(counts),
        prefill_tokens=data.draw(limits),
        between=between,
    )
    admission = Admission(policies, sharing=sharing)
    at_work: dict[str, tuple[RequestFacts, bool]] = {}
    waiting: dict[str, RequestFacts] = {}
    now = 0
    for number in range(data.draw(st.integers(0, 60))):
        now += data.draw(st.integers(1, 3)) * S
        step = data.draw(st.sampled_from(["arrive", "arrive", "finish", "token", "leave", "settle"]))
        admitted: list[str] = []
        chosen = sorted(waiting if step == "leave" else at_work)
        one = chosen[number % len(chosen)] if chosen else ""
        if step == "arrive":
            asked = facts(
                f"r{number:03}",
                data.draw(st.integers(1, 1_500)),
                tenant=data.draw(st.sampled_from(["", "x", "y"])),
                path=data.draw(st.sampled_from(["/a", "/b"])),
                sequences=data.draw(st.integers(1, 3)),
            )
            decision = admission.arrive(asked, now)
            if decision.kind is DecisionKind.ADMIT:
                at_work[asked.request_id] = (asked, True)
            elif decision.kind is DecisionKind.WAIT:
                waiting[asked.request_id] = asked
        elif step == "finish" and one:
            del at_work[one]
            admitted = admission.finish(one, now)
        elif step == "token" and one:
            at_work[one] = (at_work[one][0], False)
            admitted = admission.first_token(one, now)
        elif step == "leave" and one:
            del waiting[one]
            assert admission.leave(one)
        elif step == "settle":
            admitted = admission.settle(now)
        for request_id in admitted:
            at_work[request_id] = (waiting.pop(request_id), True)
        everything = [
            (policy, [entry for entry in at_work.values() if entry[0].path == f"/{policy.name}"]) for policy in policies
        ]
        for policy, running in everything:
            assert len(running) <= policy.running
            _within(policy, running)
        _within(sharing, list(at_work.values()))
        assert sharing.running is None or len(at_work) <= sharing.running
        view = admission.snapshot(now)
        assert sum(one["queued"] for one in view.values()) == len(waiting)
        assert sum(one["queued_tokens"] for one in view.values()) == sum(
            demand(asked).tokens for asked in waiting.values()
        )
    for request_id in list(at_work):
        admission.finish(request_id, now)
        waiting_now = sum(one["queued"] for one in admission.snapshot(now).values())
        assert waiting_now <= len(waiting)


def _within(limits: LanePolicy | Sharing, running: list[tuple[RequestFacts, bool]]) -> None:
    demands = [demand(asked) for asked, _ in running]
    prefill = [demand(asked) for asked, in_prefill in running if in_prefill]
    for bound, values in (
        (limits.running_tokens, [one.tokens for one in demands]),
        (limits.running_kv_tokens, [one.kv for one in demands]),
        (limits.prefill_requests, [1 for _ in prefill]),
        (limits.prefill_tokens, [one.prompt for one in prefill]),
    ):
        assert bound is None or len(values) <= 1 or sum(values) <= bound


def test_whoever_waits_can_be_told_where_it_stands():
    admission, now = trained(lane(running=1, order=Order.SHORTEST_FIRST), 2 * S, count=40)
    admission.arrive(facts("running"), now)
    for name, asked in (("long", 4_000), ("short", 10), ("middle", 50)):
        admission.arrive(facts(name, max_tokens=asked), now)
    places = {name: admission.standing(name, now)[0] for name in ("short", "middle", "long")}
    assert places == {"short": 1, "middle": 2, "long": 3}
    waits = [admission.standing(name, now)[1] for name in ("short", "middle", "long")]
    assert None not in waits
    assert waits == sorted(waits, key=lambda wait: wait or 0)
    assert admission.standing("running", now) == admission.standing("nobody", now) == (None, None)
    decision = admission.arrive(facts("next"), now)
    duration = admission.predicted_duration(decision)
    assert duration is not None
    assert duration.low_ns <= duration.expected_ns <= duration.high_ns
    unread = Decision(kind=DecisionKind.REFUSE, lane="default")
    assert admission.predicted_duration(unread) is None
    assert admission.predicted_duration(Decision(kind=DecisionKind.ADMIT, lane="no such lane", work=1.0)) is None
