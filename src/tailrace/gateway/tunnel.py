"""The two halves of a WebSocket session in one object: what one end does, the other end hears.

Bytes go on as they were read, each direction past a `FrameWatcher`. Whoever ends the session, both connections end
here: by the Close frames of the two ends where they exchange them, else by a Close frame of our own, which is only ever
written between two frames. A side that is in the middle of one gets it when that frame is whole, or is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from os import urandom
from time import monotonic_ns
from typing import Final, Protocol

from tailrace.gateway.budget_clock import NEVER
from tailrace.gateway.upstream import UpstreamConnection
from tailrace.gateway.verdict import Verdict
from tailrace.measure.websocket import (
    BAD_TEXT,
    GOING_AWAY,
    NO_CODE,
    PROTOCOL_ERROR,
    SERVER_ERROR,
    TOO_BIG,
    Close,
    FrameWatcher,
    close_frame,
)
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import S

log = logging.getLogger(__name__)

CLOSING_NS: Final = 5 * S
"""How long an end may take to answer a Close frame, or to finish the frame that ours has to wait for."""
LINGER_S: Final = 1.0
"""How long an engine that has a Close frame is still read: closing at once could take the frame back with a reset."""

TLS_BUFFER: Final = 64 * 1024
"""Bytes that may wait for an engine behind TLS before the client is not read."""

CLIENT: Final = "client"
ENGINE: Final = "engine"
_WRONG: Final = frozenset({PROTOCOL_ERROR, 1003, BAD_TEXT, TOO_BIG, 1010})
"""Codes that accuse the other end of what it sent."""
_ENGINE_FAILED: Final = frozenset({GOING_AWAY, SERVER_ERROR, 1012, 1013, 1014})


class Owner(Protocol):
    """Whose session it is."""

    def to_client(self, data: bytes, now: int) -> None:
        """Write to the client; `now` is the read that these bytes came in (ns)."""

    def pause_client(self) -> None:
        """Read no more from the client: the engine does not take it."""

    def resume_client(self) -> None:
        """Read from the client again."""

    def look_at(self, when: int) -> None:
        """Sweep the tunnel at `when` (ns)."""

    def broken(self, now: int) -> None:
        """We failed over it."""

    def session_over(self, verdict: Verdict, now: int, *, client: str) -> None:
        """Everything is said, and the engine is let go. `client`: `close` its connection once it has taken all,
        `linger` for its answer, `drop` it, or it is `gone`.
        """


def verdict_of(who: str, said: Close) -> Verdict:
    """How a session ended that one end closed.

    1000, no code, and the application's own codes (3000-4999) are a proper end. An engine that goes away or fails has
    failed; a code that accuses what the other end sent is a protocol error.
    """
    code, text = said.code, _sentence(who, said)
    if code in _WRONG:
        return Verdict(OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, "decode" if who == CLIENT else "ingress", text)
    if who == ENGINE and code in _ENGINE_FAILED:
        return Verdict(OutcomeKind.FAILED, Reason.ENGINE_ERROR, "decode", text)
    if code == 1008:
        if who == ENGINE:
            return Verdict(OutcomeKind.REJECTED, Reason.BAD_REQUEST, "ingress", text)
        return Verdict(OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, "decode", text)
    if who == CLIENT and code in (SERVER_ERROR, 1012, 1013, 1014):
        return Verdict(OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, "decode", text)
    return Verdict(OutcomeKind.COMPLETED, Reason.NONE, error="" if code in (1000, NO_CODE) else text)


def _sentence(who: str, said: Close) -> str:
    code = "without a code" if said.code == NO_CODE else f"with {said.code}"
    return f"the {who} closed {code}{f': {said.reason}' if said.reason else ''}"


class EngineSide(asyncio.Protocol):
    """The engine's connection once it speaks WebSocket. Takes the place of the HTTP client on its transport."""

    __slots__ = ("_connection", "_timer", "full", "transport", "tunnel")

    def __init__(self, connection: UpstreamConnection) -> None:
        assert connection.transport is not None
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self.transport = connection.transport
        self.tunnel: Tunnel | None = None
        self.full = False
        """The engine takes no more: the client is not read."""
        self.transport.set_protocol(self)
        # A limit of 0 has a write tried at once, so that `full` says what the engine does not take. TLS would take it
        # for "always full".
        secure = self.transport.get_extra_info("sslcontext") is not None
        self.transport.set_write_buffer_limits(high=TLS_BUFFER if secure else 0)

    def data_received(self, data: bytes) -> None:
        """Bytes of the engine; nobody's once it lingers."""
        if self.tunnel is not None:
            self.tunnel.from_engine(data)

    def eof_received(self) -> bool:
        """The engine closed; `connection_lost` judges."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection.connection_lost(exc)  # its pool counts it
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            tunnel.engine_gone(monotonic_ns(), f" ({exc})" if exc else "")

    def pause_writing(self) -> None:
        """The engine's side of the kernel is full."""
        self.full = True
        if self.tunnel is not None:
            self.tunnel.owner.pause_client()

    def resume_writing(self) -> None:
        """The engine takes more."""
        self.full = False
        if self.tunnel is not None:
            self.tunnel.owner.resume_client()

    def linger(self) -> None:
        """Wait a moment for the engine to close; throw away what it still says."""
        self.tunnel = None
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)

    def abort(self) -> None:
        """Close at once."""
        self.tunnel = None
        self.transport.abort()


class Tunnel:
    """Both pumps of one session. `over` is when neither connection is the session's any more."""

    def __init__(self, owner: Owner, engine: EngineSide, up: FrameWatcher, down: FrameWatcher, now: int) -> None:
        self.owner = owner
        self.up, self.down = up, down
        self.started = now
        self.over = False
        self.deadline = NEVER
        """When an end that is under way is no longer waited for (ns)."""
        self._engine = engine
        self._first: tuple[str, Close] | None = None
        """Who closed first, and how."""
        self._farewell = b""
        self._verdict: Verdict | None = None
        """How it ends, where we end it and wait for the engine to finish its frame."""
        self._told = False
        """The engine has a Close frame, the client's or ours."""
        engine.tunnel = self

    @property
    def last_data_ns(self) -> int:
        """When data last went on, in either direction; the session's start where none has."""
        return max(self.started, self.up.last_data_ns or 0, self.down.last_data_ns or 0)

    @property
    def engine_is_full(self) -> bool:
        """Whether the engine takes no more at the moment."""
        return self._engine.full

    # -- pumps

    def from_client(self, data: bytes) -> None:
        """Bytes as the client sent them."""
        if self.over or self._verdict is not None:
            return
        now = monotonic_ns()
        try:
            ready = self.up.feed(data, now)
            if ready and not self._engine.transport.is_closing():  # its end is on its way to us
                self._engine.transport.write(ready)
            if self.up.fault is not None:
                self._at_fault(CLIENT, self.up.fault, now)
            elif self.up.close is not None:
                self._closed_by(CLIENT, self.up.close, now)
        except Exception:
            log.exception("a WebSocket session could not be relayed to the engine")
            self.owner.broken(now)

    def from_engine(self, data: bytes) -> None:
        """Bytes as the engine sent them."""
        if self.over:
            return
        now = monotonic_ns()
        try:
            ready = self.down.feed(data, now)
            if ready:
                self.owner.to_client(ready, now)
            if self._verdict is not None:
                if self.down.at_boundary:
                    self._take_leave(self._verdict, now)
            elif self.down.fault is not None:
                self._at_fault(ENGINE, self.down.fault, now)
            elif self.down.close is not None:
                self._closed_by(ENGINE, self.down.close, now)
        except Exception:
            log.exception("a WebSocket session could not be relayed to the client")
            self.owner.broken(now)

    # -- ends

    def _closed_by(self, who: str, said: Close, now: int) -> None:
        if self._first is None:
            self._first = who, said
            self._wait_until(now + CLOSING_NS)
        if self.up.close is not None and self.down.close is not None:
            # Both have said that they are done, and have heard it.
            self._let_engine_go()
            self._end(verdict_of(*self._first), now, client="close")

    def _at_fault(self, who: str, fault: Close, now: int) -> None:
        stage = "ingress" if who == CLIENT else "decode"
        verdict = Verdict(
            OutcomeKind.FAILED,
            Reason.PROTOCOL_ERROR,
            stage,
            f"closed with {fault.code}: the {who} sent: {fault.reason}",
        )
        self.close(fault.code, f"{who}: {fault.reason}", verdict, now)

    def close(self, code: int, reason: str, verdict: Verdict, now: int, *, engine_code: int = 0) -> None:
        """End it from here: a Close frame for each side that has not said its own.

        `engine_code` is the engine's where it differs. Returns with the session over, or waiting for the engine to
        finish a frame that has left in part.
        """
        if self.over or self._verdict is not None:
            return
        self.up.halt()
        self.down.halt()
        self._verdict = verdict
        self._farewell = close_frame(code, reason)
        self._tell_engine(close_frame(engine_code or code, reason, mask=urandom(4)))
        if self.down.at_boundary:
            self._take_leave(verdict, now)
        else:
            self._wait_until(now + CLOSING_NS)

    def _wait_until(self, when: int) -> None:
        self.deadline = min(self.deadline, when)
        self.owner.look_at(self.deadline)

    def _take_leave(self, verdict: Verdict, now: int) -> None:
        self._say_farewell(now)
        self._let_engine_go()
        self._end(verdict, now, client="linger")

    def _say_farewell(self, now: int) -> None:
        if self.down.close is None:
            self.owner.to_client(self._farewell, now)

    def engine_gone(self, now: int, error: str) -> None:
        """The engine's connection ended."""
        if self.over:
            return
        if self.down.close is not None:
            assert self._first is not None
            self._end(verdict_of(*self._first), now, client="linger")
            return
        verdict = self._verdict
        if verdict is None and self._first is not None:  # the client closed, and this is all that the engine answers
            verdict = verdict_of(*self._first)
            self._farewell = close_frame(self._first[1].code)
        elif verdict is None:
            text = f"the engine ended the connection without a Close frame{error}"
            verdict = Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, "decode", text)
            self._farewell = close_frame(SERVER_ERROR, "the engine ended the connection")
        if self.down.at_boundary:
            self._say_farewell(now)
        self._end(verdict, now, client="linger" if self.down.at_boundary else "drop")

    def client_gone(self, now: int, *, write_failed: bool) -> None:
        """The client's connection ended."""
        if self.over:
            return
        verdict = self._verdict
        if verdict is None and self._first is not None:
            verdict = verdict_of(*self._first)
        elif verdict is None:
            reason = Reason.CLIENT_WRITE_FAILED if write_failed else Reason.CLIENT_DISCONNECT
            text = "the client ended the connection without a Close frame"
            verdict = Verdict(OutcomeKind.CANCELLED, reason, "decode", text)
        if self.down.close is not None:  # the answer that the client owes it
            self._tell_engine(close_frame(self.down.close.code, mask=urandom(4)))
        elif not self._engine.full:  # behind bytes that it does not take, the engine would hear of it too late
            self._tell_engine(close_frame(GOING_AWAY, "the client is gone", mask=urandom(4)))
        self._let_engine_go()
        self._end(verdict, now, client="gone")

    def sweep(self, now: int) -> None:
        """An end that is under way may take too long."""
        if self.over or now < self.deadline:
            return
        verdict = self._verdict
        if verdict is None:
            assert self._first is not None
            verdict = verdict_of(*self._first)
            if self.down.close is None and self.down.at_boundary:
                # The engine owes the answer; the client need not wait for it.
                self._farewell = close_frame(self._first[1].code)
                self._say_farewell(now)
                self.drop_engine()
                self._end(verdict, now, client="linger")
                return
        self.drop_engine()
        self._end(verdict, now, client="drop")

    def drop_engine(self) -> None:
        """Nothing more is wanted of the engine, at once."""
        self._engine.abort()

    def _tell_engine(self, close: bytes) -> None:
        """Write a Close frame to the engine, where it has none and is between two frames."""
        transport = self._engine.transport
        if self._told or self.up.close is not None or not self.up.at_boundary or transport.is_closing():
            return
        self._told = True
        transport.write(close)

    def _let_engine_go(self) -> None:
        """Where the engine has its Close frame, give it a moment to answer; else it can only be cut off."""
        if self._told or self.up.close is not None:
            self._engine.linger()
        else:
            self._engine.abort()

    def _end(self, verdict: Verdict, now: int, *, client: str) -> None:
        self.over = True
        self._engine.tunnel = None
        self.owner.session_over(verdict, now, client=client)
