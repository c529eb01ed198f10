"""One replica: the API server, a batcher and a worn core, and what a scrape of its metrics says."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from heapq import heapreplace

import numpy as np

from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import MS, S
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.incidents.blocks import Loop, TwoLoops
from tailrace.simulate.incidents.flow import Flow
from tailrace.simulate.incidents.site import Service, Site
from tailrace.simulate.incidents.steps import StepEnds
from tailrace.simulate.incidents.worn_engine import WornEngine
from tailrace.simulate.request import SimRequest

NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "preemptions_total": "vllm:num_preemptions_total",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
    "prefix_hit_tokens_total": "vllm:prefix_cache_hits_total",
    "prefix_query_tokens_total": "vllm:prefix_cache_queries_total",
    "queue_seconds_total": "vllm:request_queue_time_seconds_sum",
}
GRAMMAR_WORKERS = 2


class Desk:
    """So many workers that take work in the order in which it comes."""

    __slots__ = ("_free",)

    def __init__(self, workers: int) -> None:
        self._free = [0] * workers

    def done(self, at: int, length: int) -> int:
        """When work that comes at `at` and takes `length` is done."""
        end = max(at, self._free[0]) + length
        heapreplace(self._free, end)
        return end


class ServiceDesk:
    """The user's service before the engine: a pool of workers, one lock, one encoder, and a pool for the answers."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._before = Desk(service.workers)
        self._after = Desk(service.workers)
        self._lock = Loop()
        self._encoder = Loop()

    def before(self, at: int, factor: float) -> tuple[int, int]:
        """(when the stages before the prefill are done, the part of it that is the encoder's)."""
        service = self.service
        work = round(service.before_ms * factor * MS)
        done = self._before.done(at, work)
        if service.lock_ms:
            done = self._lock.block(done, round(service.lock_ms * MS * factor))
        if not service.encode_ms:
            return done, 0
        end = self._encoder.block(done, round(service.encode_ms * MS * factor))
        return end, end - done

    def after(self, at: int, factor: float) -> int:
        """When the work after the last token is done."""
        return self._after.done(at, round(self.service.after_ms * factor * MS))


class Replica:
    """One engine with its API server."""

    def __init__(self, name: str, site: Site, rng: np.random.Generator, *, window_s: float, horizon_s: float) -> None:
        self.name = name
        self.core = WornEngine(site, rng, window_s=window_s, horizon_s=horizon_s)
        self.engine = self.core.engine
        self.engine.started = []
        in_front = site.wear.pause_in == "front"
        self.loop = TwoLoops([(a // PS_PER_NS, b // PS_PER_NS) for a, b in self.core.pauses] if in_front else [])
        self.service = None if site.service is None else ServiceDesk(site.service)
        self.grammars = Desk(GRAMMAR_WORKERS)
        self.steps = StepEnds()
        self.idle = True
        self.work: dict[SimRequest, Flow] = {}
        self.outstanding = 0
        """Prompt tokens of the requests that were sent to it, and a guess of their outputs."""
        self.flows = 0
        self.line: deque[Flow] = deque()
        """Who waits for a connection to it."""
        self.fresh: list[Flow] = []
        """Submitted since the last step boundary."""
        self.batch: list[Flow] = []
        """Held by the batcher."""
        self.states: list[EngineState] = []
        self._stamps: list[int] = []

    def submit(self, flow: Flow, requests: list[SimRequest]) -> None:
        """The core gets a request now."""
        busy = self.engine.running or self.engine.waiting or self.core.end is not None
        if busy:
            self.fresh.append(flow)
        elif flow.queued_ts is None:
            flow.queued_ts = requests[0].arrival // PS_PER_NS
        for request in requests:
            self.work[request] = flow
            self.engine.submit(request)
        self.idle = False

    def boundary(self) -> None:
        """A step has ended: what came in meanwhile is in the queue now."""
        now = self.engine.now // PS_PER_NS
        for flow in self.fresh:
            if flow.queued_ts is None:
                flow.queued_ts = now
        self.fresh.clear()

    def scrape(self, now: int) -> EngineState:
        """What its metrics say; kept for the requests that come."""
        engine = self.engine
        counters = engine.counters
        state = EngineState(
            at_ns=now,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=round(engine.kv_usage, 6),
            preemptions_total=float(counters.preemptions),
            prompt_tokens_total=float(counters.prompt_tokens),
            generation_tokens_total=float(counters.generation_tokens),
            prefix_hit_tokens_total=float(counters.prefix_hit_tokens),
            prefix_query_tokens_total=float(counters.prefix_query_tokens),
            queue_seconds_total=counters.queue_ps / (S * PS_PER_NS),
            names=NAMES,
        )
        self.states.append(state)
        self._stamps.append(now)
        return state

    def state_at(self, at: int, fresh_ns: int) -> EngineState | None:
        """The last scrape before `at`, if it is fresh enough."""
        i = bisect_right(self._stamps, at) - 1
        return self.states[i] if i >= 0 and at - self._stamps[i] <= fresh_ns else None
