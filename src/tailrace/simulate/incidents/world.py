"""A site at work in virtual time: calls in, finished flows out, with what was scraped and sampled meanwhile.

Every part acts on what has happened, never on what will: arrivals, steps of the engines, and the ends of waits are
events of one clock. An engine skips over equal steps only up to the next event outside of it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from tailrace.engines.errors import ending_of_error
from tailrace.govern.admission import Admission, DecisionKind
from tailrace.govern.lane import RequestFacts
from tailrace.measure.dialect import EngineFault
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import MS, S
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.incidents.answer import Answers
from tailrace.simulate.incidents.blocks import TwoLoops
from tailrace.simulate.incidents.flow import Draw, Ending, Flow, Phase
from tailrace.simulate.incidents.replica import Replica
from tailrace.simulate.incidents.site import Site
from tailrace.simulate.incidents.traffic import PREFIX_TOKENS, Call, Traffic, calls
from tailrace.simulate.request import SimRequest, State

_Handler = Callable[[Flow], None]
_SWEEP_NS: Final = 50 * MS
_STALE: Final = 5
"""A scrape older than so many intervals says nothing of now."""
BODY_BYTES_A_TOKEN: Final = 4.2
BODY_BYTES: Final = 700


class Sample(NamedTuple):
    """What the machine of the first replica had done by `at_ns`, all counters."""

    at_ns: int
    busy_ps: int
    steps: int
    worn: bool


class Seen(NamedTuple):
    """A window of a site."""

    flows: list[Flow]
    """In the order in which they were received."""
    replicas: list[Replica]
    samples: list[Sample]
    loop: TwoLoops
    """The gateway's own event loop."""

    @property
    def states(self) -> list[EngineState]:
        """Scrapes of the first engine."""
        return self.replicas[0].states


class World:
    """One run. `rng` decides everything that is left to chance; a changed site meets the same calls and draws."""

    def __init__(self, site: Site, traffic: Traffic, rng: np.random.Generator, *, sample_s: float = 1.0) -> None:
        traffic_rng, draws_rng, wear_rng, loop_rng, ids_rng = rng.spawn(5)
        self.site = site
        self.traffic = traffic
        self._calls = calls(traffic, traffic_rng)
        self._draws = _draws(len(self._calls), draws_rng)
        self._ids = [
            f"{high:08x}{low:08x}" for high, low in ids_rng.integers(0, 1 << 32, (len(self._calls), 2)).tolist()
        ]
        window_s = (self._calls[-1].at / S) if self._calls else 0.0
        horizon_s = 3 * window_s + 120
        self.replicas = [
            Replica(f"gpu-{i}", site, one, window_s=window_s, horizon_s=horizon_s)
            for i, one in enumerate(wear_rng.spawn(site.replicas))
        ]
        self._only = self.replicas[0] if site.replicas == 1 else None
        gateway = site.gateway
        planned = _planned_blocks(gateway.block_every_s, gateway.block_ms, horizon_s, loop_rng)
        self.loop = TwoLoops(planned)
        self.admission = Admission(list(gateway.lanes))
        self._answers = Answers(site, self.loop)
        self._events: list[tuple[int, int, _Handler, Flow | None]] = []
        self._tickets = 0
        self._now = 0
        self._waiting = 0
        self._sweeping = False
        self._coming = len(self._calls)
        self._live: dict[str, Flow] = {}
        self._turn = 0
        self._fresh_ns = round(_STALE * gateway.scrape_s * S)
        self._sample_ns = round(sample_s * S)
        self._samples: list[Sample] = []
        self._over: list[Flow] = []

    # -- the clock

    def run(self) -> Seen:
        """Everything, to the end of the last request."""
        self._events = [(call.at, i, self._call, self._flow(call, 0, call.at)) for i, call in enumerate(self._calls)]
        heapify(self._events)
        self._tickets = len(self._events)
        self._at(0, self._scrape, None)
        self._at(0, self._sample, None)
        while self._step():
            pass
        self._over.sort(key=lambda flow: (flow.received, flow.ident))
        return Seen(self._over, self.replicas, self._samples, self.loop)

    def _step(self) -> bool:
        outside = self._events[0][0] * PS_PER_NS if self._events else None
        if outside is not None and outside <= self._now:
            _, _, handler, flow = heappop(self._events)
            handler(flow)  # type: ignore[arg-type]  # those that are of no flow take None
            return True
        if self._only is not None:
            return self._step_alone(self._only, outside)
        ends = [one.core.end for one in self.replicas if one.core.end is not None]
        for one in self.replicas:
            if one.core.end is None and not one.idle:
                bounds = ends if outside is None else [*ends, outside]
                end = one.core.plan(min(bounds, default=None))
                if end is None:
                    one.idle = True
                else:
                    ends.append(end)
        if ends and (outside is None or min(ends) <= outside):
            self._now = min(ends)
            for one in self.replicas:
                if one.core.end == self._now:
                    self._commit(one)
                    break
            return True
        if outside is None:
            return False
        self._now = outside
        return True

    def _step_alone(self, one: Replica, outside: int | None) -> bool:
        """The same where there is one engine."""
        core = one.core
        if core.end is None and not one.idle and core.plan(outside) is None:
            one.idle = True
        if core.end is not None and (outside is None or core.end <= outside):
            self._now = core.end
            self._commit(one)
            return True
        if outside is None:
            return False
        self._now = outside
        return True

    @property
    def now(self) -> int:
        """Virtual time (ns)."""
        return self._now // PS_PER_NS

    def _at(self, at: int, handler: Callable[..., None], flow: Flow | None) -> None:
        self._tickets += 1
        heappush(self._events, (at, self._tickets, handler, flow))

    # -- from the client to the gateway

    def _flow(self, call: Call, number: int, at: int) -> Flow:
        ident = self._ids[call.number] + (f"{number:02x}" if number else "")
        return Flow(call, self._draws[call.number], ident, number, at)

    def _call(self, flow: Flow) -> None:
        """The client sends its request."""
        client, call, draw = self.site.client, flow.call, flow.draw
        now = self.now
        if not flow.number:
            self._coming -= 1
        self._live[flow.ident] = flow
        flow.received = now + round(client.latency_ms * MS)
        size = body_bytes(call.prompt)
        up = round(size / client.up_bytes_per_s * S)
        if draw.late < client.late_share:
            up += round(client.late_ms * MS * np.exp(0.5 * _normal(draw.late_by)))
        parse = round(size * self.site.gateway.parse_ns_per_byte) + 40_000
        flow.parsed = self.loop.work(flow.received + up, parse)
        self._at(flow.parsed, self._enter, flow)
        leaves = []
        if client.timeout_s:
            leaves.append(client.timeout_s)
        if draw.leave < client.leave_share:
            leaves.append(-client.leave_s * float(np.log(1 - draw.leave_at)))
        if leaves:
            self._at(now + round(min(leaves) * S), self._left, flow)

    def _enter(self, flow: Flow) -> None:
        if flow.phase is Phase.OVER:
            return
        now = flow.queued = self.now
        call = flow.call
        facts = RequestFacts(
            request_id=flow.ident,
            prompt_tokens=call.prompt,
            sequences=call.n,
            stream=call.stream,
            path="/v1/chat/completions",
        )
        decision = self.admission.arrive(facts, now)
        flow.lane = decision.lane
        flow.predicted_wait_ns = decision.predicted_wait_ns
        if decision.kind is DecisionKind.REFUSE:
            self._give_up(flow, Ending(OutcomeKind.REJECTED, decision.reason, "queue", decision.http_status))
        elif decision.kind is DecisionKind.ADMIT:
            self._dispatch(flow)
        else:
            flow.phase = Phase.LANE
            self._waiting += 1
            if not self._sweeping:
                self._sweeping = True
                self._at(now + _SWEEP_NS, self._sweep, None)

    def _sweep(self, _: None) -> None:
        now = self.now
        for ident in self.admission.expire(now):
            flow = self._live[ident]
            self._waiting -= 1
            self._give_up(flow, Ending(OutcomeKind.TIMED_OUT, Reason.QUEUE_TIMEOUT, "queue", 429))
        self._grant(self.admission.settle(now))
        self._sweeping = self._waiting > 0
        if self._sweeping:
            self._at(now + _SWEEP_NS, self._sweep, None)

    def _grant(self, idents: list[str]) -> None:
        for ident in idents:
            self._waiting -= 1
            self._dispatch(self._live[ident])

    # -- from the gateway to an engine

    def _dispatch(self, flow: Flow) -> None:
        now = self.now
        if flow.admitted is None:
            flow.admitted = now
        i = flow.replica = self._choose(flow)
        replica = self.replicas[i]
        flow.admission = replica.state_at(now, self._fresh_ns)
        pool = self.site.gateway.pool
        if pool and replica.flows >= pool:
            flow.phase = Phase.LINE
            flow.line_since = now
            replica.line.append(flow)
            return
        self._send(flow, replica)

    def _choose(self, flow: Flow) -> int:
        gateway, replicas = self.site.gateway, self.replicas
        if len(replicas) == 1:
            return 0
        if gateway.balance == "least":
            return min(range(len(replicas)), key=lambda i: (replicas[i].outstanding, replicas[i].flows))
        scattered = flow.draw.seed / (1 << 32) < gateway.scattered
        if gateway.balance == "sticky" and flow.call.session >= 0 and not scattered:
            return (flow.call.session * 2_654_435_761 >> 7) % len(replicas)
        if gateway.balance == "weights":
            shares = np.cumsum(gateway.weights)
            at = flow.draw.seed / (1 << 32)
            return min(int(np.searchsorted(shares / shares[-1], at, side="right")), len(replicas) - 1)
        self._turn += 1
        return self._turn % len(replicas)

    def _send(self, flow: Flow, replica: Replica) -> None:
        now = flow.sent = self.now
        flow.phase = Phase.SENT
        if flow.line_since is not None:
            flow.pool_wait = now - flow.line_since
        replica.flows += 1
        replica.outstanding += flow.call.prompt + 200
        engine = replica.engine
        flow.step_at_sent = engine.step + (engine.planned_steps if replica.core.end is not None else 0)
        if not engine.running:
            flow.step_at_sent = 0
        hop = self.site.hop
        arrives = now + round(hop.latency_ms * MS)
        if hop.idle_s:
            self._at(now + round(hop.idle_s * S), self._silent, flow)
        if hop.timeout_s:
            self._at(now + round(hop.timeout_s * S), self._overdue, flow)
        # Each attempt has a chance of its own: the golden ratio spreads those of one call evenly.
        if (flow.draw.fails + 0.618034 * (flow.failed_attempts + 7 * flow.number)) % 1.0 < self.site.fails_share:
            self._at(arrives + 5 * MS, self._engine_error, flow)
            return
        if replica.service is not None:
            done, encode = replica.service.before(
                arrives, float(np.exp(replica.service.service.spread * _normal(flow.draw.before)))
            )
            flow.pre_ns, flow.encode_ns = done - arrives - encode, encode or None
            arrives = done
        self._at(arrives, self._front, flow)

    def _front(self, flow: Flow) -> None:
        """The API server reads the request, tokenises its prompt and hands it to the core."""
        replica, front = self.replicas[flow.replica], self.site.front
        if flow.phase is Phase.OVER and self.site.cancels_reach:
            return
        now = self.now
        tokenise = round(front.token_us * flow.call.prompt * 1000)
        fixed = round(front.fixed_us * 1000)
        blocks, beside = (fixed + tokenise, 0) if front.on_loop else (fixed, tokenise)
        done = replica.loop.work(now, blocks) + beside
        flow.headers = done + round(self.site.hop.latency_ms * MS)
        self._at(done, self._hand, flow)

    def _hand(self, flow: Flow) -> None:
        replica, front = self.replicas[flow.replica], self.site.front
        now = flow.handed = self.now
        if flow.call.grammar and flow.draw.grammar >= front.grammar_cached:
            # It waits in the core's queue while its grammar is compiled.
            flow.queued_ts = now
            spread = float(np.exp(0.5 * _normal(flow.draw.before)))
            self._at(replica.grammars.done(now, round(front.grammar_ms * spread * MS)), self._ready, flow)
            return
        self._ready(flow)

    def _ready(self, flow: Flow) -> None:
        batcher, replica = self.site.batcher, self.replicas[flow.replica]
        if not batcher.window_ms:
            self._submit(flow)
            return
        if flow.queued_ts is None:
            flow.queued_ts = self.now
        replica.batch.append(flow)
        if len(replica.batch) >= batcher.preferred:
            self._release(flow)
        elif len(replica.batch) == 1:
            self._at(self.now + round(batcher.window_ms * MS), self._release, flow)

    def _release(self, flow: Flow) -> None:
        replica = self.replicas[flow.replica]
        if flow not in replica.batch:
            return
        batch, replica.batch = replica.batch, []
        for one in batch:
            self._submit(one)

    def _submit(self, flow: Flow) -> None:
        if flow.phase is Phase.OVER and self.site.cancels_reach:
            return
        call, replica = flow.call, self.replicas[flow.replica]
        # Several answers to one prompt share it: the others hit what the first has computed.
        prefix = call.prefix
        if call.n > 1 and not prefix:
            prefix = tuple((2_000_000 + call.number) * 4096 + j for j in range(call.prompt // PREFIX_TOKENS))
        flow.requests = [
            SimRequest(
                f"{flow.ident}.{i}",
                call.prompt,
                max(2, call.output - 3 * i),
                self._now,
                prefix=prefix,
                prefix_tokens=PREFIX_TOKENS,
            )
            for i in range(call.n)
        ]
        flow.left = call.n
        if flow.phase is not Phase.OVER:
            flow.phase = Phase.CORE
        replica.submit(flow, flow.requests)

    # -- the engines

    def _commit(self, replica: Replica) -> None:
        engine = replica.engine
        replica.core.commit()
        replica.boundary()
        if engine.started:
            for request in engine.started:
                flow = replica.work[request]
                if flow.first_core is None:
                    flow.first_core = engine.now // PS_PER_NS
                    self._grant(self.admission.first_token(flow.ident, self.now))
            engine.started.clear()
        if engine.ended:
            for request in list(engine.ended):
                flow = replica.work.pop(request)
                flow.left -= 1
                if not flow.left:
                    self._answered(flow, replica)
            engine.ended.clear()

    def _answered(self, flow: Flow, replica: Replica) -> None:
        """The engine is done with it: finished, aborted, or too long for it."""
        self._answers.made(flow, replica)
        if flow.phase is Phase.OVER:
            if flow.awaited:
                self._over.append(flow)
            return
        refused = flow.requests[0].state is State.REFUSED
        if refused:
            ending = ending_of_error(EngineFault("the prompt is longer than the maximum context length"), status=400)
            self._give_up(flow, Ending(ending.outcome, ending.reason, ending.stage, ending.http_status))
            return
        flow.phase = Phase.DELIVERY
        self._at(flow.end, self._delivered, flow)

    def _delivered(self, flow: Flow) -> None:
        if flow.phase is Phase.OVER:
            return
        self._close(flow, flow.end)
        self._over.append(flow)

    # -- ends before the end

    def _left(self, flow: Flow) -> None:
        """The client closes its connection."""
        if flow.phase is Phase.OVER:
            return
        stage = "decode" if flow.first_core is not None else "queue" if flow.sent is None else "prefill"
        waited = flow.phase
        self._give_up(
            flow, Ending(OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, stage, 200 if stage == "decode" else 499)
        )
        if waited is Phase.LANE:
            self._waiting -= 1

    def _silent(self, flow: Flow) -> None:
        """The proxy's idle timer."""
        if flow.phase in (Phase.SENT, Phase.CORE) and flow.first_core is None:
            self._give_up(
                flow,
                Ending(
                    OutcomeKind.FAILED,
                    Reason.STREAM_CUT,
                    "prefill",
                    502,
                    "the engine closed the connection before it answered",
                ),
            )

    def _overdue(self, flow: Flow) -> None:
        """The proxy's timer for a whole request."""
        if flow.phase not in (Phase.SENT, Phase.CORE):
            return
        if flow.first_core is not None and flow.call.stream:
            self._give_up(
                flow,
                Ending(OutcomeKind.FAILED, Reason.STREAM_CUT, "decode", 200, "the stream ended without an end marker"),
            )
            return
        said = ending_of_error(EngineFault("upstream request timeout"), status=504)
        self._give_up(flow, Ending(said.outcome, said.reason, said.stage, 504, "upstream request timeout"))

    def _engine_error(self, flow: Flow) -> None:
        if flow.phase is Phase.OVER:
            return
        gateway = self.site.gateway
        said = ending_of_error(EngineFault("Internal Server Error"), status=500)
        if flow.failed_attempts < gateway.retries:
            flow.failed_attempts += 1
            flow.attempts += 1
            self._leave_replica(flow)
            flow.retry_wait = self.now - (flow.admitted or self.now)
            self._dispatch(flow)
            return
        self._give_up(flow, Ending(said.outcome, said.reason, said.stage, 500, "Internal Server Error"))

    def _give_up(self, flow: Flow, ending: Ending) -> None:
        """It ends now, wherever it is."""
        now = self.now
        phase = flow.phase
        flow.ending = ending
        flow.cut_at = now
        if phase is Phase.LANE:
            self.admission.leave(flow.ident)
        if phase is Phase.LINE:
            self.replicas[flow.replica].line.remove(flow)
        self._close(flow, now)
        core = flow.awaited = phase is Phase.CORE and flow.left > 0
        if core and self.site.cancels_reach:
            reaches = self._now + round(self.site.hop.latency_ms * MS) * PS_PER_NS
            for request in flow.requests:
                if request in self.replicas[flow.replica].work:
                    self.replicas[flow.replica].engine.abort(request, reaches)
        if not core:
            if flow.delivered is None:
                flow.end = now
            # Where the engine is never told, it still comes to it; what is made of it nobody sees.
            self._over.append(flow)
        self._resend(flow)

    def _resend(self, flow: Flow) -> None:
        client = self.site.client
        kind = flow.ending.outcome
        timed_out = (
            kind is OutcomeKind.CANCELLED and client.timeout_s and self.now - flow.intended >= client.timeout_s * S
        )
        if flow.number >= client.resend or not (
            timed_out or kind in (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT, OutcomeKind.REJECTED)
        ):
            return
        wait = client.backoff_s * 2**flow.number * (0.75 + 0.25 * flow.draw.before)
        at = self.now + round(wait * S)
        self._at(at, self._call, self._flow(flow.call, flow.number + 1, at))

    def _close(self, flow: Flow, now: int) -> None:
        """The gateway is done with it: its place in the lane and its connection are free."""
        entered = flow.phase > Phase.LANE
        flow.phase = Phase.OVER
        flow.end = now
        del self._live[flow.ident]
        if flow.sent is not None:
            self._leave_replica(flow)
        if entered:
            completed = flow.ending.outcome is OutcomeKind.COMPLETED
            known = flow.call.output if completed else None
            self._grant(
                self.admission.finish(
                    flow.ident,
                    now,
                    completed=completed,
                    prompt_tokens=flow.call.prompt if completed else None,
                    output_tokens=known,
                )
            )

    def _leave_replica(self, flow: Flow) -> None:
        replica = self.replicas[flow.replica]
        replica.flows -= 1
        replica.outstanding -= flow.call.prompt + 200
        flow.line_since = None
        if replica.line and replica.flows < self.site.gateway.pool:
            self._send(replica.line.popleft(), replica)

    # -- what is looked at beside

    def _scrape(self, _: None) -> None:
        for one in self.replicas:
            one.scrape(self.now)
        if self._live or self._coming:
            self._at(self.now + round(self.site.gateway.scrape_s * S), self._scrape, None)

    def _sample(self, _: None) -> None:
        core = self.replicas[0].core
        self._samples.append(Sample(self.now, core.core_busy_ps, core.engine.step, core.worn_at(self._now)))
        if self._live or self._coming:
            self._at(self.now + self._sample_ns, self._sample, None)


def body_bytes(prompt: int) -> int:
    """Size of a request's body."""
    return round(BODY_BYTES + BODY_BYTES_A_TOKEN * prompt)


def _draws(n: int, rng: np.random.Generator) -> list[Draw]:
    numbers = rng.random((n, len(Draw._fields) - 1)).tolist()
    seeds = rng.integers(0, 1 << 32, n).tolist()
    return [Draw._make([*row, seed]) for row, seed in zip(numbers, seeds, strict=True)]


def _planned_blocks(
    every_s: float, length_ms: float, horizon_s: float, rng: np.random.Generator
) -> list[tuple[int, int]]:
    if not every_s or not length_ms:
        return []
    at = np.cumsum(rng.exponential(every_s, int(horizon_s / every_s * 1.5) + 8))
    at = at[at < horizon_s]
    length = length_ms * rng.lognormal(0.0, 0.35, at.size)
    return [(round(a * S), round(b * MS)) for a, b in zip(at.tolist(), length.tolist(), strict=True)]


def _normal(uniform: float) -> float:
    """A standard normal number from a uniform one (Acklam's rational approximation in its centre is enough here)."""
    # Inverse of the logistic approximation of the normal distribution: within 0.02 up to three deviations.
    p = min(max(uniform, 1e-6), 1 - 1e-6)
    return float(np.log(p / (1 - p)) / 1.702)
