"""Waits foretold by admission itself, in every order, on the simulated engine; and how their truth is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.foretold import Foretold
from tailrace.govern.lane import LaneMatch, LanePolicy, Order, RequestFacts
from tailrace.govern.overtaking import Overtaking
from tailrace.govern.prediction_error import ErrorSummary
from tailrace.govern.wait_model import WaitModel
from tailrace.model.thresholds import MS, Budgets, S
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.engine import Engine
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import PlannedRequest, Workload, generators, plan
from tests.govern.lane_stand import MIX


class Governed:
    """Admission before the engine, as the gateway has it: first come, first told."""

    def __init__(self, *policies: LanePolicy) -> None:
        chosen = preset("a100-llama3-8b")
        self.engine = Engine(chosen.knobs, chosen.cost(), keep_steps=False)
        self.admission = Admission(policies)
        self.requests: dict[str, PlannedRequest] = {}
        self.now = 0

    def run(self, rate: float, seconds: int, seed: int) -> dict[str, ErrorSummary]:
        """Lane -> the error that it shows in the end."""
        workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=rate), mix=parse_mix(MIX))
        for request in plan(workload, generators(seed)):
            self.now = request.at_ns or 0
            if self.now > seconds * S:
                break
            until = self.now * PS_PER_NS
            while self.engine.now < until and self.engine.plan(skip=True, until=until) is not None:
                self.engine.commit()
                self._ended()
            self.admission.expire(self.now)
            name = str(request.number)
            self.requests[name] = request
            facts = RequestFacts(request_id=name, prompt_tokens=request.prompt_tokens, max_tokens=1000)
            if self.admission.arrive(facts, self.now).kind is DecisionKind.ADMIT:
                self._send(name, self.now)
        views = self.admission.snapshot(self.now)
        return {lane: ErrorSummary(**view["predicted_wait_error"]) for lane, view in views.items()}

    def _send(self, name: str, now: int) -> None:
        request = self.requests[name]
        arrival = max(now * PS_PER_NS, self.engine.now)
        self.engine.submit(SimRequest(name, request.prompt_tokens, request.output_tokens, arrival))

    def _ended(self) -> None:
        for ended in self.engine.ended:
            now = ended.ended_at // PS_PER_NS
            for name in self.admission.finish(ended.label, now, prompt_tokens=ended.prompt, output_tokens=ended.output):
                self._send(name, now)
        self.engine.ended.clear()


@pytest.mark.parametrize(
    ("order", "running", "queue_s", "bound"),
    [
        (Order.FIRST_COME, 2, 10, 0.2),
        (Order.FIRST_COME, 2, 20, 0.2),
        (Order.FIRST_COME, 4, 2, 0.3),
        (Order.EARLIEST_DEADLINE, 2, 10, 0.2),
        # Who comes later and is shorter goes first: that is foretold only on average.
        (Order.SHORTEST_FIRST, 2, 10, 0.3),
        (Order.SHORTEST_FIRST, 2, 20, 0.3),
    ],
)
def test_at_twice_the_sustainable_load_each_order_foretells_its_waits(order, running, queue_s, bound):
    documents = LanePolicy(
        name="documents",
        match=LaneMatch(min_prompt_tokens=2001),
        running=running,
        queued=32,
        order=order,
        budgets=Budgets(queue_ns=queue_s * S),
    )
    errors = Governed(documents, LanePolicy(running=64, queued=128)).run(15.0, 400, seed=11)
    assert errors["documents"].n > 200
    assert errors["documents"].median is not None
    assert errors["documents"].median < bound


def test_in_an_order_a_place_on_paper_is_the_first_that_goes_to_somebody_behind_it():
    foretold = Foretold()
    foretold.tell(4 * S, 2 * S, 8 * S, 1, (50.0, 7, "me"), 0)
    foretold.released(1 * S)
    foretold.given((10.0, 9, "came later, is shorter"), 1 * S, by_age=False)
    foretold.given((90.0, 1, "has waited for long"), 2 * S, by_age=True)
    assert foretold.error.seen == 0
    foretold.given((60.0, 8, "is longer"), 5 * S, by_age=False)
    assert foretold.error.summary().median == pytest.approx(0.2)
    foretold.given((60.0, 8, "once is enough"), 6 * S, by_age=False)
    assert foretold.error.seen == 1


def test_by_age_it_is_due_before_one_that_came_later():
    foretold = Foretold()
    foretold.tell(4 * S, 2 * S, 8 * S, 1, (50.0, 7, "me"), 0)
    foretold.given((20.0, 8, "came after me"), 4 * S, by_age=True)
    assert foretold.error.summary().median == 0


def test_a_place_that_nobody_wanted_would_have_been_theirs():
    model = WaitModel(1)
    now = 0
    for i in range(20):
        model.started(str(i), 100, now)
        now += 2 * S
        model.freed(str(i), now)
    model.started("a", 100, now)
    prediction = model.predict(0.0, 0, now)
    assert prediction is not None
    model.foretell(prediction, 0, now, key=(1.0, 1, "me"))
    model.freed("a", now + 2 * S)
    assert model.error.n == 0  # somebody who waits may get it in this moment
    model.started("b", 100, now + 9 * S)
    assert (model.error.n, model.error.median) == (1, pytest.approx(0.0, abs=0.05))


def test_those_who_leave_the_queue_shorten_the_wait_of_the_others():
    model = WaitModel(1)
    now = 0
    for i in range(30):
        model.started(str(i), 100, now)
        now += 2 * S
        model.freed(str(i), now)
    model.started("a", 100, now)
    before = model.predict(1000.0, 10, now)
    assert before is not None
    for _ in range(200):
        model.left(now)
        model.answered(before, before.expected_ns, 11)
    after = model.predict(1000.0, 10, now)
    assert after is not None
    # Half of them leave: about ten seconds of twenty are left, and the one that runs.
    assert after.expected_ns == pytest.approx(12 * S, rel=0.1)
    assert before.expected_ns == pytest.approx(22 * S, rel=0.1)


def test_shorter_ones_that_keep_coming_lengthen_the_wait_of_a_long_one():
    overtaking = Overtaking()
    for i in range(64):
        overtaking.came(100.0 if i % 2 else 1000.0, i * S)
    # One of 100 every two seconds, at 10 ms a unit of work: half of the lane's pace.
    assert overtaking.share(500.0, 64 * S, 10 * MS) == pytest.approx(0.5, rel=0.05)
    assert overtaking.share(100.0, 64 * S, 10 * MS) == 0


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.integers(0, 10**10)), max_size=150),
    st.floats(0, 1e7),
    st.floats(0, 1e9),
)
def test_what_others_take_of_the_pace_is_a_share_below_one(came, size, place_ns):
    overtaking = Overtaking()
    now = 0
    for work, later in came:
        now += later
        overtaking.came(work, now)
    assert 0 <= overtaking.share(size, now, place_ns) <= 0.9
