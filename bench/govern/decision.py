"""What a decision of admission costs, by how many wait: CPU time of every event, in every order.

At each length of the queue the state is kept there: what leaves is replaced. A decision is one event together with
whatever it makes others do: an arrival that waits, an end of a running request that admits the next one, a client that
leaves, a sweep in which some expire. What is learnt from a finished request is learnt with its record, after the
decision: its cost stands beside it and is not a part of it.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

from tailrace.gateway.callers import Callers
from tailrace.gateway.config import config_from
from tailrace.gateway.lane_facts import lane_facts
from tailrace.gateway.work import Work
from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.lane import LaneMatch, LanePolicy, Order, RequestFacts
from tailrace.govern.sharing import Between, Sharing
from tailrace.measure.ledger import RequestLedger
from tailrace.model.thresholds import Budgets, S

BUDGET_US = 20.0
REQUEST_US = 100.0
LENGTHS = (0, 1_000, 10_000)
EVENTS = 4_000
RUNNING = 64
TOTAL = 256
"""Over all lanes, where there are several: sixteen each. In lanes of at most eight the remaining time of every running
request is looked at, which costs a microsecond for each."""
LATE = Budgets(queue_ns=3600 * S)


class Scene:
    """An admission whose queue is kept at one length."""

    def __init__(self, policies: list[LanePolicy], queued: int, tenants: int, sharing: Sharing | None = None) -> None:
        self.random = random.Random(5)
        self.lanes = len(policies)
        self.tenants = tenants
        self.admission = Admission(policies, sharing=sharing)
        self.ids = count()
        self.now = 0
        self.running: list[str] = []
        self.waiting: dict[str, None] = {}
        places = RUNNING if sharing is None else TOTAL
        while len(self.waiting) < queued or len(self.running) < places:
            self.arrive(self.facts())

    def facts(self) -> RequestFacts:
        number = next(self.ids)
        return RequestFacts(
            request_id=f"r{number}",
            prompt_tokens=int(self.random.lognormvariate(6, 1.5)),
            max_tokens=self.random.choice((None, 64, 512, 2048)),
            tenant=f"t{number % self.tenants}" if self.tenants > 1 else "",
            path=f"/{number % self.lanes}",
            model="m",
        )

    def arrive(self, facts: RequestFacts) -> None:
        self.now += 1_000_000
        decision = self.admission.arrive(facts, self.now)
        if decision.kind is DecisionKind.ADMIT:
            self.running.append(facts.request_id)
        elif decision.kind is DecisionKind.WAIT:
            self.waiting[facts.request_id] = None

    def finish(self, request_id: str) -> None:
        self.now += 1_000_000
        for admitted in self.admission.finish(request_id, self.now):
            del self.waiting[admitted]
            self.running.append(admitted)

    def learn(self, request_id: str) -> None:
        self.admission.learn(request_id, prompt_tokens=400, output_tokens=self.random.randrange(1, 400))

    def leave(self, request_id: str) -> None:
        self.admission.leave(request_id)

    def sweep(self, _: str) -> None:
        self.now += 1_000_000
        for late in self.admission.expire(self.now):
            self.waiting.pop(late, None)


def _timed(act: Callable[[], None]) -> float:
    begun = time.process_time_ns()
    act()
    return (time.process_time_ns() - begun) / 1e3


def measure(scene: Scene, queued: int) -> dict[str, float]:
    """Event -> mean CPU (us) over a batch, least of five batches, because others share the machine."""
    out: dict[str, list[float]] = {"arrive": [], "finish": [], "leave": [], "sweep": [], "learn": []}
    batch = EVENTS // 5
    for _ in range(5):
        coming = [scene.facts() for _ in range(batch)]
        at_work = 0.0
        arrive = finish = learn = 0.0
        # In small steps, so that the length stays what it is said to be.
        for start in range(0, batch, 32):
            some = coming[start : start + 32]
            arrive += _timed(lambda some=some: [scene.arrive(facts) for facts in some])  # type: ignore[misc]
            ended = [scene.running.pop(scene.random.randrange(len(scene.running))) for _ in some]
            finish += _timed(lambda ended=ended: [scene.finish(one) for one in ended])  # type: ignore[misc]
            learn += _timed(lambda ended=ended: [scene.learn(one) for one in ended])  # type: ignore[misc]
            at_work += len(some)
        out["arrive"].append(arrive / at_work)
        out["finish"].append(finish / at_work)
        out["learn"].append(learn / at_work)
        out["sweep"].append(_timed(lambda: [scene.sweep("") for _ in range(200)]) / 200)  # type: ignore[misc]
        if queued:
            gone = scene.random.sample(list(scene.waiting), min(200, len(scene.waiting)))
            out["leave"].append(_timed(lambda gone=gone: [scene.leave(one) for one in gone]) / len(gone))  # type: ignore[misc]
            for one in gone:
                del scene.waiting[one]
            for _ in gone:
                scene.arrive(scene.facts())
    return {event: min(values) for event, values in out.items() if values}


def _single(order: Order) -> list[LanePolicy]:
    return [LanePolicy(running=RUNNING, queued=1 << 20, order=order, budgets=LATE)]


def _many(count_of: int) -> list[LanePolicy]:
    return [
        LanePolicy(
            name=f"l{number}",
            match=LaneMatch(path=f"/{number}"),
            running=RUNNING,
            queued=1 << 20,
            order=list(Order)[number % 3],
            priority=number % 5,
            weight=1.0 + number % 4,
            budgets=LATE,
        )
        for number in range(count_of)
    ]


def scenes(queued: int) -> Iterator[tuple[str, Scene]]:
    """(name, scene) of each shape."""
    for order in Order:
        yield order.value, Scene(_single(order), queued, 1)
    yield "shortest_first, 1000 tenants", Scene(_single(Order.SHORTEST_FIRST), queued, 1000)
    for between in Between:
        sharing = Sharing(running=TOTAL, running_tokens=1 << 20, between=between)
        yield f"16 lanes {between.value}, 100 tenants", Scene(_many(16), queued, 100, sharing)


def request_us() -> float:
    """CPU of all that the gateway asks of classification and admission for one request (us): its key found and its
    facts gathered, eight lanes looked at, admitted, out of prefill, finished, learnt from."""
    lanes = [
        {"name": f"l{number}", "match": {"header": {"x-team": f"t{number}"}, "model": f"m{number}-*"}}
        for number in range(7)
    ]
    keys = {f"k{number}": {"value": f"sk-{number:032}", "lanes": ["l3"]} for number in range(100)}
    raw = {"backends": [{"url": "http://127.0.0.1:1"}], "lanes": [*lanes, {"name": "default"}], "keys": keys}
    config = config_from(raw)
    callers = Callers(config)
    admission = Admission(config.lane_policies(), sharing=config.governor())
    work = Work(model="m", stream=True, prompt_tokens=400, max_tokens=200)
    named = {b"authorization": b"Bearer sk-%032d" % 50, b"x-team": b"none", b"x-lane": b"l9"}
    ids = [f"r{number}" for number in range(2_000)]

    def some() -> None:
        for now, request_id in enumerate(ids, 1):
            ledger = RequestLedger(request_id=request_id, start_unix_ns=0, received=now)
            facts = lane_facts(ledger, work, named, stream=True, deadline_at=None, callers=callers)
            admission.arrive(facts, now)
            admission.first_token(request_id, now)
            admission.finish(request_id, now)
            admission.learn(request_id, prompt_tokens=400, output_tokens=100)

    return min(_timed(some) for _ in range(5)) / len(ids)


def main() -> int:
    """Print a row for each shape, event and length."""
    worst = 0.0
    gc.disable()
    whole = request_us()
    row = {"name": "classification and admission of one request", "value": round(whole, 2), "unit": "us CPU"}
    print(json.dumps({**row, "budget": REQUEST_US}), flush=True)
    for queued in LENGTHS:
        for name, scene in scenes(queued):
            for event, us in measure(scene, queued).items():
                row = {"name": f"{event}, {name}, {queued:,} queued", "value": round(us, 2), "unit": "us CPU"}
                if event != "learn":
                    row["budget"] = BUDGET_US
                    worst = max(worst, us)
                print(json.dumps(row), flush=True)
            gc.collect()
    return int(worst > BUDGET_US or whole > REQUEST_US)


if __name__ == "__main__":
    sys.exit(main())
