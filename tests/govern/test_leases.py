"""Limits that hold over several processes: real admissions and a real keeper, and a network that delays as it likes."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.engine_room import EngineRoomPolicy
from tailrace.govern.engine_rooms import EngineRooms
from tailrace.govern.lane import LaneMatch, LanePolicy, RequestFacts
from tailrace.govern.leases import ANSWER_NS, CALM_NS, LeaseBook
from tailrace.govern.restraint import Restraint
from tailrace.govern.rungs import Rung, RungSettings, effects_of
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Budgets, S

PATIENT = Budgets(queue_ns=10_000 * S)


class World:
    """Some processes, the keeper, and messages under way in both directions, in order but as late as the test wants."""

    def __init__(
        self, policies: list[LanePolicy], processes: int, total: int | None = None, *, room: bool = False
    ) -> None:
        """`room`: the engine's own state is a limit too; its metrics have never been read."""
        self.room = room
        self.policies, self.total, self.processes = policies, total, processes
        self.book = LeaseBook(policies, total_running=total, processes=processes)
        self.now = 0
        self.admissions: dict[str, Admission] = {}
        self.up: dict[str, deque] = {}
        self.down: dict[str, deque] = {}
        self.running: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.refused: list[str] = []
        self.admitted: list[str] = []
        self.peak: dict[str, int] = {}
        self._ids = 0
        for number in range(processes):
            self.join(f"w{number}")

    def join(self, name: str) -> None:
        rooms = EngineRooms(EngineRoomPolicy(), processes=self.processes) if self.room else None
        self.admissions[name] = Admission(self.policies, shared=True, processes=self.processes, rooms=rooms)
        self.up[name], self.down[name] = deque(), deque()
        self._orders(self.book.join(name))

    def kill(self, name: str) -> None:
        del self.admissions[name], self.up[name], self.down[name]
        for table in (self.running, self.waiting):
            for request_id in [r for r, where in table.items() if where == name]:
                del table[request_id]
        self._orders(self.book.leave(name, self.now))

    def arrive(self, name: str, lane: str = "default") -> str:
        self._ids += 1
        request_id = f"r{self._ids}"
        self.now += 1
        decision = self.admissions[name].arrive(RequestFacts(request_id=request_id, headers={"x-lane": lane}), self.now)
        if decision.kind is DecisionKind.ADMIT:
            self._admit(name, request_id)
        elif decision.kind is DecisionKind.WAIT:
            self.waiting[request_id] = name
        else:
            self.refused.append(request_id)
        self._speak(name)
        return request_id

    def finish(self, request_id: str) -> None:
        name = self.running.pop(request_id)
        self.now += 1
        for admitted in self.admissions[name].finish(request_id, self.now):
            self._admit(name, admitted)
        self._speak(name)

    def leave(self, request_id: str) -> None:
        name = self.waiting.pop(request_id)
        assert self.admissions[name].leave(request_id)
        self._speak(name)

    def replace(self, policies: list[LanePolicy]) -> None:
        self.policies = policies
        self._orders(self.book.replace(policies, self.total, self.now))
        for name, admission in self.admissions.items():
            for admitted in admission.replace(policies, self.now):
                self._admit(name, admitted)
            self._speak(name)

    def deliver_up(self, name: str) -> None:
        if self.up[name]:
            self._orders(self.book.report(name, self.up[name].popleft(), self.now))

    def deliver_down(self, name: str) -> None:
        if not self.down[name]:
            return
        admitted, refused = self.admissions[name].obey(self.down[name].popleft(), self.now)
        for request_id in admitted:
            self._admit(name, request_id)
        for request_id, decision in refused:
            assert decision.reason is Reason.QUEUE_FULL
            assert decision.retry_after_s
            del self.waiting[request_id]
            self.refused.append(request_id)
        self._speak(name)

    def sweep(self, by: int = 0) -> None:
        self.now += by
        self._orders(self.book.sweep(self.now))

    def quiet(self) -> None:
        """Everything that is under way arrives."""
        for _ in range(10_000):
            if not any(self.up.values()) and not any(self.down.values()):
                return
            for name in self.admissions:
                self.deliver_up(name)
                self.deliver_down(name)
        raise AssertionError("messages never end")

    def lanes(self, name: str) -> dict:
        return self.admissions[name].snapshot(self.now)

    def used(self, lane: str) -> int:
        return sum(self.lanes(name)[lane]["running"] for name in self.admissions if lane in self.lanes(name))

    def _admit(self, name: str, request_id: str) -> None:
        self.waiting.pop(request_id, None)
        self.running[request_id] = name
        self.admitted.append(request_id)
        for policy in self.policies:
            self.peak[policy.name] = max(self.peak.get(policy.name, 0), self.used(policy.name))

    def _speak(self, name: str) -> None:
        self.up[name].extend(self.admissions[name].reports())

    def _orders(self, orders: list) -> None:
        for name, order in orders:
            if name in self.down:
                self.down[name].append(order)


def lane(running: int, queued: int, **more) -> LanePolicy:
    return LanePolicy(running=running, queued=queued, budgets=PATIENT, **more)


def batch_and_default(running: int, queued: int) -> list[LanePolicy]:
    match = LaneMatch(header={"x-lane": "batch"})
    return [lane(running, queued, name="batch", match=match, priority=10), lane(running, queued)]


# -- what must hold


@pytest.mark.parametrize("shares", [(20, 20), (39, 1), (40, 0), (3, 37)])
def test_a_burst_over_two_processes_is_answered_as_one_process_would(shares):
    world = World([lane(4, 4)], 2)
    world.quiet()
    for name, count in zip(("w0", "w1"), shares, strict=True):
        for _ in range(count):
            world.arrive(name)
    world.quiet()
    assert (len(world.running), len(world.waiting), len(world.refused)) == (4, 4, 32)


def test_nobody_waits_for_a_message_while_places_are_plenty():
    world = World([lane(16, 16)], 2)
    world.quiet()
    for _ in range(8):
        world.arrive("w0")
    assert len(world.running) == 8
    assert not world.up["w0"]


def test_a_limit_of_one_is_passed_around_and_everybody_gets_his_turn():
    world = World([lane(1, 100)], 2)
    world.quiet()
    order = [world.arrive(f"w{number % 2}") for number in range(10)]
    world.quiet()
    while world.running:
        assert len(world.running) == 1
        world.finish(next(iter(world.running)))
        world.quiet()
    assert world.admitted == order
    assert world.peak == {"default": 1}


def test_a_busy_process_cannot_keep_the_places_to_itself():
    world = World([lane(2, 100)], 2)
    world.quiet()
    for _ in range(20):
        world.arrive("w0")
    world.quiet()
    late = world.arrive("w1")
    world.quiet()
    turns = 0
    while late in world.waiting:
        world.finish(next(r for r, where in world.running.items() if where == "w0"))
        world.quiet()
        world.arrive("w0")
        turns += 1
    assert turns <= 20, "it came before those that arrived after it"


def test_idle_places_are_called_back_for_whoever_lacks_them():
    world = World([lane(8, 0)], 4)
    world.quiet()
    for _ in range(8):
        world.arrive("w3")
    world.quiet()
    assert list(world.running.values()) == ["w3"] * 8
    assert not world.refused


def test_a_process_that_dies_gives_all_its_places_back_at_once():
    world = World([lane(4, 8)], 2)
    world.quiet()
    for _ in range(6):
        world.arrive("w0")
    world.quiet()
    world.arrive("w1")
    world.quiet()
    assert not [r for r, where in world.running.items() if where == "w1"]
    world.kill("w0")
    world.quiet()
    assert list(world.running.values()) == ["w1"]
    assert world.book.held("default")[0] <= 4


def test_a_stuck_process_holds_up_no_refusal():
    world = World([lane(2, 2)], 2)
    world.quiet()
    for _ in range(9):
        world.arrive("w0")
    while world.up["w0"]:
        world.deliver_up("w0")
    while world.down["w0"] or world.up["w0"]:  # w1 hears nothing and says nothing
        world.deliver_down("w0")
        world.deliver_up("w0")
    undecided = len(world.waiting)
    world.sweep(ANSWER_NS + 1)
    while world.down["w0"] or world.up["w0"]:
        world.deliver_down("w0")
        world.deliver_up("w0")
    assert (undecided, len(world.running), len(world.waiting)) == (3, 1, 1)


def test_nobody_is_refused_for_a_place_that_another_was_given_too_much():
    world = World([lane(1, 2)], 3)
    world.quiet()
    world.arrive("w0")
    world.arrive("w0")
    world.quiet()
    for _ in range(2):
        world.finish(next(iter(world.running)))
        world.quiet()
    assert world.book.tight("default"), "scarce: all places are with the keeper, who decides at once"
    world.arrive("w0")
    world.arrive("w0")
    world.arrive("w1")
    for name in ("w0", "w0", "w1"):
        world.deliver_up(name)
    world.quiet()
    assert (len(world.running), len(world.waiting), len(world.refused)) == (1, 2, 0)


def test_places_are_spread_again_when_nobody_lacks_any():
    world = World([lane(4, 4)], 2)
    world.quiet()
    ids = [world.arrive("w0") for _ in range(4)]
    world.quiet()
    assert world.book.tight("default")
    for request_id in ids:
        world.finish(request_id)
    world.quiet()
    world.sweep(CALM_NS)
    world.quiet()
    assert not world.book.tight("default")
    world.arrive("w1")
    world.arrive("w1")
    assert len(world.running) == 2, "at once, without a message"


def test_a_total_over_lanes_holds_and_the_urgent_lane_goes_first():
    world = World(batch_and_default(9, 9), 2, total=1)
    world.quiet()
    first = world.arrive("w0")
    world.quiet()
    batch = world.arrive("w0", "batch")
    chat = world.arrive("w1")
    world.quiet()
    assert list(world.running) == [first]
    world.finish(first)
    world.quiet()
    assert list(world.running) == [chat]
    world.finish(chat)
    world.quiet()
    assert list(world.running) == [batch]


def test_a_lowered_limit_takes_places_as_they_become_free():
    world = World([lane(6, 9)], 2)
    world.quiet()
    for number in range(8):
        world.arrive(f"w{number % 2}")
    world.quiet()
    assert len(world.running) == 6
    world.replace([lane(2, 9)])
    world.quiet()
    assert (len(world.running), len(world.refused)) == (6, 0)
    while len(world.running) > 2:
        world.finish(next(iter(world.running)))
        world.quiet()
    assert (len(world.running), len(world.waiting)) == (2, 2)
    world.finish(next(iter(world.running)))
    world.quiet()
    assert len(world.running) == 2


def test_a_retired_process_gives_back_what_it_does_not_use():
    world = World([lane(4, 4)], 2)
    world.quiet()
    kept = world.arrive("w0")
    world.admissions["w0"].retire()
    world._speak("w0")
    world.quiet()
    assert world.book.held_by("w0")["default"] == (1, 0)
    world.finish(kept)
    world.quiet()
    assert world.book.held_by("w0")["default"] == (0, 0)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_happens_no_limit_is_passed_and_everybody_gets_a_turn(data):
    running = data.draw(st.integers(1, 6), label="running")
    queued = data.draw(st.integers(0, 5), label="queued")
    total = data.draw(st.one_of(st.none(), st.integers(1, 6)), label="total")
    processes = data.draw(st.integers(1, 4), label="processes")
    world = World(batch_and_default(running, queued), processes, total)
    born = processes

    def check() -> None:
        counts = {name: world.used(name) for name in ("batch", "default")}
        assert all(count <= running for count in counts.values()), counts
        assert total is None or sum(counts.values()) <= total, counts
        for name in ("batch", "default"):
            held = world.book.held(name)
            assert 0 <= held[0] <= running
            assert 0 <= held[1] <= queued
            assert world.used(name) <= held[0]
            seated = sum(
                len(one._lanes[name].queue) - len(one._lanes[name].share.unseated) for one in world.admissions.values()
            )
            assert seated <= held[1] <= queued

    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        names = sorted(world.admissions)
        step = data.draw(st.sampled_from(["arrive", "arrive", "finish", "leave", "up", "down", "sweep", "kill"]))
        if step == "kill":
            if len(names) > 1:
                world.kill(data.draw(st.sampled_from(names)))
            else:
                world.join(f"w{born}")
                born += 1
        elif step == "arrive":
            world.arrive(data.draw(st.sampled_from(names)), data.draw(st.sampled_from(["batch", "default"])))
        elif step == "finish" and world.running:
            world.finish(data.draw(st.sampled_from(sorted(world.running))))
        elif step == "leave" and world.waiting:
            world.leave(data.draw(st.sampled_from(sorted(world.waiting))))
        elif step == "up":
            world.deliver_up(data.draw(st.sampled_from(names)))
        elif step == "down":
            world.deliver_down(data.draw(st.sampled_from(names)))
        elif step == "sweep":
            world.sweep(data.draw(st.sampled_from([0, 50 * MS, CALM_NS])))
        check()

    # The end: nobody new comes. Everybody who waits is admitted in the end, and all places are usable again.
    for _ in range(500):
        world.quiet()
        check()
        world.sweep(50 * MS)
        world.quiet()
        if world.running:
            world.finish(next(iter(world.running)))
        elif not world.waiting:
            break
    assert not world.waiting
    bound = running if total is None else min(running, total)
    one = min(world.admissions)
    for _ in range(bound):
        world.arrive(one)
    world.quiet()
    assert len(world.running) == bound


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_limits_that_change_under_way_hold_in_the_end(data):
    world = World(batch_and_default(data.draw(st.integers(1, 6)), data.draw(st.integers(0, 5))), 3)
    highest = {policy.name: policy.running for policy in world.policies}
    for _ in range(data.draw(st.integers(1, 50), label="steps")):
        step = data.draw(st.sampled_from(["arrive", "arrive", "finish", "up", "down", "sweep", "replace"]))
        name = data.draw(st.sampled_from(sorted(world.admissions)))
        if step == "arrive":
            world.arrive(name, data.draw(st.sampled_from(["batch", "default"])))
        elif step == "finish" and world.running:
            world.finish(data.draw(st.sampled_from(sorted(world.running))))
        elif step == "up":
            world.deliver_up(name)
        elif step == "down":
            world.deliver_down(name)
        elif step == "sweep":
            world.sweep(data.draw(st.sampled_from([50 * MS, CALM_NS])))
        elif step == "replace":
            running, queued = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 5))
            policies = batch_and_default(running, queued)
            # A lane may come and go.
            world.replace(policies if data.draw(st.booleans()) else policies[1:])
            for policy in world.policies:
                highest[policy.name] = max(highest.get(policy.name, 0), policy.running)
        for lane_name, limit in highest.items():
            assert world.used(lane_name) <= limit
    for _ in range(500):
        world.quiet()
        world.sweep(50 * MS)
        world.quiet()
        if world.running:
            world.finish(next(iter(world.running)))
        elif not world.waiting:
            break
    assert not world.waiting
    world.sweep(CALM_NS)
    world.quiet()
    limit = world.policies[-1].running
    for _ in range(limit + world.policies[-1].queued + 3):
        world.arrive("w1")
    world.quiet()
    assert (len(world.running), len(world.waiting)) == (limit, world.policies[-1].queued)


def test_places_that_a_limit_in_tokens_keeps_idle_are_not_asked_for_over_and_over():
    """Each process has half of the tokens; what it may not use goes to whoever may, and messages come to rest."""
    world = World([lane(4, 100, running_tokens=500)], 2)
    world.quiet()
    for _ in range(6):
        world.arrive("w0")
    world.quiet()
    used = world.used("default")
    assert 1 <= used <= 4
    others = [world.arrive("w1") for _ in range(3)]
    world.quiet()
    assert world.used("default") <= 4
    assert any(request_id in world.running for request_id in others), "idle places went where they can be used"
    served = 0
    while world.running:
        world.finish(next(iter(world.running)))
        world.quiet()
        served += 1
    assert served == 9
    assert not world.waiting


@pytest.mark.parametrize("held_by", ["engine", "ladder"])
def test_places_that_nobody_may_use_for_now_are_not_asked_for_over_and_over(held_by):
    low = lane(4, 100, name="low", match=LaneMatch(header={"x-lane": "low"}), priority=1)
    world = World([low, lane(1, 100)], 2, room=held_by == "engine")
    world.quiet()
    if held_by == "ladder":
        effects = effects_of([Rung.LOW_WAITS], RungSettings())
        for admission in world.admissions.values():
            admission.restraint = Restraint(effects, 0)
        for _ in range(3):
            world.arrive("w0")
            world.quiet()
    for _ in range(6):
        world.arrive("w0", "low")
        world.quiet()
    assert world.waiting, "somebody waits, and the messages have come to rest"
    while world.running:
        world.finish(next(iter(world.running)))
        world.quiet()
    assert not world.waiting
    assert not world.refused
