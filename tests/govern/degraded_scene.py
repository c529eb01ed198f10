"""An overloaded simulated engine behind the governor's own code, with and without the ladder, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.ladder import Ladder, LadderPolicy
from tailrace.govern.ladder_signals import LadderSignals
from tailrace.govern.lane import LaneMatch, LanePolicy, RequestFacts
from tailrace.govern.restraint import Restraint
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Budgets, Objectives, S
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.engine import Engine
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest, State

LOOK_NS = 500 * MS
OBJECTIVE_NS = 500 * MS
CHAT = Objectives(bounds={"ttft": {0.99: OBJECTIVE_NS}})


@dataclass
class Asked:
    """One request of the scene."""

    number: int
    at: int
    lane: str
    prompt: int
    output: int
    admitted: int | None = None
    first: int | None = None
    end: int | None = None
    fate: str = ""
    capped: bool = False
    rungs: tuple[str, ...] = ()


@dataclass
class Scene:
    """What came of it."""

    requests: list[Asked]
    ladder: Ladder | None
    steps: list[tuple[int, int]] = field(default_factory=list)
    """(when, how many rungs from then on)"""

    def ttft(self, lane: str, since: int, until: int) -> list[int]:
        """Times to the first token of those that came in a span and were served."""
        return [r.first - r.at for r in self.requests if r.lane == lane and since <= r.at < until and r.first]


def load(seed: int, spans: Sequence[tuple[int, float]], *, background: float = 0.3) -> list[Asked]:
    """Poisson arrivals: (length ns, requests a second) one after the other; a share of them is background work."""
    rng = np.random.default_rng(seed)
    out: list[Asked] = []
    start = 0
    for length, rate in spans:
        at = float(start)
        while True:
            at += rng.exponential(S / rate)
            if at >= start + length:
                break
            low = rng.random() < background
            prompt = int(rng.lognormal(6.0, 0.5))
            output = max(1, int(rng.lognormal(6.6 if low else 5.4, 0.4)))
            out.append(Asked(len(out), int(at), "background" if low else "chat", prompt, output))
        start += length
    return out


def lanes(running: int) -> list[LanePolicy]:
    return [
        LanePolicy(
            name="background",
            match=LaneMatch(tenant="background"),
            running=running,
            queued=10_000,
            priority=10,
            budgets=Budgets(queue_ns=60 * S),
            objectives=Objectives(bounds={}),
        ),
        LanePolicy(name="chat", running=running, queued=10_000, budgets=Budgets(queue_ns=20 * S), objectives=CHAT),
    ]


def play(requests: list[Asked], policy: LadderPolicy | None, *, running: int = 128) -> Scene:
    """Run all requests to their ends. The ladder looks every half second, as the gateway's does."""
    ready = preset("a100-llama3-8b")
    engine = Engine(ready.knobs, ready.cost(), keep_steps=False)
    policies = lanes(running)
    admission = Admission(policies, total_running=running)
    ladder = None if policy is None else Ladder(policy)
    scene = Scene(requests, ladder)
    signals = LadderSignals({lane.name: lane.objectives for lane in policies if lane.priority <= 0})
    by_id = {str(r.number): r for r in requests}
    inside: dict[str, SimRequest] = {}
    arrivals = [(r.at, r.number) for r in requests]
    heapq.heapify(arrivals)
    now, next_look = 0, 0
    unseen: dict[str, SimRequest] = {}

    def begin(ids: Sequence[str]) -> None:
        for name in ids:
            asked = by_id[name]
            asked.admitted = now
            output = asked.output
            effects = None if ladder is None else ladder.effects
            if effects is not None:
                cap = effects.cap_tokens
                asked.capped = cap is not None and output > cap
                output = output if cap is None else min(output, cap)
                asked.rungs = tuple(effects.rungs)
            tail = signals.lane(asked.lane)
            if tail is not None:
                tail.waited(now - asked.at, now)
            request = SimRequest(name, asked.prompt, output, engine.now, tag=asked.lane)
            inside[name] = unseen[name] = request
            engine.submit(request)

    def look() -> None:
        if ladder is None:
            return
        ages: dict[str, list[int]] = {}
        queued: dict[str, list[int]] = {}
        for name, request in inside.items():
            if request.first_at is None:
                ages.setdefault(str(request.tag), []).append(now - by_id[name].at)
        for name in waiting:
            asked = by_id[name]
            ages.setdefault(asked.lane, []).append(now - asked.at)
            queued.setdefault(asked.lane, []).append(now - asked.at)
        read = signals.read(
            now,
            without_token=ages,
            waiting=queued,
            engines=[EngineState(at_ns=now, running=engine.running, waiting=engine.waiting, kv_usage=engine.kv_usage)],
        )
        if ladder.look(read, now):
            signals.stepped(now)
            scene.steps.append((now, ladder.step))
            factor = ladder.effects.limit_factor
            admitted = admission.throttle({lane.name: factor for lane in policies}, now)
            admission.restraint = Restraint(ladder.effects, now + ladder.back_in_ns(now))
            admitted += admission.settle(now)
            waiting.difference_update(admitted)
            begin(admitted)

    waiting: set[str] = set()
    while arrivals or inside or waiting:
        if now >= next_look:
            look()
            next_look = now + LOOK_NS
        while arrivals and arrivals[0][0] <= now:
            asked = requests[heapq.heappop(arrivals)[1]]
            name = str(asked.number)
            decision = admission.arrive(
                RequestFacts(request_id=name, prompt_tokens=asked.prompt, tenant=asked.lane), now
            )
            if asked.lane == "chat":
                signals.answered(now, refused=decision.reason is Reason.DEGRADED)
            if decision.kind is DecisionKind.REFUSE:
                asked.fate = str(decision.reason)
            elif decision.kind is DecisionKind.WAIT:
                waiting.add(name)
            else:
                begin([name])
        for name in admission.expire(now):
            waiting.discard(name)
            by_id[name].fate = "queue_timeout"
        if engine.plan() is not None:
            engine.commit()
            now = engine.now // PS_PER_NS
        else:  # nothing to compute: on to whatever comes next
            now = min([next_look, *(a for a, _ in arrivals[:1])])
            engine.now = max(engine.now, now * PS_PER_NS)
        for name, request in list(unseen.items()):
            if request.first_at is not None:
                asked = by_id[name]
                asked.first = request.first_at // PS_PER_NS
                tail = signals.lane(asked.lane)
                if tail is not None:
                    tail.first_token(asked.first - asked.at, now)
                del unseen[name]
        for request in engine.ended:
            asked = by_id[request.label]
            asked.end = now
            asked.fate = "served" if request.state is State.FINISHED else "failed"
            inside.pop(request.label, None)
            unseen.pop(request.label, None)
            admitted = admission.finish(request.label, now)
            waiting.difference_update(admitted)
            begin(admitted)
        engine.ended.clear()
    return scene
