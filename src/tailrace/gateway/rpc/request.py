"""One inference request that came over gRPC, from its first message to its record: lane, budgets, account.

The counterpart of `gateway.exchange` for HTTP. It owns no socket: the RPC that carries it does the reading and writing
and is told, by `interrupt`, when a request that is on its way has to end from outside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

from tailrace.engines.kserve import InferAsk
from tailrace.engines.triton_generate import TRITON_GENERATE
from tailrace.gateway.budget_clock import NEVER, BudgetClock, Overrun
from tailrace.gateway.dispatch import work_tokens
from tailrace.gateway.lane_facts import lane_facts
from tailrace.gateway.refusal import Refusal, budget_refusal, lane_refusal
from tailrace.gateway.routes import PASSTHROUGH_LANE, Route, RouteKind
from tailrace.gateway.verdict import Phase, Verdict
from tailrace.gateway.work import Work
from tailrace.govern.admission import Decision, DecisionKind
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway
    from tailrace.gateway.hop import TcpReading
    from tailrace.gateway.in_flight import Transport

log = logging.getLogger(__name__)

DEADLINE_SLACK_NS = 20_000_000
"""A call is cancelled at its deadline by gRPC's own timer: a cancel this close to it is not the client's."""


class ClientSide:
    """What is known of the client's end: whether it takes what is written."""

    __slots__ = ("blocked_since", "transport")

    def __init__(self) -> None:
        self.blocked_since: int | None = None
        self.transport: asyncio.Transport | None = None
        """gRPC's core owns the socket."""

    @property
    def pipeline(self) -> tuple[()]:
        """Requests of one stream do not wait for one another."""
        return ()


class Measured:
    """What is measured of the answer."""

    __slots__ = ("meter", "summary")

    def __init__(self) -> None:
        self.meter: StreamMeter | None = None
        self.summary: StreamSummary | None = None


class RpcRequest:
    """A row of the gateway's table of requests in flight."""

    def __init__(
        self,
        gateway: Gateway,
        ledger: RequestLedger,
        *,
        route: Route,
        named: dict[bytes, bytes],
        deadline_at: int | None,
        client: ClientSide,
        interrupt: Callable[[RpcRequest], None],
    ) -> None:
        self.gateway = gateway
        self.backend = gateway.backends.grpc
        self.ledger = ledger
        self.route = route
        self.named = named
        self.received = ledger.received
        self.phase = Phase.UPLOAD
        self.loop_lag_ns: int | None = None
        self.work = Work()
        self.lane = PASSTHROUGH_LANE
        self.clock = BudgetClock(ledger.received, gateway.default_budgets)
        self.clock.timed_only = route.kind is not RouteKind.READ
        self.clock.deadline_at = deadline_at
        self.transit = Measured()
        self.connection = client
        self.refusal: Refusal | None = None
        """What the client has to be told, once it has ended otherwise than the engine's answer does."""
        self.wants_final = False
        self.ends_known = False
        """The engine has said of an answer whether it is the last: silence after one that was not is idleness."""
        self.overhead_ns = 0
        self.written = False
        self.keep_alive = True
        self.hop: Transport | None = None
        self.dropped: tuple[int, int] | None = None
        self.cancel_ns: int | None = None
        self.readings: tuple[TcpReading | None, TcpReading | None] | None = None
        self._interrupt = interrupt
        self._turn: asyncio.Future[bool] | None = None
        self._lane_place = ""
        self._counted: int | None = None
        """Our work in tokens, while it is counted to the engine."""
        self.next_check = self.clock.total_at()
        gateway.in_flight[ledger.request_id] = self

    @property
    def done(self) -> bool:
        """It has its record."""
        return self.phase is Phase.DONE

    # -- entering

    def admit_unqueued(self, size: int) -> None:
        """Relayed and timed: no lane has a say."""
        ledger = self.ledger
        ledger.parsed = ledger.admitted = monotonic_ns()
        ledger.prompt_bytes = size
        ledger.stream = False

    async def admitted(self, ask: InferAsk, size: int, *, stream: bool) -> bool:
        """Ask the lane for a place and wait for it. False when it ended instead: `refusal` says why."""
        ledger = self.ledger
        ledger.prompt_bytes = size
        self.wants_final = ask.wants_final
        self.work = work = Work(
            model=ask.model, stream=stream, prompt_tokens=ask.prompt_tokens, max_tokens=ask.max_tokens
        )
        work.enter_in(ledger)
        self.clock.streamed = stream
        if ask.id:
            ledger.client_request_id = ask.id
        gateway = self.gateway
        due = self.clock.deadline_at
        facts = lane_facts(ledger, work, self.named, stream=stream, deadline_at=due, callers=gateway.callers)
        now = ledger.parsed = ledger.queued = monotonic_ns()
        decision = gateway.lanes.arrive(self, facts, now)
        self.lane = ledger.lane = decision.lane
        if decision.kind is DecisionKind.REFUSE:
            self.lane_refused(decision, now)
            return False
        self.clock.budgets = gateway.lanes.policy(decision.lane).budgets
        if decision.kind is DecisionKind.WAIT:
            self.phase = Phase.QUEUED
            self._lane_place = "waiting"
            self.next_check = self.clock.total_at()
            self._turn = asyncio.get_running_loop().create_future()
            return await self._turn
        self._lane_place = "running"
        self._let_go_on(now)
        return True

    def _let_go_on(self, now: int) -> None:
        self.ledger.admitted = now
        self.ledger.at_admission = self.backend.engine.watch.state(now)
        self.phase = Phase.CONNECTING

    def lane_admitted(self, now: int) -> None:
        """Our turn has come."""
        self._lane_place = "running"
        self._let_go_on(now)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(True)

    def lane_refused(self, decision: Decision, now: int) -> None:
        """There is no room, here or in any process that shares the lane."""
        self._lane_place = ""
        self.refuse(lane_refusal(decision, self.gateway.lanes.policy(decision.lane)), now)

    def lane_timed_out(self, now: int) -> None:
        """The queue budget, or the client's deadline within it, is over."""
        self._lane_place = ""
        self._give_up(now, self.clock.queue_over(now, self.ledger.queued))

    # -- on its way

    def sent(self) -> None:
        """It goes to the engine now."""
        # Before the write: on a busy machine the engine may have the request before we are back.
        now = self.clock.sent_at = self.ledger.sent = monotonic_ns()
        self.phase = Phase.WAITING
        if self._counted is None:
            # There is no choice of engines here, but those who choose for HTTP see what this one has to do.
            self._counted = work_tokens(self.work)
            self.backend.standing.took(self._counted)
        if self.work.stream:
            gateway = self.gateway
            self.transit.meter = StreamMeter(
                TRITON_GENERATE,  # what it would read, it gets read already
                origin_ns=self.received,
                thresholds=gateway.thresholds,
                timeline_limit=gateway.timeline_limit,
            )
        self._look_again(now)

    def first_token(self, now: int, written: int | None) -> None:
        """The first answer with outputs was read at `now` and taken by the client's transport at `written`."""
        self.phase = Phase.STREAMING
        self.ledger.at_first_token = self.backend.engine.watch.state(now)
        self.ledger.client_first_token = written
        if self._lane_place == "running":
            self.gateway.lanes.first_token(self.ledger.request_id, now)
        self._look_again(now)

    def wrote(self, begun: int, ended: int, read_at: int, *, blocked: bool) -> None:
        """A message was handed to the client's transport."""
        if self.done:  # ended from outside meanwhile: its account is closed
            return
        ledger = self.ledger
        if not self.written:
            self.written = True
            ledger.client_first_write = ended
        ledger.client_last_write = ended
        if blocked:
            ledger.client_blocked(begun, ended)
            self.clock.unblocked_at = ended
            self.overhead_ns += max(0, begun - read_at)
        else:
            self.overhead_ns += max(0, ended - read_at)

    def engine_done(self, now: int) -> None:
        """The engine's last message for it is here; the lane has room."""
        self.ledger.upstream_end = now
        self._uncount()
        self._leave_lane(now, completed=True)

    # -- time

    def _look_again(self, now: int) -> None:
        at = self.clock.next_check(self.phase, self.transit.meter, NEVER)
        self.next_check = max(at, now + 1)

    def sweep(self, now: int) -> None:
        """A budget may be over. Called by the one sweeper when `next_check` has passed."""
        if self.done:
            return
        blocked = self.connection.blocked_since is not None
        over = self.clock.over(self.phase, self.transit.meter, now, blocked=blocked or not self.ends_known)
        if over is not None:
            self._give_up(now, over)
            return
        self._look_again(now)

    def _give_up(self, now: int, over: Overrun) -> None:
        stage = self.stage(now)
        queued = self.phase is Phase.QUEUED
        text = f"the {over.budget} budget of {self.clock.length_ns(over.budget) / 1e9:g} s is over in stage {stage}"
        wait = self.gateway.lanes.predicted_wait_ns(self.lane, now) if queued else None
        refusal = budget_refusal(over.reason, text, stage, self.lane, wait)
        self._end_from_outside(now, Verdict(over.outcome, over.reason, stage, text, over.budget), refusal)

    def stage(self, now: int) -> str:
        """The stage that the request is in, as far as anybody can know."""
        phase = self.phase
        if phase is Phase.WAITING:
            return self.backend.engine.stage_before_first_token(self.ledger, self.transit.meter, now)
        if phase is Phase.CONNECTING:
            return Phase.QUEUED.value
        return str(phase.value)

    @property
    def waits_for_token(self) -> bool:
        """A stream whose first token has not come."""
        return self.work.stream and self.phase in (Phase.QUEUED, Phase.CONNECTING, Phase.WAITING)

    # -- ends

    def refuse(self, refusal: Refusal, now: int) -> None:
        """Answer instead of the engine, before anything was sent to it."""
        self.end(
            now,
            Verdict(OutcomeKind.REJECTED, Reason(refusal.reason), refusal.stage or "ingress", refusal.message),
            refusal,
        )

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        """The client cancelled, its connection is gone, or its deadline is over."""
        deadline = self.clock.deadline_at
        late = deadline is not None and now >= deadline - DEADLINE_SLACK_NS
        gone = Reason.CLIENT_WRITE_FAILED if write_failed else Reason.CLIENT_DISCONNECT
        reason = Reason.DEADLINE if late else gone
        self.end(now, Verdict(OutcomeKind.CANCELLED, reason, self.stage(now), budget="deadline" if late else ""))

    def cancel(self, now: int, reason: Reason, why: str) -> None:
        """Somebody other than its client ends it: what works for it is stopped, and the client is told `why`."""
        stage = self.stage(now)
        self._end_from_outside(
            now,
            Verdict(OutcomeKind.CANCELLED, reason, stage, why),
            Refusal(status=503, message=why, reason=reason, stage=stage, retry_after_s=1),
        )

    def broken(self, now: int) -> None:
        """We failed over it. It ends like any other request: nothing that belongs to it may stay behind."""
        text = "the gateway failed over this request"
        stage = self.stage(now)
        self._end_from_outside(
            now,
            Verdict(OutcomeKind.FAILED, Reason.GATEWAY_ERROR, stage, text),
            Refusal(status=500, message=text, reason=Reason.GATEWAY_ERROR, stage=stage),
        )

    def _end_from_outside(self, now: int, verdict: Verdict, refusal: Refusal) -> None:
        if self.done:
            return
        turn = self._turn
        waits = turn is not None and not turn.done()
        self.end(now, verdict, refusal)
        if not waits:
            self._interrupt(self)

    def end(self, now: int, verdict: Verdict, refusal: Refusal | None = None) -> None:
        """The one way into the record. Gives back the lane's place; a second call does nothing."""
        if self.done:
            return
        self._uncount()
        self._leave_lane(now)
        self.phase = Phase.DONE
        self.refusal = refusal
        ledger = self.ledger
        ledger.loop_lag_ns = self.loop_lag_ns
        if self.written:
            ledger.gateway_overhead_ns = self.overhead_ns
        blocked = self.connection.blocked_since
        if blocked is not None:
            ledger.client_blocked(blocked, now)
        self.gateway.finished(ledger, self._summary(now), verdict, max(now, ledger.client_last_write or now))
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(False)

    def _summary(self, now: int) -> StreamSummary | None:
        meter = self.transit.meter
        if meter is None:
            return self.transit.summary
        meter.end(self.ledger.upstream_end or now, clean=False)
        return meter.summary()

    def _uncount(self) -> None:
        tokens, self._counted = self._counted, None
        if tokens is not None:
            self.backend.standing.gave_back(tokens)

    def _leave_lane(self, now: int, *, completed: bool = False) -> None:
        place, self._lane_place = self._lane_place, ""
        if place == "running":
            self.gateway.lanes.finish(self.ledger.request_id, now, completed=completed)
        elif place == "waiting":
            self.gateway.lanes.leave(self.ledger.request_id)
