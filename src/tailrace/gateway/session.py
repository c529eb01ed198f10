"""A WebSocket session as a request: admitted, sent and recorded like any other, then relayed both ways.

Until the engine answers the handshake it is a plain GET: an engine that refuses is relayed as it is. With its 101 the
two connections become one `Tunnel`. The session holds its place in its lane to its end: that is how long the engine
works for it. No ping of our own is ever sent, those of the two ends cross us; silence has a budget instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Final

from tailrace.gateway.budget_clock import NEVER
from tailrace.gateway.engine_head import AnswerHead, EngineHead
from tailrace.gateway.exchange import GatewayExchange
from tailrace.gateway.handshake import (
    SWITCHING,
    UPGRADE_REQUIRED,
    all_values,
    model_of,
    offers_websocket,
    refuse_offer,
    upgrade_required,
    with_offer,
    wrong_answer,
)
from tailrace.gateway.head import Header
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.routes import Route, RouteKind
from tailrace.gateway.tunnel import CLOSING_NS, EngineSide, Tunnel
from tailrace.gateway.upstream import UpstreamConnection
from tailrace.gateway.verdict import Phase, Verdict
from tailrace.gateway.work import Work
from tailrace.measure.websocket import (
    GOING_AWAY,
    SERVICE_RESTART,
    FrameWatcher,
    MessageObserver,
    reserved_bits,
)
from tailrace.model.outcome import OutcomeKind, Reason

log = logging.getLogger(__name__)

EARLY_BYTES: Final = 64 * 1024
"""What a client may send before the engine has answered the handshake; then it is not read until then."""
MAX_BLOCKED: Final = 4096
"""Intervals of a slow client that are kept apart; a session may last for hours."""


def takes_up(method: bytes, where: Route, version: str, headers: list[Header], passthrough: Sequence[str]) -> bool:
    """Whether a request offers to become a WebSocket on a path that may be one."""
    return (
        (where.kind is RouteKind.SOCKET or where.endpoint in passthrough)
        and method == b"GET"
        and version == "1.1"
        and offers_websocket(headers)
    )


class SessionExchange(GatewayExchange):
    """One session, from its handshake to its record."""

    fresh_only = True
    """A connection that becomes a session leaves the pool; an idle one is worth more to the next request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tunnel: Tunnel | None = None
        self.taken = False
        """The client's connection speaks no more HTTP: its bytes come to us."""
        self._bounds = self.gateway.config.websocket
        self._early: list[bytes] = []
        self._early_size = 0
        self._client_paused = False
        self._watched_fd = -1
        self._drain_until = NEVER

    # -- the handshake

    def judge_offer(self, refusal: Refusal | None) -> Refusal | None:
        """The request offers a WebSocket: why it is not taken up. No further request comes on this connection."""
        self.keep_alive = False
        refusal = refusal or refuse_offer(self.head.headers, self.head.named)
        if refusal is None:
            self.heir = self
        return refusal

    def start(self, now: int) -> None:
        """It is this request's turn on its connection."""
        self.started = True
        self.ledger.prompt_bytes = 0
        if self.refusal is None and not self.taken:
            self.refusal = upgrade_required("this path speaks WebSocket only: the request has to ask for it")
        if self.refusal is not None:
            self.refuse(self.refusal, now)
            return
        self.ledger.parsed = now
        self.ledger.stream = False  # no token is read of it
        self.clock.streamed = True  # so the first_token budget holds for the engine's answer to the handshake
        if self.route.kind is RouteKind.SOCKET:
            self.work = Work(model=model_of(self.head.target), stream=True)
            self.ledger.model = self.work.model
            self._enter_lane(b"", now)
        else:
            self.send_unqueued(b"", now)

    def our_headers(self, now: int) -> list[bytes]:
        """The header lines that the gateway adds to every answer; a 426 says what would be accepted."""
        lines = super().our_headers(now)
        return [*lines, UPGRADE_REQUIRED] if self.refusal is not None and self.refusal.status == 426 else lines

    def _outgoing(self) -> bytes:
        return with_offer(super()._outgoing())

    def send_on(self, connection: UpstreamConnection) -> None:
        """There is a connection to the chosen engine."""
        super().send_on(connection)
        connection.on_switch = self._switched

    def _switched(self, connection: UpstreamConnection, headers: list[Header], rest: bytes, now: int) -> None:
        """The engine answered 101, and `rest` behind it."""
        try:
            self._begin(connection, headers, rest, now)
        except Exception:
            log.exception("a WebSocket session could not begin")
            connection.abort()
            self.broken(now)

    def _begin(self, connection: UpstreamConnection, headers: list[Header], rest: bytes, now: int) -> None:
        wrong = wrong_answer(self.head.named[b"sec-websocket-key"].strip(), headers)
        if wrong:
            stage = self.stage(now)
            self._let_go(now)
            self._tell(Refusal(status=502, message=wrong, reason=Reason.PROTOCOL_ERROR, stage=stage))
            self.ends(now, Verdict(OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, stage, wrong))
            return
        self.head_seen(now)
        kind = EngineHead(101, headers)
        head = AnswerHead(kind, headers)
        self.backend.engine.answered(kind.server)
        reserved = reserved_bits(all_values(headers, b"sec-websocket-extensions"))
        self.phase = Phase.STREAMING
        self.dispatch.token(now)  # its engine serves again, which its end, hours from now, would tell too late
        if self._lane_place == "running":
            self.gateway.lanes.first_token(self.ledger.request_id, now)
        heard = self.gateway.listeners(self) if self.gateway.listeners is not None else (None, None)
        self.tunnel = Tunnel(
            self,
            EngineSide(connection),
            self._watcher(heard[0], reserved),
            self._watcher(heard[1], reserved, down=True),
            now,
        )
        self.answer.switch(head.render(self.our_headers(now), framing=SWITCHING, keep_alive=True))
        early, self._early, self._early_size = self._early, [], 0
        if rest:
            self.tunnel.from_engine(rest)
        for data in early:
            self.tunnel.from_client(data)
        if not self.tunnel.over and not self.tunnel.engine_is_full:
            self.resume_client()
        self.next_check = self.next_budget()

    def _watcher(self, observer: MessageObserver | None, reserved: int, *, down: bool = False) -> FrameWatcher:
        return FrameWatcher(
            masked=not down,
            message_bytes=self._bounds.message_bytes,
            reserved=reserved,
            observer=None if observer is None else _Guarded(observer),
            observed_bytes=self.gateway.max_event_bytes,
        )

    # -- the client's connection

    def take_over(self) -> None:
        """The request is whole, and the bytes behind it are ours."""
        self.taken = True
        self.upload_complete()

    def from_client(self, data: bytes) -> None:
        """Bytes of a client that speaks no more HTTP."""
        if self.phase in (Phase.DONE, Phase.DRAINING):
            return
        if self.tunnel is not None:
            self.tunnel.from_client(data)
            return
        self._early.append(data)
        self._early_size += len(data)
        if self._early_size > EARLY_BYTES:
            self.pause_client()

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        """The client left."""
        if self.tunnel is None or self.phase in (Phase.DONE, Phase.DRAINING):
            super().client_gone(now, write_failed=write_failed)
        else:
            self.tunnel.client_gone(now, write_failed=write_failed)

    def write_unblocked(self, since: int, now: int) -> None:
        """The client has taken everything written so far."""
        super().write_unblocked(since, now)
        blocked = self.ledger.blocked
        if len(blocked) > MAX_BLOCKED:
            # Their sum is what the record shows; where in the hours they lay is given up.
            start, stop = blocked.pop()
            before = blocked[-1]
            blocked[-1] = (before[0], before[1] + stop - start)

    # -- what its tunnel asks and tells

    def to_client(self, data: bytes, now: int) -> None:
        """Write to the client; when it is slow, the engine is not read."""
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            return  # its end is on its way to us
        written = self.answer.body(data)
        self.transit.overhead_ns += max(0, written - now)
        if self.connection.blocked_since is not None:
            self.client_is_slow()

    def pause_client(self) -> None:
        """Read no more from the client. The kernel is asked to tell when it leaves meanwhile."""
        transport = self.connection.transport
        if not self._client_paused and transport is not None and not transport.is_closing():
            self._client_paused = True
            transport.pause_reading()
            sock = transport.get_extra_info("socket")
            self._watched_fd = -1 if sock is None else sock.fileno()
            self.gateway.hangups.watch(self._watched_fd, self)

    def hung_up(self) -> None:
        """The client left while nobody reads from it."""
        self.connection.hung_up()

    def resume_client(self) -> None:
        """Read from the client again."""
        transport = self.connection.transport
        if self._client_paused and transport is not None:
            self._client_paused = False
            self.gateway.hangups.forget(self._watched_fd, self)
            if not transport.is_closing():
                transport.resume_reading()

    def look_at(self, when: int) -> None:
        """Sweep at `when` (ns), or earlier."""
        self.next_check = min(self.next_check, when)

    def session_over(self, verdict: Verdict, now: int, *, client: str) -> None:
        """Everything is said, and the engine is let go."""
        if self.phase in (Phase.DONE, Phase.DRAINING):
            return
        self._upstream = None
        self._leave_lane(now)
        if client != "gone":
            self.ledger.upstream_end = now
        if client == "drop":
            self._drop_client()
        # A connection whose request is not whole is given time for the client's last words before it is closed.
        self.uploaded = client != "linger"
        if client == "gone":
            self._close(now, verdict)
        else:
            self.ends(now, verdict)

    def ends(self, now: int, verdict: Verdict) -> None:
        """Everything is written; the record waits only for the client to take it, and not for long."""
        super().ends(now, verdict)
        if self.phase is Phase.DRAINING:
            self._drain_until = self.next_check = now + CLOSING_NS

    def _drop_upstream(self, now: int) -> None:
        if self.tunnel is not None and self._upstream is not None:
            self._upstream = None
            self.tunnel.over = True
            self.tunnel.drop_engine()
            self.dropped = (now, monotonic_ns())
        else:
            super()._drop_upstream(now)

    def _close(self, now: int, verdict: Verdict) -> None:
        if self.tunnel is not None:
            self.ledger.prompt_bytes = self.tunnel.up.bytes_seen
        elif self._early_size:
            self.uploaded = False  # frames of an impatient client are unread: closing at once would reset the answer
        self._early.clear()
        self.resume_client()
        super()._close(now, verdict)

    # -- time

    def next_budget(self) -> int:
        """The earliest instant at which something may be over."""
        tunnel = self.tunnel
        if tunnel is None:
            return super().next_budget()
        if self.phase is Phase.DRAINING:
            return self._drain_until
        return min(
            tunnel.deadline, self._idle_until(tunnel), self._session_until(tunnel), self.clock.deadline_at or NEVER
        )

    def _idle_until(self, tunnel: Tunnel) -> int:
        return tunnel.last_data_ns + int(self._bounds.idle)

    def _session_until(self, tunnel: Tunnel) -> int:
        longest = self._bounds.session
        return NEVER if longest is None else tunnel.started + int(longest)

    def sweep(self, now: int) -> None:
        """A budget may be over, or a client that is not read may have left."""
        if self.phase is Phase.DONE:
            return
        tunnel = self.tunnel
        if tunnel is None:
            super().sweep(now)
            return
        if self.phase is Phase.DRAINING:
            if now >= self._drain_until:
                assert self._verdict is not None
                self._drop_client()
                self._close(now, self._verdict)
            return
        tunnel.sweep(now)
        if not tunnel.over:
            self._check_budgets(tunnel, now)
        self.next_check = max(self.next_budget(), now + 1)

    def _check_budgets(self, tunnel: Tunnel, now: int) -> None:
        deadline = self.clock.deadline_at
        if deadline is not None and now >= deadline:
            text = "the client's deadline is over"
            verdict = Verdict(OutcomeKind.CANCELLED, Reason.DEADLINE, self.stage(now), text, "deadline")
        elif now >= self._session_until(tunnel):
            text = f"the session's {int(self._bounds.session or 0) / 1e9:g} s are over"
            verdict = Verdict(OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT, self.stage(now), text, "total")
        elif now >= self._idle_until(tunnel):
            text = f"no data for {int(self._bounds.idle) / 1e9:g} s"
            verdict = Verdict(OutcomeKind.TIMED_OUT, Reason.IDLE_TIMEOUT, self.stage(now), text, "idle")
        else:
            return
        tunnel.close(GOING_AWAY, text, verdict, now)

    def cancel(self, now: int, reason: Reason, why: str) -> None:
        """Somebody other than its client ends it: both sides get a Close frame that says why."""
        tunnel = self.tunnel
        if tunnel is None or tunnel.over or self.phase in (Phase.DONE, Phase.DRAINING):
            super().cancel(now, reason, why)
            return
        verdict = Verdict(OutcomeKind.CANCELLED, reason, self.stage(now), why)
        code = SERVICE_RESTART if reason is Reason.SHUTDOWN else GOING_AWAY
        tunnel.close(code, why, verdict, now, engine_code=GOING_AWAY)
        if not tunnel.over:  # in the middle of a frame, and there is no time to wait for its end
            tunnel.deadline = now
            tunnel.sweep(now)


Listeners = Callable[[SessionExchange], tuple[MessageObserver | None, MessageObserver | None]]
"""For a session that begins: who hears its client's messages, and who its engine's."""


class _Guarded:
    """An observer whose failure ends its observing and not the session."""

    def __init__(self, observer: MessageObserver) -> None:
        self._observer: MessageObserver | None = observer

    def text(self, message: bytes, now: int, *, compressed: bool) -> None:
        if self._observer is not None:
            try:
                self._observer.text(message, now, compressed=compressed)
            except Exception:
                self._observer = None
                log.exception("a session's observer failed; it hears no more of it")
