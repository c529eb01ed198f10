"""An adaptive running limit against fixed ones, on the simulated engine in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.adaptive_limit import AdaptiveLimit, AdaptiveLimitPolicy
from tailrace.govern.work_price import machine_work
from tailrace.model.thresholds import MS, S
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.engine import Engine
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import PlannedRequest, Workload, generators, plan

CHAT = ("chat=300~0.6/200~0.5:1", 40.0, 100)
LONG = ("long=3000~0.4/200~0.5:1", 6.0, 100)
"""A mix, its arrivals a second, and for how many seconds: both more than the engine can serve."""
TTFT_NS = 3 * S
TPOT_NS = 50 * MS
QUEUE_NS = 2 * S


class Queue:
    """One lane with a queue budget of 2 s before the engine; counts answers that kept both objectives."""

    def __init__(self, limit: int | AdaptiveLimit) -> None:
        chosen = preset("a100-llama3-8b")
        self.engine = Engine(chosen.knobs, chosen.cost(), keep_steps=False)
        self.fixed = limit if isinstance(limit, int) else 0
        self.adaptive = limit if isinstance(limit, AdaptiveLimit) else None
        self.waiting: deque[tuple[int, PlannedRequest]] = deque()
        self.running = 0
        self.running_work = self.waiting_work = 0.0
        self.good = 0
        self.limits: list[int] = []

    def limit(self, now: int) -> int:
        return self.fixed if self.adaptive is None else self.adaptive.limit(now)

    def look(self, now: int) -> None:
        if self.adaptive is not None:
            self.adaptive.look(self.running, len(self.waiting), self.running_work, self.waiting_work, now)

    def run(self, *phases: tuple[str, float, int]) -> float:
        """Good answers a second."""
        engine = self.engine
        for at, request in arrivals(phases):
            while engine.now < at * PS_PER_NS and engine.plan(skip=True, until=at * PS_PER_NS) is not None:
                engine.commit()
                for ended in engine.ended:
                    self.ended(ended)
                engine.ended.clear()
            self.waiting.append((at, request))
            self.waiting_work += work(request)
            self.look(at)
            self.admit(at)
            if len(self.limits) < at // S:
                self.limits.append(self.limit(at))
        return self.good / sum(seconds for _, _, seconds in phases)

    def ended(self, ended: SimRequest) -> None:
        arrival, since, request = ended.tag
        now = ended.ended_at // PS_PER_NS
        first = (ended.first_at or 0) // PS_PER_NS
        tpot = (now - first) // (ended.output - 1) if ended.output > 1 else None
        self.good += first - arrival <= TTFT_NS and (tpot is None or tpot <= TPOT_NS)
        if self.adaptive is not None:
            self.adaptive.observe(tpot, since, now)
        self.look(now)
        self.running -= 1
        self.running_work -= work(request)
        self.admit(now)

    def admit(self, now: int) -> None:
        while self.waiting and now - self.waiting[0][0] > QUEUE_NS:
            self.waiting_work -= work(self.waiting.popleft()[1])
        while self.waiting and self.running < self.limit(now):
            at, request = self.waiting.popleft()
            self.waiting_work -= work(request)
            self.running_work += work(request)
            self.running += 1
            arrival = max(now * PS_PER_NS, self.engine.now)
            self.engine.submit(
                SimRequest("r", request.prompt_tokens, request.output_tokens, arrival, tag=(at, now, request))
            )


def work(request: PlannedRequest) -> float:
    return machine_work(request.prompt_tokens, request.output_tokens)


def arrivals(phases: tuple[tuple[str, float, int], ...]) -> Iterator[tuple[int, PlannedRequest]]:
    begin = 0
    for number, (mix, rate, seconds) in enumerate(phases):
        workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=rate), mix=parse_mix(mix))
        for request in plan(workload, generators(1, number)):
            if (request.at_ns or 0) > seconds * S:
                break
            yield begin + (request.at_ns or 0), request
        begin += seconds * S


def adaptive(**more) -> AdaptiveLimit:
    return AdaptiveLimit(AdaptiveLimitPolicy(minimum=4, maximum=256, tpot_ns=TPOT_NS, **more))


FIXED = (16, 24, 32, 64, 96, 128, 192, 256)


def test_where_the_mix_changes_it_serves_more_within_the_objectives_than_any_fixed_limit():
    phases = (CHAT, LONG, CHAT)
    best = max(Queue(limit).run(*phases) for limit in FIXED)
    assert Queue(adaptive()).run(*phases) > 1.05 * best


@pytest.mark.parametrize(("phase", "share"), [(CHAT, 0.95), (LONG, 0.9)], ids=["chat", "long"])
def test_where_the_mix_stays_it_is_close_to_the_best_fixed_limit(phase, share):
    phases = (phase, phase, phase)
    best = max(Queue(limit).run(*phases) for limit in FIXED)
    assert Queue(adaptive(start=32)).run(*phases) > share * best


def test_it_rises_for_short_work_falls_for_long_and_does_not_oscillate():
    queue = Queue(adaptive(start=32))
    queue.run(CHAT, LONG, CHAT)
    short, long = queue.limits[60:100], queue.limits[160:200]
    assert min(short) > 3 * max(long)
    assert max(short) <= 1.3 * min(short)
    assert max(long) <= 1.5 * min(long)
    assert max(queue.limits[270:]) <= 1.3 * min(queue.limits[270:])


def drive(limit: AdaptiveLimit, seconds: int, tpot: Callable[[int], int], queued: int = 100, now: int = 0) -> list[int]:
    """A lane that is always full; each request takes 2 s, and 30 end a second, whatever the limit is."""
    out = []
    for tick in range(seconds * 10):
        at = now + tick * 100 * MS
        current = limit.limit(at)
        limit.look(current, queued, 100.0 * current, 100.0 * queued, at)
        for _ in range(3):
            limit.observe(tpot(current), at - 2 * S, at)
        out.append(current)
    return out


@settings(max_examples=25, deadline=None)
@given(fixed=st.integers(1, 20), slope=st.integers(50, 3000), start=st.integers(1, 256))
def test_it_settles_below_the_objective_of_any_engine_and_stays(fixed, slope, start):
    """Time per token = fixed + slope x batch: the form of a decode step."""
    limit = adaptive(start=start)

    def tpot(batch: int) -> int:
        return fixed * MS + slope * 1000 * batch

    settled = drive(limit, 240, tpot)[-600:]
    assert max(settled) <= 1.35 * min(settled) + 1
    highest = min(256, (TPOT_NS - fixed * MS) // (slope * 1000))
    if highest >= 8:
        assert tpot(min(settled)) <= TPOT_NS
        # No more than about a quarter is left unused, but for the bound.
        assert max(settled) >= 0.7 * highest or highest <= 16


def test_it_keeps_its_bounds_whatever_it_hears():
    limit = adaptive()
    assert all(4 <= one <= 256 for one in drive(limit, 60, lambda _: 500 * MS))
    assert limit.limit(61 * S) == 4
    assert limit.why == "objective"
    assert all(4 <= one <= 256 for one in drive(limit, 120, lambda _: MS, now=61 * S))
    assert limit.limit(182 * S) == 256


def test_without_a_queue_it_comes_down_to_what_is_used_and_no_lower():
    limit = adaptive()
    for second in range(400):
        limit.look(20, 0, 2000.0, 0.0, second * S)
        limit.observe(10 * MS, second * S - S, second * S)
        limit.limit(second * S)
    assert 24 <= limit.limit(400 * S) <= 28
    assert limit.why == "unused"


def test_without_a_single_measurement_it_never_rises():
    limit = adaptive(start=8)
    for second in range(100):
        limit.look(8, 50, 800.0, 5000.0, second * S)
        assert limit.limit(second * S) <= 8
