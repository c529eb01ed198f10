"""One simulated engine behind a simulated gateway, with the requests that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.engine_state import EngineState
from tailrace.simulate.cost import PS_PER_NS, StepCost
from tailrace.simulate.engine import Engine
from tailrace.simulate.knobs import EngineKnobs

if TYPE_CHECKING:
    from tailrace.simulate.request import SimRequest
    from tailrace.simulate.tries import Try


class EngineSeat:
    """An engine, the step that it has planned, and what is outstanding at it."""

    def __init__(self, name: str, knobs: EngineKnobs, cost: StepCost) -> None:
        self.name = name
        self.engine = Engine(knobs, cost)
        self.engine.started = []
        self.end: int | None = None
        """When the planned step ends (ps); `None` while nothing is planned."""
        self.idle = True
        self.work: dict[SimRequest, Try] = {}
        self.tokens = 0
        """Prompt tokens of the requests that it has, and an output's worth where they allow one."""

    def send(self, request: SimRequest, attempt: Try) -> None:
        """The gateway sends a request now."""
        self.work[request] = attempt
        self.tokens += _weight(request)
        self.engine.submit(request)
        self.idle = False

    def gone(self, request: SimRequest) -> Try | None:
        """The gateway is done with a request; the engine may notice later."""
        attempt = self.work.pop(request, None)
        if attempt is not None:
            self.tokens -= _weight(request)
        return attempt

    def state(self, now_ns: int) -> EngineState:
        """What a scrape of its metrics would say."""
        engine = self.engine
        counters = engine.counters
        return EngineState(
            at_ns=now_ns,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_usage,
            preemptions_total=float(counters.preemptions),
            prompt_tokens_total=float(counters.prompt_tokens),
            generation_tokens_total=float(counters.generation_tokens),
            prefix_hit_tokens_total=float(counters.prefix_hit_tokens),
            prefix_query_tokens_total=float(counters.prefix_query_tokens),
            queue_seconds_total=counters.queue_ps / (1e9 * PS_PER_NS),
        )


def _weight(request: SimRequest) -> int:
    return request.prompt + (request.max_tokens or 0)
