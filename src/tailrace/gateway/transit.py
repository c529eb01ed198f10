"""The engine's answer on its way to the client: what the engine's connection drives.

Bytes are relayed as they were read, with one timestamp a read, and measured beside. Only whole events leave: no client
can use half an event, and when the engine dies inside one, the error event that follows must not be glued to its
fragment. Frames that only the gateway asked for are cut out.
"""

from __future__ import annotations

import logging
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, cast

from tailrace.gateway.answer import Answer
from tailrace.gateway.budget_clock import NEVER
from tailrace.gateway.flow import Flow
from tailrace.gateway.head import Header, picked
from tailrace.gateway.refusal import Refusal, error_body, error_event, reason_line
from tailrace.gateway.routes import RouteKind
from tailrace.gateway.verdict import COMPLETED, Verdict
from tailrace.measure.dialect import EngineFault
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.measure.strip import FrameStripper
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import EventKind, Timeline

if TYPE_CHECKING:
    from tailrace.gateway.exchange import GatewayExchange

log = logging.getLogger(__name__)

MAX_READ_BODY: Final = 4 * 1024 * 1024
"""An unstreamed answer is read up to this size; a larger one is relayed and timed only."""
MAX_ERROR_TEXT: Final = 300
_RELEASE_AT: Final = 64 * 1024
"""A plain answer's head waits for its body, up to this many bytes, so that both leave in one segment."""
_WHOLE: Final = frozenset({"stop", "length", "tool_calls", "end_turn", "max_tokens"})
"""Finish reasons that every adapter takes for a whole answer."""


class Transit:
    """One answer between two sockets."""

    __slots__ = (
        "_exchange",
        "_flow",
        "_flowing",
        "_late",
        "_meter",
        "_page",
        "_read",
        "_read_size",
        "_status",
        "_stripper",
        "_summary",
        "_unread",
        "_whole_at",
        "answer",
        "cut",
        "hold_until",
        "overhead_ns",
    )

    def __init__(self, exchange: GatewayExchange, answer: Answer) -> None:
        self._exchange = exchange
        self.answer = answer
        self._meter: StreamMeter | None = None
        self._flow: Flow | None = None
        self.cut: frozenset[EventKind] = frozenset()
        """Kinds of events that were asked for by the gateway alone."""
        self.hold_until = NEVER
        self.overhead_ns = 0
        self._stripper: FrameStripper | None = None
        self._flowing = False
        """The first token is through."""
        self._status = 0
        """The engine's."""
        self._late = False
        """The engine's answer is no stream, and the client has the head of one (`queue_speech`)."""
        self._page = False
        """A web page came where an answer of the API belongs."""
        self._read: list[bytes] | None = None
        self._read_size = 0
        self._summary: StreamSummary | None = None
        self._unread = b""
        """A whole plain answer, read when its record is made: nothing that the client gets depends on it."""
        self._whole_at = 0

    # -- the engine's connection

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        """The status line. Nothing leaves yet."""
        exchange = self._exchange
        if status >= 429 and exchange.dispatch.turned_down(status, headers, now):
            return
        gateway = exchange.gateway
        engine = exchange.backend.engine
        head = exchange.backend.heads.read(status, headers)
        kind = head.kind
        engine.answered(head.server)
        exchange.head_seen(now)
        self._status = status
        if engine.adapter.timing_headers:
            exchange.ledger.said_headers = picked(headers, engine.adapter.timing_headers)
        readable = head.encoding in (b"", b"identity")
        sse = kind == b"text/event-stream" and 200 <= status < 300
        early = self.answer.head_sent
        if not early:
            self.answer.ours = exchange.our_headers(now)
            self.answer.begin(head, headers, sse=sse)
        elif not (sse and readable):
            self._late = True
        if head.timing_at:
            exchange.ledger.server_timing = b", ".join(headers[at][1] for at in head.timing_at)
        if exchange.route.kind is RouteKind.READ and sse and readable:
            self.meter = StreamMeter(
                engine.adapter.dialect(exchange.route.endpoint),
                origin_ns=exchange.received,
                thresholds=gateway.thresholds,
                timeline_limit=gateway.timeline_limit,
                max_event_bytes=gateway.max_event_bytes,
                cut=self.cut,
            )
            self._stripper = FrameStripper(self.meter)
        elif exchange.route.kind is RouteKind.READ and 200 <= status < 300 and kind == b"text/html":
            self._page = True
        elif readable and (kind.endswith(b"json") or status >= 400):
            self._read = []
        if not early:
            self.hold_until = now + gateway.header_hold_ns
            exchange.next_check = min(exchange.next_check, self.hold_until)

    def upstream_body(self, data: bytes, now: int) -> None:
        """Body bytes of one read: the hot path."""
        stripper = self._stripper
        if stripper is None:
            self._plain_body(data, now)
        elif self._flowing:
            ready = stripper.feed(data, now)
            if ready:
                self.overhead_ns += self.answer.body(ready) - now
        else:
            self._before_first_token(stripper.feed(data, now), now)
        if self._exchange.connection.blocked_since is not None:
            self._exchange.client_is_slow()

    def steady(self) -> Flow | None:
        """Who takes the next reads, if this stream is in its steady state."""
        meter = self._meter
        if not self._flowing or meter is None or not self.answer.passes_chunks:
            return None
        if self._exchange.connection.blocked_since is not None:
            return None
        flow = self._flow
        if flow is None:
            flow = self._flow = Flow(self, meter, self.answer)
        return flow if flow.begin() else None

    @property
    def meter(self) -> StreamMeter | None:
        """What measures a stream, up to date."""
        if self._flow is not None:
            self._flow.settle()
        return self._meter

    @meter.setter
    def meter(self, meter: StreamMeter | None) -> None:
        self._meter = meter

    @property
    def sound(self) -> bool:
        """Whether the engine, when its message is whole, has served the request: its status and stream say no error."""
        meter = self._meter
        return self._status < 400 and (meter is None or meter.fault is None)

    def _before_first_token(self, ready: bytes, now: int) -> None:
        meter, answer = self.meter, self.answer
        assert meter is not None
        if meter.fault is not None and not answer.head_sent and not meter.token_events:
            if not self._exchange.dispatch.turned_down(self._status_of(meter.fault), [], now):
                self._first_frame_error(meter, meter.fault, now)
            return
        answer.body(ready)
        if meter.events:
            answer.release()
        if meter.first_token_ns is not None:
            self._flowing = True
            self._exchange.first_token(now, answer.last_write_ns)
        if answer.last_write_ns is not None:
            self.overhead_ns += max(0, answer.last_write_ns - now)

    def _plain_body(self, data: bytes, now: int) -> None:
        if self._read is not None:
            self._read_size += len(data)
            if self._read_size > MAX_READ_BODY:
                self._read = None
            else:
                self._read.append(data)
        if self._late:
            return
        answer = self.answer
        answer.body(data)
        if not answer.head_sent and len(data) >= _RELEASE_AT:
            answer.release()
        if answer.head_sent:
            self.overhead_ns += max(0, (answer.last_write_ns or now) - now)

    def upstream_complete(self, now: int) -> None:
        """The engine's message is whole. Whether the answer in it is, too, is judged here."""
        exchange, answer, meter = self._exchange, self.answer, self.meter
        exchange.engine_done(now)
        if meter is None or self._stripper is None:
            self._plain_complete(now)
            return
        meter.end(now, clean=True)
        rest = self._stripper.finish()
        if meter.fault is not None and not answer.head_sent and not meter.token_events:
            self._first_frame_error(meter, meter.fault, now)
            return
        verdict = self._judge(meter)
        if verdict.reason is Reason.STREAM_CUT:
            exchange.cut(now, "the engine ended the stream without an end marker or a finish reason")
            return
        answer.body(rest)
        answer.release()
        answer.end()
        exchange.ends(now, verdict)

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        """The connection ended before the message did."""
        exchange, meter = self._exchange, self.meter
        if exchange.engine_lost(now, untouched=untouched):
            return
        if meter is not None:
            meter.end(now, clean=False)
            if meter.done:
                # `[DONE]` is here; that the engine hung up instead of ending its message takes nothing away.
                self.finish_early(now)
                return
        exchange.cut(now, error)

    def upstream_broken(self, now: int) -> None:
        """Reading the answer failed for a reason of our own."""
        self._exchange.broken(now)

    # -- judging

    def _judge(self, meter: StreamMeter) -> Verdict:
        if meter.fault is not None:
            return self._fault(meter.fault, tokens_seen=meter.first_token_ns is not None)
        if meter.protocol_fault:
            # One event was larger than we read. The client has it all; what cannot be judged is not called failed.
            return COMPLETED
        if meter.done and meter.finish_reason in _WHOLE:
            return COMPLETED  # nearly always: the summary can wait for the record
        summary = self._summary = meter.summary()
        ending = self._exchange.backend.engine.adapter.judge(summary)
        if ending.outcome is OutcomeKind.COMPLETED:
            return COMPLETED
        return Verdict(
            ending.outcome,
            ending.reason,
            ending.stage,
            f"the engine ended the answer with finish_reason {meter.finish_reason!r}" if meter.finish_reason else "",
        )

    def _fault(self, fault: EngineFault, *, tokens_seen: bool) -> Verdict:
        ending = self._exchange.backend.engine.adapter.fault(fault, tokens_seen=tokens_seen)
        return Verdict(ending.outcome, ending.reason, ending.stage, fault.message)

    def _plain_complete(self, now: int) -> None:
        exchange, answer = self._exchange, self.answer
        if not self._late:
            answer.end()
        # Head and body left together, now: what was read last has waited for no longer than this.
        self.overhead_ns += max(0, (answer.last_write_ns or now) - now)
        status = self._status
        read, self._read = self._read, None
        body = b"".join(read) if read else b""
        adapter = exchange.backend.engine.adapter
        endpoint = exchange.route.endpoint
        if status >= 400:
            ending = adapter.error(status, body, path=endpoint)
            fault = adapter.dialect(endpoint).read_body(body).fault if body else None
            text = fault.message if fault is not None else body[:MAX_ERROR_TEXT].decode("utf-8", "replace")
            if self._late:
                request_id = exchange.ledger.request_id
                self.break_off(
                    Refusal(
                        status=status, message=text, reason=ending.reason, stage=ending.stage, request_id=request_id
                    )
                )
            exchange.ends(now, Verdict(ending.outcome, ending.reason, ending.stage, text))
            return
        if self._late:
            exchange.cut(now, "the engine answered a request for a stream with something else")
            return
        if self._page:
            # A login page, a proxy's greeting: HTTP says 200, and no client of this API can use it.
            text = "the engine answered with a web page (text/html), not with an answer of this API"
            exchange.ends(now, Verdict(OutcomeKind.FAILED, Reason.ENGINE_ERROR, "prefill", text))
            return
        if exchange.route.kind is RouteKind.READ:
            self._unread, self._whole_at = body, now
        exchange.ends(now, COMPLETED)

    def _status_of(self, fault: EngineFault) -> int:
        adapter = self._exchange.backend.engine.adapter
        return adapter.status(fault, adapter.fault(fault, tokens_seen=False))

    def _first_frame_error(self, meter: StreamMeter, fault: EngineFault, now: int) -> None:
        """The stream's first event is an error and nothing has left: the client gets its real status."""
        exchange = self._exchange
        adapter = exchange.backend.engine.adapter
        ending = adapter.fault(fault, tokens_seen=False)
        status = adapter.status(fault, ending)
        exchange.stop_engine(now)
        meter.end(now, clean=False)
        refusal = Refusal(
            status=status,
            message=fault.message,
            reason=ending.reason,
            stage=ending.stage,
            request_id=exchange.ledger.request_id,
            retry_after_s=1 if status in (429, 503) else None,
        )
        self.refuse(refusal)
        exchange.ends(now, Verdict(ending.outcome, ending.reason, ending.stage, fault.message))

    # -- ends that are not the engine's

    def refuse(self, refusal: Refusal) -> None:
        """Answer with our own status and body; only before anything has left."""
        self.answer.ours = [*self.answer.ours, reason_line(refusal)]
        if refusal.allow:
            self.answer.ours.append(b"allow: %b\r\n" % refusal.allow)
        body = error_body(self._exchange.route.endpoint, refusal)
        self.answer.refuse(refusal.status, body, retry_after_s=refusal.retry_after_s)

    def break_off(self, refusal: Refusal) -> bool:
        """Tell the client, in whatever state its answer is, that there will be no proper end.

        False when it could not be told: the connection has to be dropped, which no client takes for a whole answer.
        """
        answer, meter = self.answer, self.meter
        if meter is not None:
            meter.end(monotonic_ns(), clean=False)
        if not answer.head_sent and (meter is None or not meter.token_events):
            self.refuse(refusal)
            return True
        if not answer.sse:
            return False
        answer.release()
        # An event too large to be held may have left in part: an empty line ends it.
        glue = b"\n\n" if meter is None or meter.protocol_fault else b""
        answer.body(glue + error_event(self._exchange.route.endpoint, refusal, 0 if meter is None else meter.events))
        answer.end()
        return True

    def finish_early(self, now: int) -> None:
        """The answer is whole, by its end marker or finish reason; the engine only did not end its message."""
        exchange, meter = self._exchange, self.meter
        assert meter is not None
        exchange.stop_engine(now)
        meter.end(now, clean=False)
        self.answer.release()
        self.answer.end()
        exchange.ends(now, self._judge(meter))

    def left_after_end(self, now: int) -> bool:
        """The client left. If it had the end marker by then, it has its answer, and the request ends as that did.

        The OpenAI SDK hangs up at `[DONE]` and does not wait for the end of the message.
        """
        exchange, meter = self._exchange, self.meter
        if meter is None or not meter.done or not self.answer.head_sent:
            return False
        exchange.stop_engine(now)
        meter.end(now, clean=False)
        exchange.ends(now, self._judge(meter))
        return True

    def let_head_go(self) -> None:
        """The hold is over."""
        self.hold_until = NEVER
        self.answer.release()

    def stop(self, now: int) -> None:
        """The request is over, whatever is still to come."""
        meter = self.meter
        if meter is not None and meter.ended_at is None:
            try:
                meter.end(now, clean=False)
            except Exception:
                # A bug of ours: the request ends all the same, with the record that its stamps give.
                log.exception("request %s could not be measured to its end", self._exchange.ledger.request_id)
                self.meter = None

    def settle(self, verdict: Verdict) -> tuple[StreamSummary | None, Verdict]:
        """What was measured, and how it ended now that a plain answer is read."""
        body, self._unread = self._unread, b""
        if body:
            exchange = self._exchange
            meaning = exchange.backend.engine.adapter.dialect(exchange.route.endpoint).read_body(body)
            self._summary = summarise_body(meaning, origin_ns=exchange.received, now=self._whole_at)
            if meaning.fault is not None:  # Triton: a 200 whose body is an error
                verdict = self._fault(meaning.fault, tokens_seen=False)
        elif self._summary is None and self._meter is not None:
            self._summary = self._meter.summary(timeline=False)
        # It is over: what refers to itself in a circle would live until the collector comes by.
        self._flow = None
        self._exchange = cast("GatewayExchange", None)
        return self._summary, verdict

    def timeline(self) -> Timeline | None:
        """The stream's events, if it was one."""
        return None if self._meter is None else self._meter.timeline()
