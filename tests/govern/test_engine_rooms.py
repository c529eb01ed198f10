"""Engines' own state as a limit of admission: full, stale, several engines, several processes."""

from __future__ import annotations

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.engine_room import EngineRoomPolicy
from tailrace.govern.engine_rooms import EngineRooms
from tailrace.govern.lane import LaneMatch, LanePolicy, RequestFacts
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import Budgets, S

POLICY = EngineRoomPolicy(max_waiting=2, max_kv_usage=0.9, stale_ns=5 * S)
PATIENT = Budgets(queue_ns=1_000 * S)


def state(now: int, *, running: int = 10, waiting: int = 0, kv_usage: float = 0.1) -> EngineState:
    return EngineState(at_ns=now, running=running, waiting=waiting, kv_usage=kv_usage)


def facts(number: int, path: str = "") -> RequestFacts:
    return RequestFacts(request_id=f"r{number}", prompt_tokens=10, max_tokens=10, path=path)


def admission(**more) -> Admission:
    return Admission([LanePolicy(budgets=PATIENT)], rooms=EngineRooms(POLICY, **more))


def test_before_the_first_reading_one_may_go_and_the_others_wait():
    one = admission()
    kinds = [one.arrive(facts(number), 0).kind for number in range(3)]
    assert kinds == [DecisionKind.ADMIT, DecisionKind.WAIT, DecisionKind.WAIT]
    assert one.finish("r0", S) == ["r1"]
    assert one.hear("default", state(2 * S), 2 * S) == ["r2"]


def test_a_full_engine_gets_nobody_until_a_reading_says_that_it_has_room():
    one = admission()
    one.hear("default", state(0, running=64, waiting=9), 0)
    assert one.arrive(facts(0), 0).kind is DecisionKind.ADMIT
    assert one.arrive(facts(1), 0).kind is DecisionKind.WAIT
    assert one.hear("default", state(S, running=64, waiting=9), S) == []
    assert one.hear("default", state(2 * S, running=64, waiting=0), 2 * S) == ["r1"]


def test_old_metrics_count_as_a_full_engine():
    one = admission()
    one.hear("default", state(0), 0)
    assert one.arrive(facts(0), 1).kind is DecisionKind.ADMIT
    late = 6 * S
    assert one.arrive(facts(1), late).kind is DecisionKind.WAIT
    assert one.settle(late) == []
    assert one.hear("default", state(late), late) == ["r1"]


def test_not_everybody_rushes_in_on_one_reading():
    one = admission()
    one.hear("default", state(0, running=0), 0)
    admitted = [one.arrive(facts(number), 1).kind for number in range(100)].count(DecisionKind.ADMIT)
    assert 1 < admitted < 20


def test_of_several_engines_one_with_room_is_enough_and_a_lane_asks_only_its_own():
    rooms = EngineRooms(POLICY, ["a", "b"])
    policies = [
        LanePolicy(name="a", match=LaneMatch(path="/a"), backends=("a",), budgets=PATIENT),
        LanePolicy(budgets=PATIENT),
    ]
    one = Admission(policies, rooms=rooms)
    for name, waiting in (("a", 50), ("b", 0)):
        one.hear(name, state(0, waiting=waiting), 0)
    assert one.arrive(facts(0, "/a"), 1).kind is DecisionKind.ADMIT, "none of ours is there"
    assert one.arrive(facts(1, "/a"), 1).kind is DecisionKind.WAIT
    assert one.arrive(facts(2), 1).kind is DecisionKind.ADMIT
    one.sent("r2", "a")
    assert one.finish("r0", S) == [], "the other one of ours is at a"
    assert one.finish("r2", S) == ["r1"]


def test_processes_that_hear_the_same_reading_share_what_it_leaves():
    alone, one_of_four = admission(), admission(processes=4)
    counts = []
    for one in (alone, one_of_four):
        one.hear("default", state(0, running=0), 0)
        counts.append([one.arrive(facts(number), 1).kind for number in range(100)].count(DecisionKind.ADMIT))
    assert counts[0] > 1
    assert counts[1] <= max(1, counts[0] // 4) + 1


def test_an_engine_that_is_full_says_why():
    rooms = EngineRooms(POLICY)
    rooms.take("default")
    assert "have not been read" in rooms.why_not(0)["default"]
    rooms.hear("default", state(0, waiting=7), 0)
    assert "7 requests wait" in rooms.why_not(0)["default"]
    rooms.hear("default", state(S), S)
    assert rooms.why_not(S) == {}


def test_engines_come_and_go_by_a_reload():
    rooms = EngineRooms(POLICY, ["a", "b"])
    one = Admission([LanePolicy(budgets=PATIENT)], rooms=rooms)
    kinds = [one.arrive(facts(number), 1).kind for number in range(3)]
    assert kinds.count(DecisionKind.ADMIT) == 2, "one at each of them"
    one.engines(["b", "c"])
    assert one.settle(2) == ["r2"], "at the new one nothing of ours is"
    for name in ("r0", "r1", "r2"):
        one.finish(name, S)
    assert rooms.why_not(S) == {}
