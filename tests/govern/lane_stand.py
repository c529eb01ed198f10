"""Lanes in front of the simulated engine, in virtual time: what was predicted of each wait, and what came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.govern.lane import RequestFacts
from tailrace.govern.length_model import LengthModel
from tailrace.govern.wait_model import WaitModel
from tailrace.model.thresholds import S
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.engine import Engine
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import PlannedRequest, Workload, generators, plan

MIX = "short:0.9,document:0.1"
"""Median 80 tokens in, 60 out; median 12,000 in, 60 out."""


class Told(NamedTuple):
    """One prediction: what was said at `at`, and when the lane had a free place for it after all."""

    lane: str
    at: int
    ahead: int
    predicted_ns: int
    actual_ns: int
    refused: bool

    @property
    def error(self) -> float:
        """|predicted - actual| / actual."""
        return abs(self.predicted_ns - self.actual_ns) / self.actual_ns


class Lane:
    """First come, first served; refuses what would wait longer than `budget_ns`, and what finds the queue full."""

    def __init__(self, name: str, running: int, queued: int, budget_ns: int) -> None:
        self.name, self.limit, self.queued, self.budget_ns = name, running, queued, budget_ns
        self.running: dict[str, int] = {}
        self.queue: deque[PlannedRequest] = deque()
        self.model = WaitModel(running)
        self.lengths = LengthModel()
        self.served = 0
        self.offered = 0
        self.released = 0
        self.papers: deque[tuple[int, int, int, int, bool]] = deque()

    def work(self, request: PlannedRequest) -> float:
        facts = RequestFacts(request_id="", prompt_tokens=request.prompt_tokens)
        return self.model.work(request.prompt_tokens, self.lengths.predict(facts, self.name).tokens)


class LaneStand:
    """`lanes` by the name of the traffic class; one alone takes everything."""

    def __init__(self, *lanes: Lane) -> None:
        chosen = preset("a100-llama3-8b")
        self.engine = Engine(chosen.knobs, chosen.cost(), keep_steps=False)
        self.lanes = {lane.name: lane for lane in lanes}
        self.told: list[Told] = []

    def run(self, rate: float, seconds: int, seed: int) -> list[Told]:
        """Poisson arrivals of the mix; returns the predictions whose truth came within the run."""
        engine = self.engine
        for request in self._requests(rate, seconds, seed):
            at = request.at_ns or 0
            while engine.now < at * PS_PER_NS and engine.plan(skip=True, until=at * PS_PER_NS) is not None:
                engine.commit()
                self._ended()
            self._arrive(request, at)
        return self.told

    @staticmethod
    def _requests(rate: float, seconds: int, seed: int) -> Iterator[PlannedRequest]:
        workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=rate), mix=parse_mix(MIX))
        for request in plan(workload, generators(seed)):
            if (request.at_ns or 0) > seconds * S:
                return
            yield request

    def _arrive(self, request: PlannedRequest, at: int) -> None:
        lane = self.lanes.get(request.name) or next(iter(self.lanes.values()))
        lane.offered += 1
        if len(lane.running) < lane.limit:
            self._start(lane, request, at)
            return
        ahead = len(lane.queue)
        predicted = lane.model.predict(sum(map(lane.work, lane.queue)), ahead, at)
        refused = ahead >= lane.queued or (predicted is not None and predicted.expected_ns > lane.budget_ns)
        if predicted is not None:
            lane.papers.append((lane.released + ahead + 1, at, ahead, predicted.expected_ns, refused))
            if refused:
                lane.model.foretell(predicted, ahead, at)
        if not refused:
            lane.queue.append(request)

    def _start(self, lane: Lane, request: PlannedRequest, now: int) -> None:
        label = str(request.number)
        lane.running[label] = now
        lane.model.started(label, lane.work(request), now)
        arrival = max(now * PS_PER_NS, self.engine.now)
        self.engine.submit(
            SimRequest(label, request.prompt_tokens, request.output_tokens, arrival, tag=(lane, request))
        )

    def _ended(self) -> None:
        for ended in self.engine.ended:
            lane, request = ended.tag
            now = ended.ended_at // PS_PER_NS
            since = lane.running.pop(ended.label)
            lane.served += 1
            lane.released += 1
            lane.model.freed(ended.label, now)
            lane.model.price.observe(request.prompt_tokens, request.output_tokens, now - since)
            lane.lengths.observe(lane.name, "", request.prompt_tokens, None, request.output_tokens)
            while lane.papers and lane.papers[0][0] <= lane.released:
                _, at, ahead, predicted_ns, refused = lane.papers.popleft()
                self.told.append(Told(lane.name, at, ahead, predicted_ns, now - at, refused))
            if lane.queue:
                self._start(lane, lane.queue.popleft(), now)
        self.engine.ended.clear()
