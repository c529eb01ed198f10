"""One request from its first byte to its record: the state machine that owns everything that belongs to it.

Every exit goes through `_close`, which gives back the lane's place and the upstream connection, writes the record and
takes the request out of the gateway's table. Nothing else pops it, and nothing pops it twice.
"""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.gateway.answer import Answer
from tailrace.gateway.budget_clock import NEVER, BudgetClock, Overrun
from tailrace.gateway.dispatch import Dispatch
from tailrace.gateway.forward import answer_headers
from tailrace.gateway.gathering import Gathering
from tailrace.gateway.head import deadline_of
from tailrace.gateway.intake import work_of
from tailrace.gateway.lane_facts import lane_facts
from tailrace.gateway.queue_speech import QueueSpeech
from tailrace.gateway.refusal import Refusal, budget_refusal, cancellation, lane_refusal
from tailrace.gateway.request_head import RequestHead
from tailrace.gateway.routes import PASSTHROUGH_LANE, RouteKind
from tailrace.gateway.transit import Transit
from tailrace.gateway.upload import NOT_IN_TIME
from tailrace.gateway.verdict import Phase, Verdict
from tailrace.gateway.work import BodyError, Work
from tailrace.govern.admission import Decision, DecisionKind
from tailrace.measure.ledger import RequestLedger
from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway
    from tailrace.gateway.hop import TcpReading
    from tailrace.gateway.server import ClientConnection, Heir
    from tailrace.gateway.upstream import UpstreamConnection


_NO_WORK: Final = Work()


class GatewayExchange(Gathering):
    """One request, as its client's connection and its engine's connection drive it."""

    # What few requests ever change stands here: setting it anew for each would cost more than reading it.
    fresh_only = False
    """Whether only a connection that nobody has used will do."""
    traceparent = b""
    """What the engine is told of our place in the trace; empty: nothing."""
    hop: UpstreamConnection | None = None
    """The connection that it was last sent on."""
    dropped: tuple[int, int] | None = None
    """When it was seen that nobody wants the engine's answer any more, and when that connection was closed (ns)."""
    cancel_ns: int | None = None
    """From the first of these instants, or the deadline before it, to the second, once it is cancelled."""
    readings: tuple[TcpReading | None, TcpReading | None] | None = None
    """Of the connections to the engine and to the client, where they may be closed before the record is made."""
    phase = Phase.UPLOAD
    started = False
    heir: Heir | None = None
    next_check = NEVER
    """Earliest instant at which a budget may be over; the sweeper looks no closer before it."""
    work = _NO_WORK
    lane = PASSTHROUGH_LANE
    loop_lag_ns: int | None = None
    among: Collection[str] = ()
    """Names of the backends that its lane may use; empty: all."""
    foretold = b""
    """Header lines that tell the client what was predicted of its request."""
    speech: QueueSpeech | None = None
    """Comments to a stream that waits in its lane, where they are wanted."""
    _body = b""
    """The request's, while it waits for its lane."""
    _lane_place = ""
    """`running` while the lane counts us, `waiting` while we wait in it."""
    _upstream: UpstreamConnection | None = None
    _upstream_paused = False
    _client_dropped = False
    _verdict: Verdict | None = None
    """How it ended, once that is known and only the client still drains."""

    def __init__(
        self, gateway: Gateway, connection: ClientConnection, ledger: RequestLedger, head: RequestHead, received: int
    ) -> None:
        self.gateway = gateway
        self.backend = gateway.backends.first
        """The engine that it was sent to last; until then, whichever."""
        self.connection = connection
        self.ledger = ledger
        self.head = head
        self.route = route = head.route
        self.received = received
        self.clock = BudgetClock(received, gateway.default_budgets)
        self.clock.timed_only = route.kind is not RouteKind.READ
        transport = connection.transport
        assert transport is not None
        self.answer = Answer(transport, head_only=head.method == b"HEAD", version=head.version)
        self.transit = Transit(self, self.answer)
        self.dispatch = Dispatch(self)
        self._parts: list[bytes] = []

    # -- what the client's connection asks and tells

    def start(self, now: int) -> None:
        """It is this request's turn on its connection."""
        self.started = True
        self.ledger.prompt_bytes = self._size
        if self.refusal is not None:
            self.refuse(self.refusal, now)
            return
        body = self._whole()
        if self.route.kind is RouteKind.READ:
            if not self._read_request(body, now):
                return
            shaped = self.gateway.shaping.shape(self, body)
            if shaped is not None:
                self.shaped(shaped)
        else:
            self.ledger.parsed = now
            self.ledger.stream = False
            self.send_unqueued(body, now)

    def shaped(self, body: bytes) -> None:
        """Its prompt and what it asks for are within their limits."""
        body = self.gateway.aliases.applied(body, self.ledger)
        # Not the read's stamp: decoding a long prompt takes its time, and that time is ingress.
        self.ledger.parsed = now = monotonic_ns()
        self._enter_lane(body, now)

    def send_unqueued(self, body: bytes, now: int) -> None:
        """No lane has a say: it goes as it is."""
        self._draw_trace()
        self._admitted(body, now)

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        """The client left: so does everything that was done for it."""
        if self.phase is Phase.DONE:
            return
        took_all = not write_failed and self.connection.blocked_since is None
        if self.phase is Phase.STREAMING and took_all and self.transit.left_after_end(now):
            return
        reason = Reason.CLIENT_WRITE_FAILED if write_failed else Reason.CLIENT_DISCONNECT
        stage = self.stage(now)
        self._let_go(now)
        self._close(now, Verdict(OutcomeKind.CANCELLED, reason, stage=stage))

    def client_timed_out(self, now: int) -> None:
        """The upload does not get on."""
        self.refuse_head(NOT_IN_TIME, close=True)
        self.start(now)

    def write_blocked(self) -> None:
        """The client's side of the kernel is full."""
        if self._upstream is not None:
            self._upstream.leave_flow()
            self.client_is_slow()

    def write_unblocked(self, since: int, now: int) -> None:
        """The client has taken everything written so far."""
        if self.phase is Phase.DONE:
            return
        self.clock.unblocked_at = now
        self.ledger.client_blocked(since, now)
        if self.phase is Phase.DRAINING:
            self._drained(now)
        elif self._upstream_paused and self._upstream is not None:
            self._upstream_paused = False
            self._upstream.resume()

    # -- reading the request, entering the lane

    def _read_request(self, body: bytes, now: int) -> bool:
        try:
            self.learn(work_of(self.head.target, self.head.named, body) if self.upload is None else self.upload.work())
        except BodyError as error:
            text = f"the body cannot be read: {error}"
            self.refuse(Refusal(status=400, message=text, reason=Reason.BAD_REQUEST), now)
            return False
        return True

    def learn(self, work: Work) -> None:
        """What the request asks for."""
        self.work = work
        self.clock.streamed = work.stream
        work.enter_in(self.ledger)

    def _enter_lane(self, body: bytes, now: int) -> None:
        work = self.work
        self.clock.deadline_at = deadline_of(self.head.named, self.received)
        desk, callers, due = self.gateway.lanes, self.gateway.callers, self.clock.deadline_at
        facts = lane_facts(self.ledger, work, self.head.named, stream=work.stream, deadline_at=due, callers=callers)
        late = self.clock.deadline_over(now)
        if late is not None:
            self.lane = self.ledger.lane = desk.lane_of(facts)
            self._give_up(now, late, Phase.UPLOAD.value)
            return
        self.ledger.queued = now
        decision = desk.arrive(self, facts, now)
        self.lane = self.ledger.lane = decision.lane
        self.foretold = self.gateway.foresight.lines(decision)
        self.ledger.predicted_wait_ns = decision.predicted_wait_ns
        if decision.kind is DecisionKind.REFUSE:
            self.lane_refused(decision, now)
            return
        policy = desk.policy(decision.lane)
        self.clock.budgets = policy.budgets
        if policy.guard is not None:
            self.clock.watch = self.gateway.gaps.watch(self, policy.guard)
        self.among = policy.backends
        self._draw_trace()
        if decision.kind is DecisionKind.WAIT:
            self.phase = Phase.QUEUED
            self._lane_place = "waiting"
            self._body = body
            if work.stream and self.upload is None:
                self.speech = self.gateway.foresight.speech(now)
            self.next_check = self.next_budget()
        else:
            self._lane_place = "running"
            self._admitted(body, now)

    def lane_admitted(self, now: int) -> None:
        """Our turn has come."""
        self._lane_place = "running"
        # While it waited, the configuration may have given the lane other backends, or it another lane.
        policy = self.gateway.lanes.policy_of(self.ledger.request_id)
        self.lane = self.ledger.lane = policy.name
        self.among = policy.backends
        late = self.clock.deadline_over(now)
        if late is None:
            body, self._body = self._body, b""
            self._admitted(body, now)
        else:  # it passed since the last sweep
            self._give_up(now, late, Phase.QUEUED.value)

    def lane_refused(self, decision: Decision, now: int) -> None:
        """There is no room, here or in any process that shares the lane."""
        self._lane_place = ""
        self.refuse(lane_refusal(decision, self.gateway.lanes.policy(decision.lane)), now)

    def lane_timed_out(self, now: int) -> None:
        """The queue budget, or the client's deadline within it, is over."""
        self._lane_place = ""
        self._give_up(now, self.clock.queue_over(now, self.ledger.queued), "queue")

    # -- sending

    def _draw_trace(self) -> None:
        gateway, ledger = self.gateway, self.ledger
        engine = gateway.backends.engine_name
        trace = gateway.traces.trace(self.head.named, engine=engine, endpoint=self.route.endpoint)
        ledger.trace_id, ledger.parent_id, ledger.span_id, self.traceparent = trace

    def _admitted(self, body: bytes, now: int) -> None:
        self.ledger.admitted = now
        degradation = self.gateway.degradation
        self.dispatch.begin(body if degradation is None else degradation.admitted(self, body, now), now)

    def unreachable(self, error: str, now: int) -> None:
        """No engine could be given the request."""
        self._fail_before(now, Verdict(OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE, stage="ingress", error=error))

    def send_on(self, connection: UpstreamConnection) -> None:
        """There is a connection to the chosen engine."""
        self._upstream = self.hop = connection
        request = self._outgoing()
        if self.upload is not None:
            self.phase = Phase.UPLOAD
            self.ledger.upload_start = monotonic_ns()
            self.upload.flow(connection, request)
            self.next_check = self.next_budget()
            return
        self.phase = Phase.WAITING
        # Before the write: on a busy machine the engine may have the request before we are back.
        self.clock.sent_at = self.ledger.sent = monotonic_ns()
        connection.send(self.transit, request, without_body=self.head.method == b"HEAD")
        self.next_check = self.next_budget()

    def _outgoing(self) -> bytes:
        return self.dispatch.request()

    # -- what its transit tells

    def head_seen(self, now: int) -> None:
        """The engine's status line."""
        self.ledger.headers = self.ledger.first_byte = now
        if self.dispatch.hedging and not self.work.stream:
            self.dispatch.answers()

    def our_headers(self, now: int) -> list[bytes]:
        """The header lines that the gateway adds to every answer."""
        lines = answer_headers(self.ledger, self.lane, now)
        return [*lines, self.foretold] if self.foretold else lines

    def first_token(self, now: int, written: int | None) -> None:
        """The first token was read at `now`, and was with the client's kernel at `written`."""
        self.phase = Phase.STREAMING
        self.dispatch.token(now)
        self.ledger.at_first_token = self.backend.engine.watch.state(now)
        self.ledger.client_first_token = written
        if self.gateway.degradation is not None:
            self.gateway.degradation.first_token(self, now)
        if self._lane_place == "running":
            self.gateway.lanes.first_token(self.ledger.request_id, now)
        self.next_check = self.next_budget()

    def engine_done(self, now: int) -> None:
        """The engine's message is whole; its connection is back in the pool, and the lane has room."""
        self._upstream = None
        self.ledger.upstream_end = now
        self.dispatch.uncount()
        self._leave_lane(now, completed=self.transit.sound)

    def carried_by(self, connection: UpstreamConnection) -> None:
        """It goes on, on another connection."""
        self._upstream = self.hop = connection

    def start_over(self) -> None:
        """An attempt failed, and nothing of it has left for the client: the next one answers from the beginning."""
        connection, self._upstream = self._upstream, None
        if connection is not None:
            connection.abort()
        self.answer = self.answer.afresh()
        self.transit = Transit(self, self.answer)

    def stop_engine(self, now: int) -> None:
        """Nothing more is wanted of the engine."""
        self._drop_upstream(now)
        self.engine_done(now)

    def engine_lost(self, now: int, *, untouched: bool) -> bool:
        """The engine's connection died. True when the request is on its way again, on a fresh one."""
        self._upstream = None
        if self.dispatch.again(now, untouched=untouched):
            return True
        self.dispatch.uncount()
        self._leave_lane(now)
        return False

    def cut(self, now: int, error: str) -> None:
        """The engine's answer ended too early. What came is delivered; the end says that it is none."""
        stage = self.stage(now)
        self._leave_lane(now)
        self._tell(Refusal(status=502, message=error, reason=Reason.STREAM_CUT, stage=stage))
        self.ends(now, Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, stage, error))

    def broken(self, now: int) -> None:
        """We failed over it. It ends like any other request: nothing that belongs to it may stay behind."""
        if self.phase is Phase.DONE:
            return
        stage = self.stage(now)
        self._let_go(now)
        self._drop_client()
        self._close(now, Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, stage, "the gateway could not read the answer"))

    def client_is_slow(self) -> None:
        """The kernel takes no more: stop the engine once more than a buffer's worth waits here."""
        transport = self.connection.transport
        if (
            not self._upstream_paused
            and self._upstream is not None
            and transport is not None
            and transport.get_write_buffer_size() > self.gateway.client_buffer_bytes
        ):
            self._upstream_paused = True
            self._upstream.pause()

    # -- time

    def next_budget(self) -> int:
        """The earliest instant at which a budget may be over."""
        if self.upload is not None and self.upload.flowing:
            return 0  # it keeps its own time, at every sweep
        hold = self.transit.hold_until if self.answer.holding else NEVER
        if self.speech is not None and self.phase is Phase.QUEUED:
            hold = self.speech.next_at
        return self.clock.next_check(self.phase, self.transit.meter, hold)

    def sweep(self, now: int) -> None:
        """A budget may be over. Called by the one sweeper when `next_check` has passed."""
        if self.phase is Phase.DONE:
            return
        if now >= self.transit.hold_until and self.answer.holding and not self.dispatch.hedging:
            self.transit.let_head_go()
        if self.speech is not None:
            self.speech.say(self, now)
        if self.upload is not None and self.upload.flowing:
            self.upload.sweep(now)
            return
        meter = self.transit.meter
        over = self.clock.over(self.phase, meter, now, blocked=self.connection.blocked_since is not None)
        if over is None:
            pass
        elif over.reason is Reason.IDLE_TIMEOUT and meter is not None and (meter.done or meter.finish_reason):
            # The engine only forgot to end its message. The client need not wait for that.
            self.transit.finish_early(now)
        else:
            self._give_up(now, over, self.stage(now))
        # Where it has ended nobody looks any more.
        self.next_check = max(self.next_budget(), now + 1)

    def _give_up(self, now: int, over: Overrun, stage: str) -> None:
        """A budget is over: stop the engine, tell the client which budget of which stage it was."""
        draining = self.phase is Phase.DRAINING
        queued = over.reason is Reason.QUEUE_TIMEOUT
        self._let_go(now)
        text = self.clock.sentence(over, stage)
        if draining:
            # Everything is said; only the client does not take it.
            self._drop_client()
        else:
            wait = self.gateway.lanes.predicted_wait_ns(self.lane, now) if queued else None
            self._tell(budget_refusal(over.reason, text, stage, self.lane, wait))
        self.ends(now, Verdict(over.outcome, over.reason, stage, text, over.budget))

    def _tell(self, refusal: Refusal) -> None:
        """There will be no proper end: say so in whatever way the answer still allows, or drop the connection."""
        if self.upload is not None:
            self.upload.cut_short()
        if not self.answer.head_sent:
            self.answer.ours = self.our_headers(monotonic_ns())
        if not self.transit.break_off(msgspec.structs.replace(refusal, request_id=self.ledger.request_id)):
            self._drop_client()

    def _drop_client(self) -> None:
        self._client_dropped = True
        self.connection.abort()

    def stage(self, now: int) -> str:
        """The stage that the request is in, as far as anybody can know."""
        phase = self.phase
        if phase is Phase.WAITING:
            return self.backend.engine.stage_before_first_token(self.ledger, self.transit.meter, now)
        if phase is Phase.CONNECTING:
            return Phase.QUEUED.value
        meter = self.transit.meter
        if phase is Phase.STREAMING and meter is not None and (meter.finish_reason or meter.done):
            return "postprocess"
        return str(phase.value)

    @property
    def waits_for_token(self) -> bool:
        """A stream whose first token has not come."""
        return self.work.stream and self.phase in (Phase.QUEUED, Phase.CONNECTING, Phase.WAITING)

    # -- ends

    def refuse(self, refusal: Refusal, now: int, outcome: OutcomeKind = OutcomeKind.REJECTED, budget: str = "") -> None:
        """Answer instead of the engine, which has got nothing, or not a whole request."""
        self._let_go(now)
        self._tell(refusal)
        stage = refusal.stage or "ingress"
        self.ends(now, Verdict(outcome, Reason(refusal.reason), stage, refusal.message, budget))

    def _fail_before(self, now: int, verdict: Verdict) -> None:
        """Nothing reached an engine."""
        self._let_go(now)
        self._tell(
            Refusal(status=503, message=verdict.error, reason=verdict.reason, stage=verdict.stage, retry_after_s=1)
        )
        self.ends(now, verdict)

    def cancel(self, now: int, reason: Reason, why: str) -> None:
        """Somebody other than its client ends it: what works for it is stopped, and the client is told `why`."""
        if self.phase is Phase.DONE:
            return
        stage = self.stage(now)
        begun = self.started and self.phase is not Phase.DRAINING
        self._let_go(now)
        if reason is Reason.SHUTDOWN:
            self.keep_alive = False
        if begun:
            self._tell(cancellation(reason, why, stage))
        else:
            # Its upload is not whole, or all is said and not taken: there is no place for an answer.
            self._drop_client()
        verdict = Verdict(OutcomeKind.CANCELLED, reason, stage, why)
        (self._close if reason is Reason.SHUTDOWN else self.ends)(now, verdict)

    def ends(self, now: int, verdict: Verdict) -> None:
        """Everything is written; the record waits only for the client to take it."""
        if self.phase is Phase.DONE:
            return
        if self.connection.blocked_since is None or self._client_dropped:
            self._close(now, verdict)
            return
        self._verdict = verdict
        self.phase = Phase.DRAINING
        self.next_check = self.clock.total_at()

    def _drained(self, now: int) -> None:
        verdict = self._verdict
        assert verdict is not None
        self.ledger.client_last_write = now
        self._close(now, verdict)

    def _drop_upstream(self, now: int) -> None:
        connection, self._upstream = self._upstream, None
        if connection is not None:
            connection.abort()
            self.dropped = (now, monotonic_ns())

    def _leave_lane(self, now: int, *, completed: bool = False) -> None:
        place, self._lane_place = self._lane_place, ""
        if place == "running":
            self.gateway.lanes.finish(self.ledger.request_id, now, completed=completed)
        elif place == "waiting":
            self.gateway.lanes.leave(self.ledger.request_id)

    def _let_go(self, now: int) -> None:
        """Give back whatever works for this request: engine, pending connection, place in the lane."""
        if self.phase is Phase.CONNECTING:
            self.dispatch.forget()
        self._drop_upstream(now)
        self.dispatch.uncount()
        self._leave_lane(now)

    def _close(self, now: int, verdict: Verdict) -> None:
        if self.phase is Phase.DONE:
            return
        self._let_go(now)
        self.phase = Phase.DONE
        self.clock.watch = None  # it knows us: nothing that is over may wait for the collector
        if self.upload is not None:
            self.upload.close()
        ledger, answer, transit = self.ledger, self.answer, self.transit
        transit.stop(now)
        end = max(now, answer.last_write_ns or now)
        ledger.client_first_write = answer.first_write_ns
        ledger.client_last_write = ledger.client_last_write or answer.last_write_ns
        ledger.http_status = answer.status
        ledger.gateway_overhead_ns = transit.overhead_ns if answer.head_sent else None
        ledger.loop_lag_ns = self.loop_lag_ns
        blocked = self.connection.blocked_since
        if blocked is not None:
            ledger.client_blocked(blocked, end)
        self.gateway.finished(ledger, transit, verdict, end)
        self._body = b""
        self.dispatch.close(verdict, end)
        self.connection.answered(self, keep_alive=answer.keep_alive, now=end)
