from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.lane import LaneMatch, LanePolicy, Order, RequestFacts
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Budgets, S


def facts(request_id: str, prompt_tokens: int = 100, **more) -> RequestFacts:
    return RequestFacts(request_id=request_id, prompt_tokens=prompt_tokens, **more)


def two_lanes() -> list[LanePolicy]:
    return [
        LanePolicy(name="interactive", match=LaneMatch(max_prompt_tokens=2000), running=2, queued=2),
        LanePolicy(name="long_document", match=LaneMatch(min_prompt_tokens=2001), running=1, queued=1),
    ]


def test_exactly_limit_plus_queue_are_accepted_and_the_rest_refused_at_once():
    lanes = Admission([LanePolicy(running=4, queued=4)])
    kinds = [lanes.arrive(facts(str(i)), now=0).kind for i in range(40)]
    assert kinds.count(DecisionKind.ADMIT) == 4
    assert kinds.count(DecisionKind.WAIT) == 4
    assert kinds.count(DecisionKind.REFUSE) == 32


def test_a_long_document_cannot_hold_up_the_interactive_lane():
    lanes = Admission(two_lanes())
    assert lanes.arrive(facts("doc1", 9000), 0).kind is DecisionKind.ADMIT
    assert lanes.arrive(facts("doc2", 9000), 0).kind is DecisionKind.WAIT
    assert lanes.arrive(facts("chat", 50), 0).kind is DecisionKind.ADMIT
    assert lanes.finish("doc1", S) == ["doc2"]


def test_retry_after_is_the_drain_time_of_the_queue():
    lanes = Admission([LanePolicy(running=2, queued=3, budgets=Budgets(queue_ns=100 * S))])
    lanes.arrive(facts("warm"), 0)
    lanes.finish("warm", 4 * S)  # a request takes 4 s
    for name in "abcde":
        lanes.arrive(facts(name), 4 * S)
    refused = lanes.arrive(facts("f"), 4 * S)
    assert (refused.kind, refused.reason, refused.http_status) == (DecisionKind.REFUSE, Reason.QUEUE_FULL, 429)
    assert refused.position == 4
    # Two at a time, 4 s each: it would be the fourth to get a place, 8 s from now.
    assert refused.retry_after_ns is not None
    assert 6 * S < refused.retry_after_ns < 10 * S
    assert refused.retry_after_s == -(-refused.retry_after_ns // S)


def test_a_wait_beyond_the_budget_is_refused_at_once_not_after_it():
    lanes = Admission([LanePolicy(running=1, queued=100, budgets=Budgets(queue_ns=2 * S))])
    lanes.arrive(facts("warm"), 0)
    lanes.finish("warm", 3 * S)
    lanes.arrive(facts("running"), 3 * S)
    decision = lanes.arrive(facts("late"), 3 * S)
    assert (decision.kind, decision.reason) == (DecisionKind.REFUSE, Reason.PREDICTED_WAIT)


def test_a_client_that_leaves_the_queue_is_never_admitted():
    lanes = Admission([LanePolicy(running=1, queued=5)])
    for name in "abc":
        lanes.arrive(facts(name), 0)
    assert lanes.leave("b")
    assert lanes.finish("a", S) == ["c"]
    assert not lanes.leave("b")


def test_the_queue_budget_expires_and_a_deadline_only_shortens_it():
    lanes = Admission([LanePolicy(running=1, queued=5, budgets=Budgets(queue_ns=2 * S))])
    lanes.arrive(facts("a"), 0)
    lanes.arrive(facts("patient", deadline_ns=100 * S), 0)
    lanes.arrive(facts("hurried", deadline_ns=500 * MS), 0)
    assert lanes.expire(499 * MS) == []
    assert lanes.expire(500 * MS) == ["hurried"]
    assert lanes.expire(2 * S) == ["patient"]


def test_shortest_first_reorders_but_never_starves():
    policy = LanePolicy(running=1, queued=9, order=Order.SHORTEST_FIRST, budgets=Budgets(queue_ns=10 * S))
    lanes = Admission([policy])
    lanes.arrive(facts("running"), 0)
    lanes.arrive(facts("long", 5000), 0)
    lanes.arrive(facts("short", 10), 1)
    assert lanes.finish("running", 2) == ["short"]
    lanes.arrive(facts("short2", 10), 3)
    # "long" has waited for more than half of its queue budget: it goes first now.
    assert lanes.finish("short", 6 * S) == ["long"]


def test_earliest_deadline_first():
    lanes = Admission([LanePolicy(running=1, queued=9, order=Order.EARLIEST_DEADLINE)])
    lanes.arrive(facts("running"), 0)
    lanes.arrive(facts("later", deadline_ns=3 * S), 0)
    lanes.arrive(facts("sooner", deadline_ns=2 * S), 0)
    assert lanes.finish("running", 1) == ["sooner"]


def test_a_low_lane_is_late_but_not_starved_under_a_total_limit():
    lanes = Admission(
        [
            LanePolicy(name="batch", match=LaneMatch(header={"x-lane": "batch"}), priority=10, running=9),
            LanePolicy(name="default", priority=0, running=9, budgets=Budgets(queue_ns=60 * S)),
        ],
        total_running=1,
    )
    lanes.arrive(facts("first"), 0)
    lanes.arrive(facts("batch", headers={"x-lane": "batch"}), 0)
    lanes.arrive(facts("chat"), S)
    assert lanes.finish("first", 2 * S) == ["chat"]
    lanes.arrive(facts("chat2"), 11 * S)
    assert lanes.finish("chat", 12 * S) == ["batch"]


def test_lanes_change_at_run_time_without_refusing_or_losing_anybody():
    lanes = Admission([LanePolicy(running=1, queued=9)])
    lanes.arrive(facts("doc", 9000), 0)
    lanes.arrive(facts("chat", 10), 0)
    lanes.arrive(facts("doc2", 9000), 0)
    assert lanes.replace(two_lanes(), 1) == ["chat", "doc2"]
    assert lanes.snapshot(1)["default"]["running"] == 1
    lanes.finish("doc", 2)
    assert "default" not in lanes.snapshot(2)


def test_an_id_is_admitted_once():
    lanes = Admission([LanePolicy()])
    lanes.arrive(facts("a"), 0)
    with pytest.raises(ValueError, match="already"):
        lanes.arrive(facts("a"), 0)


events = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "finish", "leave", "expire", "replace"]), st.integers(0, 30), st.integers(1, 9000)
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(events, st.sampled_from(list(Order)), st.one_of(st.none(), st.integers(1, 3)))
def test_no_limit_is_ever_exceeded_and_nobody_is_lost(steps, order, total):
    """Every id is running, waiting or gone; running never exceeds a limit of the lane that admitted it."""
    policies = [
        LanePolicy(name="short", match=LaneMatch(max_prompt_tokens=2000), running=2, queued=3, order=order),
        LanePolicy(name="long", match=LaneMatch(min_prompt_tokens=2001), running=1, queued=2, order=order),
    ]
    lanes = Admission(policies, total_running=total)
    running: set[str] = set()
    waiting: set[str] = set()
    now = 0
    for action, number, tokens in steps:
        now += tokens * MS
        request_id = str(number)
        admitted: list[str] = []
        if action == "arrive" and request_id not in running | waiting:
            decision = lanes.arrive(facts(request_id, tokens), now)
            if decision.kind is DecisionKind.ADMIT:
                running.add(request_id)
            elif decision.kind is DecisionKind.WAIT:
                waiting.add(request_id)
        elif action == "finish":
            admitted = lanes.finish(request_id, now)
            running.discard(request_id)
        elif action == "leave":
            assert lanes.leave(request_id) == (request_id in waiting)
            waiting.discard(request_id)
        elif action == "expire":
            gone = lanes.expire(now)
            assert set(gone) <= waiting
            waiting -= set(gone)
        elif action == "replace":
            admitted = lanes.replace(policies, now)
        assert set(admitted) <= waiting
        waiting -= set(admitted)
        running |= set(admitted)
        view = lanes.snapshot(now)
        assert sum(lane["running"] for lane in view.values()) == len(running)
        assert sum(lane["queued"] for lane in view.values()) == len(waiting)
        for lane in view.values():
            assert lane["running"] <= lane["running_limit"]
        if total is not None:
            assert len(running) <= total
