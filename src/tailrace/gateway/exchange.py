"""One request from its first byte to its record: the state machine that owns everything that belongs to it.

Every exit goes through `_close`, which gives back the lane's place and the upstream connection, writes the record and
takes the request out of the gateway's table. Nothing else pops it, and nothing pops it twice.
"""

from __future__ import annotations

from enum import Enum
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tailrace.gateway.answer import Answer
from tailrace.gateway.forward import forward_request
from tailrace.gateway.head import Header, HeadError
from tailrace.gateway.refusal import Refusal, error_body, error_event
from tailrace.gateway.routes import PASSTHROUGH_LANE, Route, RouteKind
from tailrace.gateway.trace import Trace, continue_trace
from tailrace.gateway.work import BodyError, Work, read_work, with_fields
from tailrace.govern.admission import Decision, DecisionKind
from tailrace.govern.lane import RequestFacts
from tailrace.measure.dialect import EngineFault
from tailrace.measure.dialects import dialect_for
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.measure.strip import FrameStripper
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import Budgets
from tailrace.model.timeline import EventKind

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway
    from tailrace.gateway.server import ClientConnection
    from tailrace.gateway.upstream import UpstreamConnection

NEVER: Final = 1 << 62
MAX_READ_BODY: Final = 4 * 1024 * 1024
"""An unstreamed answer is read up to this size; a larger one is relayed and timed only."""
MAX_ERROR_TEXT: Final = 300
SMALL_UPLOAD: Final = 64 * 1024
"""A refused request's body up to this size is read to its end, which keeps the connection; a larger one costs it."""


_ABORTED: Final = frozenset({"abort", "error"})
"""Finish reasons with which engines end an answer that nobody asked them to end."""


class Verdict(NamedTuple):
    """How a request ended."""

    outcome: OutcomeKind
    reason: Reason
    stage: str = ""
    """The stage in which it died; empty lets the ledger derive it."""
    error: str = ""
    budget: str = ""


COMPLETED: Final = Verdict(OutcomeKind.COMPLETED, Reason.NONE)


class Phase(Enum):
    """Where a request is. The value is the stage that its time belongs to now."""

    UPLOAD = "ingress"
    QUEUED = "queue"
    CONNECTING = "connect"
    WAITING = "prefill"
    """Sent; no token yet."""
    STREAMING = "decode"
    DRAINING = "response"
    DONE = "done"


class GatewayExchange:
    """One request, as its client's connection and its engine's connection drive it."""

    def __init__(
        self,
        gateway: Gateway,
        connection: ClientConnection,
        ledger: RequestLedger,
        *,
        method: bytes,
        target: bytes,
        route: Route,
        version: str,
        headers: list[Header],
        named: dict[bytes, bytes],
        received: int,
    ) -> None:
        self.gateway = gateway
        self.connection = connection
        self.ledger = ledger
        self.method = method
        self.target = target
        self.route = route
        self.headers = headers
        self.named = named
        self.received = received
        self.phase = Phase.UPLOAD
        self.expects_continue = False
        self.uploaded = False
        self.started = False
        self.refusal: Refusal | None = None
        self.next_check = NEVER
        """Earliest instant at which a budget may be over; the sweeper looks no closer before it."""
        self.work = Work()
        self.lane = PASSTHROUGH_LANE
        self.budgets: Budgets = gateway.default_budgets
        self.meter: StreamMeter | None = None
        assert connection.transport is not None
        self.answer = Answer(connection.transport, head_only=method == b"HEAD", version=version)
        self.overhead_ns = 0
        self.loop_lag_ns: int | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._request = b""
        self._trace: Trace | None = None
        self._lane_place = ""
        """`running` while the lane counts us, `waiting` while we wait in it."""
        self._upstream: UpstreamConnection | None = None
        self._upstream_paused = False
        self._resent = False
        self._sent_at: int | None = None
        self._deadline_at: int | None = None
        self._hold_until = NEVER
        self._stripper: FrameStripper | None = None
        self._cut_kinds: frozenset[EventKind] = frozenset()
        self._read: list[bytes] | None = None
        self._read_size = 0
        self._unblocked_at = 0
        self._body_summary: StreamSummary | None = None
        self._verdict: Verdict | None = None
        """How it ended, once that is known and only the client still drains."""

    # -- what the client's connection asks and tells

    @property
    def keep_alive(self) -> bool:
        """Whether the client's connection outlives this request."""
        return self.answer.keep_alive

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None:
        self.answer.keep_alive = value

    def refused_early(self) -> bool:
        """Refused before its body was read to the end."""
        return self.refusal is not None and not self.keep_alive

    def refuse_head(self, refusal: Refusal, *, close: bool) -> None:
        """The head alone decides: nothing of the body matters. `close`: the body is not worth waiting for."""
        self.refusal = refusal
        self._parts.clear()
        if close:
            self.keep_alive = False

    def spoil(self, error: HeadError) -> None:
        """The body stopped being HTTP."""
        self.refuse_head(Refusal(status=error.status, message=str(error), reason=Reason.BAD_REQUEST), close=True)

    def add_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        self._size += len(data)
        if self.refusal is None:
            if self._size > self.gateway.max_body_bytes:
                limit = self.gateway.max_body_bytes
                self.refuse_head(
                    Refusal(status=413, message=f"the body is larger than {limit} bytes", reason=Reason.BAD_REQUEST),
                    close=True,
                )
            else:
                self._parts.append(data)
        elif self._size > SMALL_UPLOAD:
            self.keep_alive = False

    def upload_complete(self, now: int) -> None:
        """The request is whole."""
        self.uploaded = True

    def start(self, now: int) -> None:
        """It is this request's turn on its connection."""
        self.started = True
        self.ledger.prompt_bytes = self._size
        if self.refusal is not None:
            self._refuse(self.refusal, now)
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self.route.kind is RouteKind.READ:
            if not self._read_request(body, now):
                return
            # Not the read's stamp: decoding a long prompt takes its time, and that time is ingress.
            self.ledger.parsed = now = monotonic_ns()
            self._enter_lane(body, now)
        else:
            self.ledger.parsed = now
            self.ledger.stream = False
            self._request = self._forwarded(body)
            self._admitted(now)

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        """The client left: so does everything that was done for it."""
        if self.phase is Phase.DONE:
            return
        reason = Reason.CLIENT_WRITE_FAILED if write_failed else Reason.CLIENT_DISCONNECT
        stage = self._stage(now)
        self._let_go(now)
        self._close(now, Verdict(OutcomeKind.CANCELLED, reason, stage=stage))

    def client_timed_out(self, now: int) -> None:
        """The upload does not get on."""
        self.refuse_head(
            Refusal(status=408, message="the request's body did not arrive in time", reason=Reason.BAD_REQUEST),
            close=True,
        )
        self.start(now)

    def write_blocked(self, now: int) -> None:
        """The client's side of the kernel is full; `_after_write` pauses the engine when our buffer is, too."""

    def write_unblocked(self, since: int, now: int) -> None:
        """The client has taken everything written so far."""
        if self.phase is Phase.DONE:
            return
        self._unblocked_at = now
        self.ledger.client_blocked(since, now)
        if self.meter is not None:
            self.meter.client_blocked(since, now)
        if self.phase is Phase.DRAINING:
            self._drained(now)
        elif self._upstream_paused and self._upstream is not None:
            self._upstream_paused = False
            self._upstream.resume()

    # -- reading the request, entering the lane

    def _read_request(self, body: bytes, now: int) -> bool:
        kind = self.named.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        if kind in (b"application/json", b"") or kind.endswith(b"+json"):
            try:
                self.work = read_work(body)
            except BodyError as error:
                self._refuse(
                    Refusal(status=400, message=f"the body is no JSON object: {error}", reason=Reason.BAD_REQUEST),
                    now,
                )
                return False
        elif self.route.endpoint.endswith("/generate_stream"):
            self.work = Work(stream=True)
        work, ledger = self.work, self.ledger
        ledger.model = work.model
        ledger.stream = work.stream
        ledger.max_tokens = work.max_tokens
        ledger.n, ledger.best_of, ledger.beam = work.n, work.best_of, work.beam
        ledger.sampled, ledger.grammar = work.sampled, work.grammar
        if work.prompt_tokens is not None:
            ledger.prompt_tokens = work.prompt_tokens
            ledger.prompt_tokens_source = "estimate"
        return True

    def _enter_lane(self, body: bytes, now: int) -> None:
        work = self.work
        self._deadline_at = self._deadline(now)
        facts = RequestFacts(
            request_id=self.ledger.request_id,
            prompt_tokens=work.prompt_tokens or 0,
            max_tokens=work.max_tokens,
            stream=work.stream,
            model=work.model,
            path=self.route.endpoint,
            headers=self.gateway.lane_headers(self.named),
            deadline_ns=self._deadline_at,
        )
        desk = self.gateway.lanes
        self.ledger.queued = now
        decision = desk.arrive(self, facts, now)
        self.lane = self.ledger.lane = decision.lane
        if decision.kind is DecisionKind.REFUSE:
            self._refuse(self._lane_refusal(decision), now)
            return
        self.budgets = desk.policy(decision.lane).budgets
        if work.stream:
            added = self.gateway.engine.additions(self.route.endpoint, work)
            self._cut_kinds = added.cut
            body = with_fields(body, work, added.body)
        self._request = self._forwarded(body)
        if decision.kind is DecisionKind.WAIT:
            self.phase = Phase.QUEUED
            self._lane_place = "waiting"
            self.next_check = self._total_at()
        else:
            self._lane_place = "running"
            self._admitted(now)

    def _deadline(self, now: int) -> int | None:
        raw = self.named.get(b"x-deadline-ms")
        if raw is None or not raw.isdigit() or len(raw) > 12:
            return None
        return self.received + int(raw) * 1_000_000

    def _lane_refusal(self, decision: Decision) -> Refusal:
        predicted = decision.predicted_wait_ns
        limits = self.gateway.lanes.policy(decision.lane)
        if decision.reason is Reason.QUEUE_FULL:
            why = f"{limits.running} requests are running and {limits.queued} are waiting, which is its limit"
        else:
            budget = limits.budgets.queue_ns / 1e9
            why = (
                f"the predicted wait of {(predicted or 0) / 1e9:.1f} s is longer than its queue budget of {budget:g} s"
            )
        return Refusal(
            status=decision.http_status,
            message=f"lane {decision.lane!r} is full: {why}. Try again in {decision.retry_after_s} s.",
            reason=decision.reason,
            stage="queue",
            lane=decision.lane,
            position=decision.position,
            predicted_wait_ms=None if predicted is None else round(predicted / 1e6, 3),
            retry_after_s=decision.retry_after_s,
        )

    def lane_admitted(self, now: int) -> None:
        """Our turn has come."""
        self._lane_place = "running"
        self._admitted(now)

    def lane_timed_out(self, now: int) -> None:
        """The queue budget, or the client's deadline within it, is over."""
        self._lane_place = ""
        deadline = self._deadline_at
        if deadline is not None and now >= deadline:
            self._give_up(now, OutcomeKind.CANCELLED, Reason.DEADLINE, "queue", "deadline")
        else:
            self._give_up(now, OutcomeKind.TIMED_OUT, Reason.QUEUE_TIMEOUT, "queue", "queue")

    # -- sending

    def _forwarded(self, body: bytes) -> bytes:
        gateway = self.gateway
        trace = self._trace = continue_trace(self.named.get(b"traceparent"))
        self.ledger.trace_id, self.ledger.parent_id = trace.trace_id, trace.parent_id
        pool = gateway.pool
        return forward_request(
            self.method,
            pool.prefix + self.target,
            self.headers,
            body,
            authority=pool.authority,
            request_id=self.ledger.request_id.encode("latin-1"),
            traceparent=trace.header,
            read=self.route.kind is RouteKind.READ,
            api_key=gateway.backend.api_key,
        )

    def _admitted(self, now: int) -> None:
        self.ledger.admitted = now
        self.ledger.at_admission = self.gateway.engine.watch.state(now)
        self._dispatch(now, fresh=False)

    def _dispatch(self, now: int, *, fresh: bool) -> None:
        pool = self.gateway.pool
        connection = None if fresh else pool.take(now)
        if connection is not None:
            self.ledger.connection_reused = True
            self._send(connection, now)
        elif pool.full():
            text = f"all {pool.limit} connections to the engine are in use"
            verdict = Verdict(OutcomeKind.REJECTED, Reason.NO_BACKEND, stage="queue", error=text)
            self._fail_before(now, verdict, 503, retry_after_s=1)
        else:
            self.phase = Phase.CONNECTING
            self.next_check = self._total_at()
            pool.connect(self)

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:
        """A fresh connection for us."""
        self.ledger.connect_start = started
        self.ledger.connect_end = now
        self.ledger.connection_reused = False
        self._send(connection, now)

    def upstream_unreachable(self, error: str, now: int) -> None:
        """Nobody answers at the engine's address."""
        self.gateway.engine.watch.unreachable()
        text = f"the engine cannot be reached: {error}"
        verdict = Verdict(OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE, stage="ingress", error=text)
        self._fail_before(now, verdict, 503, retry_after_s=1)

    def _send(self, connection: UpstreamConnection, now: int) -> None:
        self._upstream = connection
        self.phase = Phase.WAITING
        # Before the write: on a busy machine the engine may have the request before we are back.
        self._sent_at = self.ledger.sent = monotonic_ns()
        connection.send(self, self._request, without_body=self.method == b"HEAD")
        self.next_check = self._next_check()

    # -- the engine's answer

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The status line. Nothing leaves yet."""
        self.ledger.headers = now
        self.gateway.engine.watch.answers()
        kind = encoding = b""
        for name, value in headers:
            key = name.lower()
            if key == b"content-type":
                kind = value.partition(b";")[0].strip().lower()
            elif key == b"content-encoding":
                encoding = value.strip().lower()
            elif key == b"server":
                self.gateway.engine.saw_server(value)
        readable = encoding in (b"", b"identity")
        sse = kind == b"text/event-stream" and 200 <= status < 300
        self.answer.ours = self._our_headers(now)
        self.answer.begin(status, headers, sse=sse)
        self._hold_until = now + self.gateway.header_hold_ns
        gateway = self.gateway
        if self.route.kind is RouteKind.READ and sse and readable:
            self.meter = StreamMeter(
                dialect_for(self.route.endpoint),
                origin_ns=self.received,
                thresholds=gateway.thresholds,
                timeline_limit=gateway.timeline_limit,
                max_event_bytes=gateway.max_event_bytes,
                cut=self._cut_kinds,
            )
            self._stripper = FrameStripper(self.meter)
        elif readable and (kind.endswith(b"json") or status >= 400):
            self._read = []
        self.next_check = self._next_check()

    def _our_headers(self, now: int) -> list[bytes]:
        ledger = self.ledger
        parts = [f"ingress;dur={((ledger.parsed or now) - self.received) / 1e6:.3f}"]
        if ledger.admitted is not None and ledger.parsed is not None:
            parts.append(f"queue.gateway;dur={(ledger.admitted - ledger.parsed) / 1e6:.3f}")
        if ledger.sent is not None and ledger.headers is not None:
            parts.append(f"upstream;dur={(ledger.headers - ledger.sent) / 1e6:.3f}")
        line = f"x-request-id: {ledger.request_id}\r\nx-tailrace-lane: {self.lane}\r\nserver-timing: {', '.join(parts)}\r\n"
        if ledger.client_request_id:
            line += f"x-client-request-id: {ledger.client_request_id}\r\n"
        return [line.encode("latin-1", "replace")]

    def upstream_body(self, data: bytes, now: int) -> None:
        """Body bytes of one read."""
        meter, stripper = self.meter, self._stripper
        if meter is None or stripper is None:
            self._plain_body(data, now)
            return
        first = meter.first_token_ns is None
        ready = stripper.feed(data, now)
        answer = self.answer
        if first and meter.first_token_ns is not None:
            self.phase = Phase.STREAMING
            self.ledger.at_first_token = self.gateway.engine.watch.state(now)
            self.next_check = self._next_check()
            answer.body(ready)
            answer.release()
            self.ledger.client_first_token = answer.last_write_ns
        elif answer.head_sent:
            if ready:
                answer.body(ready)
        elif meter.fault is not None:
            self._first_frame_error(now)
            return
        else:
            answer.body(ready)
            if meter.events:
                answer.release()
        if answer.last_write_ns is not None and answer.last_write_ns > now:
            self.overhead_ns += answer.last_write_ns - now
        if self.connection.blocked_since is not None:
            self._maybe_pause()

    def _plain_body(self, data: bytes, now: int) -> None:
        if self.ledger.first_byte is None:
            self.ledger.first_byte = now
        if self._read is not None:
            self._read_size += len(data)
            if self._read_size > MAX_READ_BODY:
                self._read = None
            else:
                self._read.append(data)
        answer = self.answer
        answer.body(data)
        if not answer.head_sent and len(data) >= 65536:
            answer.release()
        if answer.head_sent:
            self.overhead_ns += (answer.last_write_ns or now) - now
        if self.connection.blocked_since is not None:
            self._maybe_pause()

    def _maybe_pause(self) -> None:
        transport = self.connection.transport
        if (
            not self._upstream_paused
            and self._upstream is not None
            and transport is not None
            and transport.get_write_buffer_size() > self.gateway.client_buffer_bytes
        ):
            self._upstream_paused = True
            self._upstream.pause()

    def upstream_complete(self, now: int) -> None:
        """The engine's message is whole. Whether the answer in it is, too, is judged here."""
        self._upstream = None
        self.ledger.upstream_end = now
        self._leave_lane(now)
        meter, answer = self.meter, self.answer
        if meter is None:
            self._plain_complete(now)
            return
        meter.end(now, clean=True)
        assert self._stripper is not None
        rest = self._stripper.finish()
        if meter.fault is not None:
            if answer.head_sent:
                answer.body(rest)
                answer.end()
                seen = meter.first_token_ns is not None
                self._ends(now, self._fault_verdict(meter.fault, tokens_seen=seen))
            else:
                self._first_frame_error(now)
        elif meter.finish_reason in _ABORTED:
            answer.body(rest)
            answer.release()
            answer.end()
            text = f"the engine ended the answer with finish_reason {meter.finish_reason!r}"
            self._ends(now, Verdict(OutcomeKind.FAILED, Reason.ENGINE_ABORT_UNKNOWN, error=text))
        elif self._whole(meter):
            answer.body(rest)
            answer.release()
            answer.end()
            self._ends(now, COMPLETED)
        else:
            self._cut(now, "the engine ended the stream without an end marker or a finish reason")

    def _whole(self, meter: StreamMeter) -> bool:
        if meter.done or meter.finish_reason:
            return True
        # Triton has no end marker, and what could not be framed cannot be judged.
        return bool(meter.protocol_fault) or (self.route.endpoint.startswith("/v2/") and meter.events > 0)

    def _plain_complete(self, now: int) -> None:
        answer = self.answer
        answer.release()
        answer.end()
        status = answer.status or 0
        read, self._read = self._read, None
        body = b"".join(read) if read else b""
        if status >= 400:
            ending = self.gateway.engine.judge_status(status, body, self.route.endpoint)
            text = body[:MAX_ERROR_TEXT].decode("utf-8", "replace")
            self._ends(now, Verdict(ending.outcome, ending.reason, ending.stage, text))
            return
        if self.route.kind is RouteKind.READ and body:
            meaning = dialect_for(self.route.endpoint).read_body(body)
            self._body_summary = summarise_body(meaning, origin_ns=self.received, now=now)
            if meaning.fault is not None:  # Triton: a 200 whose body is an error
                self._ends(now, self._fault_verdict(meaning.fault, tokens_seen=False))
                return
        self._ends(now, COMPLETED)

    def _first_frame_error(self, now: int) -> None:
        """The stream's first event is an error and nothing has left: the client gets its real status."""
        meter = self.meter
        assert meter is not None
        assert meter.fault is not None
        fault = meter.fault
        verdict = self._fault_verdict(fault, tokens_seen=False)
        status = fault.code if fault.code is not None and 400 <= fault.code <= 599 else 500
        self._drop_upstream()
        self._leave_lane(now)
        meter.end(now, clean=False)
        refusal = Refusal(
            status=status,
            message=fault.message,
            reason=verdict.reason,
            stage=verdict.stage or "queue",
            request_id=self.ledger.request_id,
            retry_after_s=1 if status in (429, 503) else None,
        )
        self.answer.refuse(status, error_body(self.route.endpoint, refusal), retry_after_s=refusal.retry_after_s)
        self._ends(now, verdict)

    def _fault_verdict(self, fault: EngineFault, *, tokens_seen: bool) -> Verdict:
        ending = self.gateway.engine.judge_fault(fault, tokens_seen=tokens_seen)
        return Verdict(ending.outcome, ending.reason, ending.stage, fault.message)

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The connection ended before the message did."""
        self._upstream = None
        if untouched and not self._resent:
            # The engine closed an idle connection while our request was on its way: it has not seen it.
            self._resent = True
            self.ledger.attempts += 1
            self.ledger.retries += 1
            self._dispatch(now, fresh=True)
            return
        self._leave_lane(now)
        if self.meter is not None:
            self.meter.end(now, clean=False)
            if self.meter.done:
                # `[DONE]` is here; that the engine hung up instead of ending its message takes nothing away.
                self.ledger.upstream_end = now
                self.answer.release()
                self.answer.end()
                fault, seen = self.meter.fault, self.meter.first_token_ns is not None
                self._ends(now, COMPLETED if fault is None else self._fault_verdict(fault, tokens_seen=seen))
                return
        self._cut(now, error)

    def _cut(self, now: int, error: str) -> None:
        """The engine's answer ended too early. What came is delivered; the end says that it is none."""
        stage = self._stage(now)
        verdict = Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, stage=stage, error=error)
        refusal = Refusal(
            status=502, message=error, reason=Reason.STREAM_CUT, stage=stage, request_id=self.ledger.request_id
        )
        self._leave_lane(now)
        self._break_off(refusal)
        self._ends(now, verdict)

    def _break_off(self, refusal: Refusal) -> None:
        """Tell the client, in whatever state its answer is, that there will be no proper end."""
        answer = self.answer
        meter = self.meter
        if not answer.head_sent and (meter is None or not meter.token_events):
            answer.refuse(refusal.status, error_body(self.route.endpoint, refusal), retry_after_s=refusal.retry_after_s)
        elif answer.sse:
            answer.release()
            glue = b"\n\n" if meter is None or meter.protocol_fault else b""
            answer.fail(glue + error_event(self.route.endpoint, refusal))
        else:
            # Neither a length that is not reached nor a missing last chunk can be mistaken for a whole answer.
            self.connection.abort()

    # -- time

    def _total_at(self) -> int:
        budget = self.budgets.total_ns if self.work.stream else self.budgets.unstreamed_total_ns
        at = self.received + budget
        return at if self._deadline_at is None else min(at, self._deadline_at)

    def _first_token_at(self) -> int:
        if not self.work.stream or self._sent_at is None:
            return NEVER
        return self._sent_at + self.budgets.first_token_ns

    def _idle_at(self) -> int:
        meter = self.meter
        if meter is None or meter.last_progress_ns is None:
            return NEVER
        return max(meter.last_progress_ns, self._unblocked_at) + self.budgets.idle_ns

    def _next_check(self) -> int:
        at = self._total_at()
        if self.answer.holding:
            at = min(at, self._hold_until)
        if self.phase is Phase.WAITING:
            at = min(at, self._first_token_at())
        elif self.phase is Phase.STREAMING:
            at = min(at, self._idle_at())
        return at

    def sweep(self, now: int) -> None:
        """A budget may be over. Called by the one sweeper when `next_check` has passed."""
        if self.phase is Phase.DONE:
            return
        if self.answer.holding and now >= self._hold_until:
            self.answer.release()
            self._hold_until = NEVER
        blocked = self.connection.blocked_since is not None
        if now >= self._total_at():
            if self._deadline_at is not None and now >= self._deadline_at:
                self._give_up(now, OutcomeKind.CANCELLED, Reason.DEADLINE, self._stage(now), "deadline")
            else:
                budget = "total" if self.work.stream else "unstreamed_total"
                self._give_up(now, OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT, self._stage(now), budget)
        elif self.phase is Phase.WAITING and now >= self._first_token_at():
            stage = self._stage(now)
            self._give_up(now, OutcomeKind.TIMED_OUT, Reason.FIRST_TOKEN_TIMEOUT, stage, "first_token")
        elif self.phase is Phase.STREAMING and not blocked and now >= self._idle_at():
            self._idle_over(now)
        if self.phase is not Phase.DONE:
            self.next_check = max(self._next_check(), now + 1)

    def _idle_over(self, now: int) -> None:
        meter = self.meter
        assert meter is not None
        if meter.done or meter.finish_reason:
            # The answer is whole; the engine only forgot to end its message. The client need not wait for that.
            self._drop_upstream()
            self._leave_lane(now)
            self.ledger.upstream_end = now
            meter.end(now, clean=False)
            self.answer.end()
            self._ends(now, COMPLETED)
        else:
            self._give_up(now, OutcomeKind.TIMED_OUT, Reason.IDLE_TIMEOUT, "decode", "idle")

    def _give_up(self, now: int, outcome: OutcomeKind, reason: Reason, stage: str, budget: str) -> None:
        """A budget is over: stop the engine, tell the client which budget of which stage it was."""
        draining = self.phase is Phase.DRAINING
        queued = self.phase is Phase.QUEUED
        self._let_go(now)
        if self.meter is not None:
            self.meter.end(now, clean=False)
        limit = self._budget_ns(budget)
        text = f"the {budget} budget of {limit / 1e9:g} s is over in stage {stage}"
        if draining:
            # Everything is said; only the client does not take it.
            self.connection.abort()
        else:
            waits = self.gateway.lanes.predicted_wait_ns(self.lane, now) if queued else None
            refusal = Refusal(
                status=429 if queued and reason is Reason.QUEUE_TIMEOUT else 504,
                message=text,
                reason=reason,
                stage=stage,
                lane=self.lane,
                retry_after_s=max(1, -(-waits // 1_000_000_000)) if waits is not None else (1 if queued else None),
                predicted_wait_ms=None if waits is None else waits / 1e6,
                request_id=self.ledger.request_id,
            )
            self._break_off(refusal)
        self._ends(now, Verdict(outcome, reason, stage=stage, error=text, budget=budget))

    def _budget_ns(self, budget: str) -> int:
        if budget == "deadline":
            return (self._deadline_at or 0) - self.received
        value: int = getattr(self.budgets, f"{budget}_ns")
        return value

    def _stage(self, now: int) -> str:
        """The stage that the request is in, as far as anybody can know."""
        phase = self.phase
        if phase is Phase.WAITING:
            return self.gateway.engine.stage_before_first_token(self.ledger, self.meter, now)
        if phase is Phase.CONNECTING:
            return Phase.QUEUED.value
        if phase is Phase.STREAMING and self.meter is not None and (self.meter.finish_reason or self.meter.done):
            return "postprocess"
        return phase.value

    def view(self, now: int) -> dict[str, Any]:
        """This request for `/streams`."""
        meter = self.meter
        return {
            "request_id": self.ledger.request_id,
            "client_request_id": self.ledger.client_request_id,
            "lane": self.lane,
            "endpoint": self.route.endpoint,
            "model": self.work.model,
            "stream": self.work.stream,
            "stage": self._stage(now),
            "age_ms": (now - self.received) / 1e6,
            "prompt_tokens": self.work.prompt_tokens,
            "tokens": meter.tokens if meter is not None else 0,
            "ttft_ms": (meter.first_token_ns - self.received) / 1e6
            if meter is not None and meter.first_token_ns is not None
            else None,
            "silent_ms": (now - (meter.last_progress_ns or now)) / 1e6 if meter is not None else None,
            "slow": meter.slow if meter is not None and meter.check(now) else [],
            "client_blocked": self.connection.blocked_since is not None,
        }

    # -- ends

    def _refuse(self, refusal: Refusal, now: int) -> None:
        """Answer instead of the engine, before anything was sent to it."""
        ledger = self.ledger
        refusal = msgspec.structs.replace(refusal, request_id=ledger.request_id)
        self.answer.ours = self._our_headers(now)
        self.answer.refuse(
            refusal.status, error_body(self.route.endpoint, refusal), retry_after_s=refusal.retry_after_s
        )
        self._ends(
            now,
            Verdict(
                OutcomeKind.REJECTED, Reason(refusal.reason), stage=refusal.stage or "ingress", error=refusal.message
            ),
        )

    def _fail_before(self, now: int, verdict: Verdict, status: int, *, retry_after_s: int | None) -> None:
        """Nothing reached an engine."""
        self._let_go(now)
        refusal = Refusal(
            status=status,
            message=verdict.error,
            reason=verdict.reason,
            stage=verdict.stage,
            retry_after_s=retry_after_s,
            request_id=self.ledger.request_id,
        )
        self.answer.ours = self._our_headers(now)
        self.answer.refuse(status, error_body(self.route.endpoint, refusal), retry_after_s=retry_after_s)
        self._ends(now, verdict)

    def stop(self, now: int) -> None:
        """The gateway shuts down and this request's time is over."""
        if self.phase is Phase.DONE:
            return
        stage = self._stage(now)
        draining = self.phase is Phase.DRAINING
        self._let_go(now)
        if self.meter is not None:
            self.meter.end(now, clean=False)
        text = "the gateway is shutting down"
        if draining or self.phase is Phase.UPLOAD:
            self.connection.abort()
        else:
            refusal = Refusal(
                status=503,
                message=text,
                reason=Reason.SHUTDOWN,
                stage=stage,
                retry_after_s=1,
                request_id=self.ledger.request_id,
            )
            self.keep_alive = False
            self._break_off(refusal)
        if self.phase is not Phase.DONE:
            self._close(now, Verdict(OutcomeKind.CANCELLED, Reason.SHUTDOWN, stage=stage, error=text))

    def _ends(self, now: int, verdict: Verdict) -> None:
        """Everything is written; the record waits only for the client to take it."""
        if self.phase is Phase.DONE:
            return
        if self.connection.blocked_since is None:
            self._close(now, verdict)
            return
        self._verdict = verdict
        self.phase = Phase.DRAINING
        self.next_check = self._total_at()

    def _drained(self, now: int) -> None:
        verdict = self._verdict
        assert verdict is not None
        self.ledger.client_last_write = now
        self._close(now, verdict)

    def _drop_upstream(self) -> None:
        connection, self._upstream = self._upstream, None
        if connection is not None:
            connection.abort()

    def _leave_lane(self, now: int) -> None:
        place, self._lane_place = self._lane_place, ""
        if place == "running":
            self.gateway.lanes.finish(self.ledger.request_id, now)
        elif place == "waiting":
            self.gateway.lanes.leave(self.ledger.request_id)

    def _let_go(self, now: int) -> None:
        """Give back whatever works for this request: engine, pending connection, place in the lane."""
        if self.phase is Phase.CONNECTING:
            self.gateway.pool.forget(self)
        self._drop_upstream()
        self._leave_lane(now)

    def _close(self, now: int, verdict: Verdict) -> None:
        if self.phase is Phase.DONE:
            return
        self._let_go(now)
        self.phase = Phase.DONE
        ledger, answer, meter = self.ledger, self.answer, self.meter
        end = max(now, answer.last_write_ns or now)
        ledger.client_first_write = answer.first_write_ns
        if ledger.client_last_write is None:
            ledger.client_last_write = answer.last_write_ns
        ledger.http_status = answer.status
        ledger.gateway_overhead_ns = self.overhead_ns if answer.head_sent else None
        ledger.loop_lag_ns = self.loop_lag_ns
        blocked = self.connection.blocked_since
        if blocked is not None:
            ledger.client_blocked(blocked, end)
        summary = self._body_summary
        if meter is not None:
            meter.end(now, clean=False)
            summary = meter.summary()
        self.gateway.finished(self, ledger, summary, verdict, end)
        self._request = b""
        self.connection.answered(self, keep_alive=answer.keep_alive, now=end)
