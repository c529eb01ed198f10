"""A gateway and its engines in virtual time: the gateway's own governor decides, simulated engines do the work.

::

    calls -> classify, admit | queue | refuse -> engine -> first token -> end
      ^                        |                   |
      +--- tries again (Retry-After, backoff) -----+--- a budget is over, the client leaves

The governor is `govern.admission.Admission`, the code that the gateway runs; only the clock and the engines are
models. Budgets are enforced as the gateway does it: by a sweep, up to one period late. With `governed=False` every
request goes to an engine as it comes and no budget but the client's own holds, which is what happens without a gateway.

Several engines share the clock exactly. An engine skips over a run of equal decode steps only up to the first boundary
after the next thing that may happen outside of it, another engine's step included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np

from tailrace.govern.admission import Admission, Decision, DecisionKind
from tailrace.govern.lane import LanePolicy, RequestFacts, classify
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S, SlowThresholds
from tailrace.simulate.clients import Call, ClientPolicy, backoff_ns
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.free_slots import FreeSlots, RefusedTry
from tailrace.simulate.records import Keep, RecordBuilder
from tailrace.simulate.request import SimRequest, State
from tailrace.simulate.seat import EngineSeat
from tailrace.simulate.tries import (
    CLIENT_LEFT,
    DEADLINE,
    FIRST_TOKEN,
    IDLE,
    QUEUE,
    TOTAL,
    Cut,
    DecisionNote,
    Step,
    Try,
    sent_record,
    unsent_record,
)

SWEEP_NS: Final = 50_000_000
"""How often the gateway looks whose time is over."""
_BUILT_AT_ONCE: Final = 256
_PATIENT: Final = ClientPolicy()

Choose = Callable[[Sequence[EngineSeat], RequestFacts], EngineSeat]
_Handler = Callable[["Try"], None]


def least_work(seats: Sequence[EngineSeat], facts: RequestFacts) -> EngineSeat:
    """The engine with the fewest outstanding tokens, ties by order."""
    del facts
    return min(seats, key=lambda seat: seat.tokens)


class GovernedRun:
    """Iterate `records(calls)`; then `decisions`, `refusals`, `unserved_calls`, `seats` say how it went.

    `clients` maps a call's `kind` to how its client behaves; all others behave as `client`: by default they wait for
    ever and do not try again. `scrape_ns` is how often the governor hears the engines' own state (0: never); an
    `admission` of the caller's own may follow it.
    """

    def __init__(
        self,
        policies: Sequence[LanePolicy],
        seats: Sequence[EngineSeat],
        *,
        governed: bool = True,
        admission: Admission | None = None,
        clients: Mapping[str, ClientPolicy] | None = None,
        client: ClientPolicy = _PATIENT,
        choose: Choose = least_work,
        scrape_ns: int = 0,
        rng: np.random.Generator | None = None,
        model: str = "",
        unix_ns: int = 0,
        thresholds: SlowThresholds | None = None,
        keep_timelines: Keep = "sampled",
        keep_decisions: bool = True,
    ) -> None:
        if not seats:
            raise ValueError("a gateway needs an engine")
        self.policies = list(policies)
        self.seats = list(seats)
        self.governed = governed
        self.admission = Admission(policies) if admission is None else admission
        self.decisions: list[DecisionNote] = []
        self.calls = self.served_calls = self.abandoned_calls = 0
        self.peak_running: dict[str, int] = {}
        """Lane -> the most requests that an engine had of it at once."""
        self._slots = FreeSlots()
        self._clients = dict(clients or {})
        self._client = client
        self._choose = choose
        self._rng = rng
        self._model = model
        self._unix_ns = unix_ns
        self._keep_decisions = keep_decisions
        self._now = 0
        self._live: dict[str, Try] = {}
        self._queued: set[str] = set()
        self._sweep_at: int | None = None
        """The gateway's next sweep, while anybody waits in a lane."""
        self._scrape_ns = scrape_ns
        self._scrape_at: int | None = None
        """When the engines' metrics are read next, while anybody is here."""
        self._running: dict[str, int] = {}
        self._events: list[tuple[int, int, _Handler, Try]] = []
        self._tickets = 0
        self._source: Iterator[Call] = iter(())
        self._upcoming: Call | None = None
        self._out: list[RequestRecord] = []
        self._builders = {
            seat: RecordBuilder(
                seat.engine.log,
                model=model,
                backend=seat.name,
                unix_ns=unix_ns,
                thresholds=thresholds,
                keep_timelines=keep_timelines,
            )
            for seat in self.seats
        }
        self._ended: dict[SimRequest, Try] = {}

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        return self._now // PS_PER_NS

    @property
    def live(self) -> int:
        """Requests that wait or run; 0 after a run."""
        return len(self._live)

    @property
    def refusals(self) -> list[RefusedTry]:
        """Every refusal with what it was told, and when its lane had a slot for it."""
        return self._slots.refusals

    def records(self, calls: Iterable[Call]) -> Iterator[RequestRecord]:
        """Run all calls (in order of time) to their ends; records come roughly in the order in which tries end."""
        self._source = iter(calls)
        self._upcoming = next(self._source, None)
        while self._advance():
            if self._out or len(self._ended) >= _BUILT_AT_ONCE:
                yield from self._drain()
        yield from self._drain(everything=True)

    # -- the clock

    def _advance(self) -> bool:
        """The next thing that happens; false when nothing is left."""
        outside = self._next_outside()
        if outside is not None and outside <= self._now:
            self._outside()
            return True
        for seat in self.seats:
            if seat.end is None and not seat.idle:
                bounds = [other.end for other in self.seats if other.end is not None]
                if outside is not None:
                    bounds.append(outside)
                seat.end = seat.engine.plan(skip=True, until=min(bounds, default=None))
                seat.idle = seat.end is None
        ends = [(seat.end, i) for i, seat in enumerate(self.seats) if seat.end is not None]
        if ends:
            end, i = min(ends)
            if outside is None or end <= outside:
                self._now = end
                self._commit(self.seats[i])
                return True
        if outside is None:
            return False
        self._now = outside
        return True

    def _next_outside(self) -> int | None:
        at = None if self._upcoming is None else self._upcoming.at_ns
        # What was planned for a try that is over does not keep the run alive.
        while self._events and self._events[0][3].over:
            heappop(self._events)
        if self._events and (at is None or self._events[0][0] < at):
            at = self._events[0][0]
        for due in (self._sweep_at, self._scrape_at):
            if due is not None and (at is None or due < at):
                at = due
        return None if at is None else at * PS_PER_NS

    def _outside(self) -> None:
        now = self.now_ns
        if self._sweep_at is not None and self._sweep_at <= now:
            self._sweep()
            return
        if self._scrape_at is not None and self._scrape_at <= now:
            self._scrape()
            return
        call = self._upcoming
        if call is not None and call.at_ns <= now and not (self._events and self._events[0][0] < call.at_ns):
            self._upcoming = next(self._source, None)
            if self._upcoming is not None and self._upcoming.at_ns < call.at_ns:
                raise ValueError("calls must come in order of time")
            self.calls += 1
            self._arrive(self._try(call, 0))
            return
        _, _, handler, attempt = heappop(self._events)
        handler(attempt)

    def _at(self, at_ns: int, handler: _Handler, attempt: Try) -> None:
        self._tickets += 1
        heappush(self._events, (at_ns, self._tickets, handler, attempt))

    def _swept(self, at_ns: int, handler: _Handler, attempt: Try) -> None:
        """As `_at`, at the gateway's first sweep from then on."""
        self._at(-(-at_ns // SWEEP_NS) * SWEEP_NS, handler, attempt)

    # -- arrivals

    def _try(self, call: Call, number: int) -> Try:
        client = self._clients.get(call.kind, self._client)
        label = f"{call.name}.{number}" if number else call.name
        return Try(call, client, number, self.now_ns, classify(self.policies, self._facts(call, label, client)))

    def _facts(self, call: Call, label: str, client: ClientPolicy) -> RequestFacts:
        return RequestFacts(
            request_id=label,
            prompt_tokens=call.prompt_tokens,
            max_tokens=call.max_tokens,
            stream=call.stream,
            model=self._model,
            tenant=call.tenant,
            path="/v1/chat/completions",
            headers=call.headers,
            deadline_ns=None if client.deadline_ns is None else self.now_ns + client.deadline_ns,
        )

    def _arrive(self, attempt: Try) -> None:
        now = self.now_ns
        client = attempt.client
        label = attempt.label
        self._live[label] = attempt
        if self._scrape_ns and self.governed and self._scrape_at is None:
            self._scrape_at = (now // self._scrape_ns + 1) * self._scrape_ns
        if client.total_ns is not None:
            self._at(attempt.received + client.total_ns, self._client_leaves, attempt)
        if client.first_token_ns is not None:
            self._at(attempt.received + client.first_token_ns, self._client_tires, attempt)
        if not self.governed:
            self._note(attempt, Step.ADMIT)
            self._send(attempt)
            return
        decision = attempt.decision = self.admission.arrive(self._facts(attempt.call, label, client), now)
        if decision.kind is DecisionKind.REFUSE:
            self._refused(attempt, decision)
            return
        budgets = attempt.policy.budgets
        total = budgets.total_ns if attempt.call.stream else budgets.unstreamed_total_ns
        self._swept(attempt.received + total, self._total_over, attempt)
        if client.deadline_ns is not None:
            self._swept(attempt.received + client.deadline_ns, self._deadline_over, attempt)
        if decision.kind is DecisionKind.ADMIT:
            self._note(attempt, Step.ADMIT)
            self._slots.open(decision.lane, now)
            self._send(attempt)
            return
        self._note(attempt, Step.WAIT)
        self._slots.queued(decision.lane, label)
        self._queued.add(label)
        if self._sweep_at is None:
            self._sweep_at = (now // SWEEP_NS + 1) * SWEEP_NS

    def _send(self, attempt: Try) -> None:
        call = attempt.call
        request = SimRequest(
            attempt.label,
            call.prompt_tokens,
            call.output_tokens,
            self._now,
            priority=attempt.policy.priority,
            prefix=call.prefix,
            prefix_tokens=call.prefix_tokens,
            max_tokens=call.max_tokens,
            tag=attempt.policy.name,
        )
        request.received = attempt.received * PS_PER_NS
        attempt.request = request
        allowed = attempt.policy.backends
        seats = [seat for seat in self.seats if seat.name in allowed] if allowed else self.seats
        facts = self._facts(call, attempt.label, attempt.client)
        seat = attempt.seat = self._choose(seats or self.seats, facts)
        seat.send(request, attempt)
        if self.governed:
            self.admission.sent(attempt.label, seat.name)
        lane = attempt.policy.name
        running = self._running[lane] = self._running.get(lane, 0) + 1
        self.peak_running[lane] = max(running, self.peak_running.get(lane, 0))
        if self.governed and call.stream:
            self._swept(self.now_ns + attempt.policy.budgets.first_token_ns, self._first_token_over, attempt)

    def _grant(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            attempt = self._live[request_id]
            self._note(attempt, Step.GRANT)
            self._queued.discard(request_id)
            self._slots.granted(attempt.policy.name, request_id, self.now_ns)
            self._send(attempt)

    # -- the engines

    def _commit(self, seat: EngineSeat) -> None:
        seat.end = None
        engine = seat.engine
        preempted = engine.counters.preemptions
        engine.commit()
        if engine.started:
            for request in engine.started:
                attempt = seat.work.get(request)
                if attempt is not None:
                    attempt.started = True
                    if self.governed:
                        policy = attempt.policy
                        granted = self.admission.first_token(attempt.label, self.now_ns)
                        self._free(policy.name, granted, room=self._running[policy.name] < policy.running)
            engine.started.clear()
        if engine.ended:
            for request in engine.ended:
                self._engine_ended(seat, request)
            engine.ended.clear()
        if self.governed and (preempted or engine.counters.preemptions):
            self._watch_silence(seat)

    def _engine_ended(self, seat: EngineSeat, request: SimRequest) -> None:
        attempt = seat.gone(request)
        if attempt is not None:  # else the gateway had cut it before
            self._place_free(attempt)
            self._note(attempt, Step.FINISH)
            if request.state is State.FINISHED:
                self.served_calls += 1
            else:
                self.abandoned_calls += 1
            self._ended[request] = attempt

    def _place_free(self, attempt: Try) -> None:
        attempt.over = True
        lane = attempt.policy.name
        del self._live[attempt.label]
        self._running[lane] -= 1
        if self.governed:
            request = attempt.request
            completed = request is not None and request.state is State.FINISHED
            self._free(
                lane,
                self.admission.finish(
                    attempt.label,
                    self.now_ns,
                    prompt_tokens=attempt.call.prompt_tokens if completed else None,
                    output_tokens=attempt.call.output_tokens if completed else None,
                    completed=completed,
                ),
                room=True,
            )

    def _free(self, lane: str, granted: list[str], *, room: bool) -> None:
        """A request of `lane` ended or left prefill, and these may go now. With `room`, so may one that comes."""
        self._grant(granted)
        if room and all(self._live[request_id].policy.name != lane for request_id in granted):
            self._slots.open(lane, self.now_ns)

    def _watch_silence(self, seat: EngineSeat) -> None:
        """A preempted stream gets no token until it is computed again; its idle budget runs."""
        for request, attempt in seat.work.items():
            if not attempt.started:
                continue
            if request.state is State.DECODE:
                attempt.silent_since = None
            elif attempt.silent_since is None:
                attempt.silent_since = self.now_ns
                self._swept(self.now_ns + attempt.policy.budgets.idle_ns, self._idle_over, attempt)

    # -- ends before the answer is complete

    def _client_leaves(self, attempt: Try) -> None:
        self._cut(attempt, CLIENT_LEFT)

    def _client_tires(self, attempt: Try) -> None:
        if not attempt.started:
            self._cut(attempt, CLIENT_LEFT)

    def _total_over(self, attempt: Try) -> None:
        self._cut(attempt, TOTAL if attempt.call.stream else TOTAL._replace(budget="unstreamed_total"))

    def _deadline_over(self, attempt: Try) -> None:
        self._cut(attempt, DEADLINE)

    def _first_token_over(self, attempt: Try) -> None:
        if not attempt.started:
            self._cut(attempt, FIRST_TOKEN)

    def _idle_over(self, attempt: Try) -> None:
        since = attempt.silent_since
        if since is not None and self.now_ns - since >= attempt.policy.budgets.idle_ns:
            self._cut(attempt, IDLE)

    def _sweep(self) -> None:
        """The governor says whose time in the queue is over, and who may go because time has passed."""
        now = self.now_ns
        for request_id in self.admission.expire(now):
            late = self._live[request_id]
            client = late.client
            # A request that can no longer meet its deadline is ended before it.
            told = client.deadline_ns is not None and now < late.received + late.policy.budgets.queue_ns
            self._end_unsent(late, Step.EXPIRE, DEADLINE if told else QUEUE, 429)
        self._grant(self.admission.settle(now))
        self._sweep_at = now + SWEEP_NS if self._queued else None

    def _scrape(self) -> None:
        """The governor hears what the engines say of themselves."""
        now = self.now_ns
        for seat in self.seats:
            self._grant(self.admission.hear(seat.name, seat.state(now), now))
        self._scrape_at = now + self._scrape_ns if self._live else None

    def _cut(self, attempt: Try, cut: Cut) -> None:
        request = attempt.request
        if request is None:
            # Still in the queue. If the governor has just let it go, it is no longer here.
            if self.admission.leave(attempt.label):
                self._end_unsent(attempt, Step.LEAVE, cut, 499 if cut is CLIENT_LEFT else 504)
            return
        seat = attempt.seat
        assert seat is not None, "a request that was sent has an engine"
        attempt.cut = cut
        seat.engine.abort(request, self._now)
        seat.gone(request)
        self._ended[request] = attempt
        self.abandoned_calls += 1
        self._note(attempt, Step.STOP, cut.reason)
        self._place_free(attempt)

    def _refused(self, attempt: Try, decision: Decision) -> None:
        self._note(attempt, Step.REFUSE, decision.reason)
        self._slots.refused(
            RefusedTry(
                at_ns=self.now_ns,
                request_id=attempt.label,
                lane=decision.lane,
                reason=decision.reason,
                position=decision.position,
                predicted_wait_ns=decision.predicted_wait_ns,
                retry_after_s=decision.retry_after_s,
                http_status=decision.http_status,
            )
        )
        self._over_unsent(attempt, Cut(OutcomeKind.REJECTED, decision.reason), decision.http_status)
        self._again(attempt, decision.retry_after_s)

    def _end_unsent(self, attempt: Try, step: Step, cut: Cut, http_status: int) -> None:
        self._queued.discard(attempt.label)
        self._slots.gone(attempt.policy.name, attempt.label)
        self._note(attempt, step, cut.reason)
        self._over_unsent(attempt, cut, http_status)
        if cut is QUEUE:
            predicted = self.admission.predicted_wait_ns(attempt.policy.name, self.now_ns)
            self._again(attempt, max(1, math.ceil((predicted or 0) / S)))
        else:
            self.abandoned_calls += 1

    def _over_unsent(self, attempt: Try, cut: Cut, http_status: int) -> None:
        attempt.over = True
        del self._live[attempt.label]
        self._out.append(
            unsent_record(attempt, self.now_ns, cut, unix_ns=self._unix_ns, model=self._model, http_status=http_status)
        )

    def _again(self, attempt: Try, retry_after_s: int | None) -> None:
        """The client of a refused try comes back, or gives up."""
        tries = attempt.number + 1
        if tries > attempt.client.retries:
            self.abandoned_calls += 1
            return
        if self._rng is None:
            raise ValueError("clients that try again need a random generator")
        later = Try(attempt.call, attempt.client, tries, 0, attempt.policy)
        self._at(self.now_ns + backoff_ns(attempt.client, tries, retry_after_s, self._rng), self._come_back, later)

    def _come_back(self, attempt: Try) -> None:
        self._arrive(self._try(attempt.call, attempt.number))

    # -- records

    def _note(self, attempt: Try, step: Step, reason: Reason = Reason.NONE) -> None:
        if not self._keep_decisions:
            return
        decision = attempt.decision
        told = decision if decision is not None and step in (Step.ADMIT, Step.WAIT, Step.REFUSE) else None
        self.decisions.append(
            DecisionNote(
                self.now_ns,
                attempt.label,
                attempt.policy.name,
                step,
                reason,
                0 if told is None else told.position,
                None if told is None else told.predicted_wait_ns,
                None if told is None else told.retry_after_s,
            )
        )

    def _drain(self, *, everything: bool = False) -> list[RequestRecord]:
        out = self._out
        self._out = []
        if everything or len(self._ended) >= _BUILT_AT_ONCE:
            for seat, builder in self._builders.items():
                # A cut request is in the engine until its next step boundary; its tokens are known then.
                done = {
                    request: attempt
                    for request, attempt in self._ended.items()
                    if attempt.seat is seat and request.state >= State.FINISHED
                }
                for record, attempt in zip(builder.build(done), done.values(), strict=True):
                    out.append(sent_record(record, attempt))
                for request in done:
                    del self._ended[request]
                waiting = [request.first_step for request in self._ended if request.first_step]
                seat.engine.log.forget(min([seat.engine.oldest_token_step(), *waiting]) - 1)
        return out
