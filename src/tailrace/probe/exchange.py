"""One request of the load generator: its stamps, its meter, and how it ended."""

from __future__ import annotations

import time
from time import monotonic_ns
from typing import Final, NamedTuple, Protocol

from tailrace.engines.base import EngineAdapter
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import S, SlowThresholds
from tailrace.model.timeline import EventKind
from tailrace.probe.connection import Connection
from tailrace.probe.known import KnownEvents
from tailrace.probe.spec import Limits
from tailrace.probe.talk import Talk
from tailrace.probe.target import Target
from tailrace.workload.plan import PlannedRequest

MAX_ERROR_BODY: Final = 64 << 10
"""Bytes of an error's body that are read for its text; the rest is counted past."""
MAX_BODY: Final = 64 << 20
TIMELINE_LIMIT: Final = 1 << 16
"""Events whose stamps are kept: all of them, for any answer that a load test asks for."""


class Ending(NamedTuple):
    """How a request ended. `Reason.NONE` is completed."""

    reason: Reason = Reason.NONE
    error: str = ""
    budget: str = ""
    stage: str = ""
    """In which it died; empty where the stamps are to tell."""


class Desk(Protocol):
    """What an exchange needs of the run it belongs to."""

    adapter: EngineAdapter
    limits: Limits
    thresholds: SlowThresholds

    def ended(self, exchange: Exchange) -> None:
        """The exchange is over; its `ending` is set."""

    def again(self, exchange: Exchange) -> None:
        """A kept-alive connection turned out to be closed: send once more, on a new one."""


class Exchange:
    """One request and its reply, as a `Receiver` of its connection.

    Stamps are monotonic (ns), `None` where the event did not happen: `intended` (the schedule's time), `queued` (the
    client had taken it up), `connect_start`/`connected` (only where a connection was opened for it), `sent` (right
    before the first byte left), `first_byte`, `headers`, `ended_at`; the meter holds those of the events.
    """

    __slots__ = (
        "_body", "_body_size", "_mode", "answer_hash", "attempts", "audio_seconds", "connect_start", "connected",
        "connection", "content_type", "desk", "ended_at", "ending", "first_byte", "headers", "intended", "known",
        "measured", "meter", "payload", "planned", "planned_tokens", "prompt_bytes", "queued", "reply_headers",
        "request_id", "reused", "sent", "sent_unix_ns", "status", "summary", "talk", "target", "text",
    )  # fmt: skip

    def __init__(
        self,
        desk: Desk,
        planned: PlannedRequest,
        *,
        target: Target,
        request_id: str,
        payload: bytes,
        prompt_bytes: int,
        measured: bool,
    ) -> None:
        self.desk = desk
        self.planned = planned
        self.target = target
        self.request_id = request_id
        self.payload = payload
        self.prompt_bytes = prompt_bytes
        self.measured = measured
        """Outside the warm-up."""
        self.planned_tokens: int | None = planned.prompt_tokens
        self.audio_seconds: float | None = None
        self.talk: Talk | None = None
        """The session that it is a turn of."""
        self.text = ""
        """Its message, where the session's history will need it."""
        self.answer_hash = ""
        self.intended: int = 0
        self.queued: int = 0
        self.connect_start: int | None = None
        self.connected: int | None = None
        self.sent: int | None = None
        self.sent_unix_ns = 0
        self.first_byte: int | None = None
        self.headers: int | None = None
        self.ended_at: int = 0
        self.connection: Connection | None = None
        self.reused: bool | None = None
        self.attempts = 1
        self.status: int | None = None
        self.reply_headers: dict[str, str] = {}
        self.content_type = ""
        self.meter: StreamMeter | None = None
        self.known: KnownEvents | None = None
        self.summary: StreamSummary | None = None
        self.ending: Ending | None = None
        self._mode = ""
        self._body: list[bytes] = []
        self._body_size = 0

    def send(self, connection: Connection) -> None:
        """Send over an idle connection."""
        self.connection = connection
        now = time.time_ns()
        sent = connection.send(self.payload, self)
        self.reused = connection.reused
        if self.sent is None:
            # A second try keeps the first try's origin: the user waited for both.
            self.sent, self.sent_unix_ns = sent, now

    # -- the receiver's side

    def on_first_byte(self, stamp: int) -> None:
        """Something of the reply has arrived."""
        self.first_byte = stamp

    def on_head(self, status: int, headers: dict[str, str], stamp: int) -> None:
        """Decide how to read the body."""
        self.headers = stamp
        self.status = status
        self.reply_headers = headers
        self.content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status != 200 or not self.target.stream:
            self._mode = "body"
        elif self.content_type == "text/event-stream":
            self._begin_stream()

    def _begin_stream(self) -> None:
        assert self.sent is not None
        self._mode = "stream"
        self.meter = StreamMeter(
            self.target.dialect, origin_ns=self.sent, thresholds=self.desk.thresholds, timeline_limit=TIMELINE_LIMIT
        )
        self.known = KnownEvents(self.meter)

    def on_body(self, data: bytes, stamp: int) -> None:
        """Feed the meter, or keep the body."""
        meter = self.meter
        if meter is not None:
            meter.feed(data, stamp)
            return
        if not self._mode:
            # No content type that says: some servers stream under another name. The first bytes tell.
            if data.lstrip()[:1] in (b"d", b"e", b":", b"i", b"r"):
                self._begin_stream()
                self.on_body(data, stamp)
                return
            self._mode = "body"
        whole_asked = self.status == 200 and not self.target.stream
        room = (MAX_BODY if whole_asked else MAX_ERROR_BODY) - self._body_size
        self._body_size += len(data)
        if room > 0:
            self._body.append(data[:room])

    def on_end(self, stamp: int) -> None:
        """The reply is whole."""
        if self.ending is None:
            self._close(stamp, self._judge(stamp, clean=True, why=""))

    def on_lost(self, stamp: int, why: str, *, garbled: bool = False) -> None:
        """The reply will not come, or not come whole."""
        if self.ending is not None:
            return
        if self.first_byte is None and self.reused and self.attempts == 1:
            self.attempts = 2
            self.connection = None
            self.desk.again(self)
            return
        self._close(stamp, Ending(Reason.PROTOCOL_ERROR, why) if garbled else self._judge(stamp, clean=False, why=why))

    # -- the run's side

    def _settled(self) -> StreamMeter | None:
        """The meter, with what was taken beside it."""
        if self.known is not None:
            self.known.settle()
        return self.meter

    def check(self, now: int) -> None:
        """Enforce the bounds; called about ten times a second."""
        if self.sent is None or self.ending is not None:
            return
        meter = self._settled()
        if pointless := self._pointless():
            self.stop(now, pointless)
        else:
            self._check_limits(now, self.sent, meter)

    def _check_limits(self, now: int, sent: int, meter: StreamMeter | None) -> None:
        limits = self.desk.limits
        first = None if meter is None else meter.first_token_ns
        if meter is not None and meter.done_at is not None:
            if now - meter.done_at > limits.done_grace_ns:
                self.stop(now, self._judge(now, clean=True, why=""))
        elif now - sent > limits.total_ns:
            self.stop(now, Ending(Reason.TOTAL_TIMEOUT, f"not done after {limits.total_ns / S:g} s", "total"))
        elif first is None:
            bound = limits.first_token_ns
            if bound is not None and self.target.stream and now - sent > bound:
                self.stop(now, Ending(Reason.FIRST_TOKEN_TIMEOUT, f"no token after {bound / S:g} s", "first_token"))
        elif limits.idle_ns is not None and meter is not None:
            last = meter.last_progress_ns or first
            if now - last > limits.idle_ns:
                self.stop(now, Ending(Reason.IDLE_TIMEOUT, f"nothing new for {limits.idle_ns / S:g} s", "idle"))

    def _pointless(self) -> Ending | None:
        """Why nothing more of the reply would be read: an answer without an end must not hold its place until then."""
        if self.meter is not None:
            fault = self.meter.protocol_fault
            return Ending(Reason.PROTOCOL_ERROR, fault) if fault else None
        if self._body_size <= MAX_BODY:
            return None
        if self.status is not None and self.status != 200:
            return self._judge_error(self.status, b"".join(self._body))
        return Ending(Reason.PROTOCOL_ERROR, f"the answer is longer than {MAX_BODY >> 20} MiB")

    def stop(self, now: int, ending: Ending) -> None:
        """End it from our side, closing its connection."""
        if self.ending is not None:
            return
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()
        self._close(now, ending)

    def fail(self, why: str, reason: Reason) -> None:
        """It could not be sent."""
        if self.ending is not None:
            return
        self._close(monotonic_ns(), Ending(reason, why, stage="ingress"))

    # -- the end

    def _close(self, stamp: int, ending: Ending) -> None:
        self.connection = None
        self.ended_at = stamp
        meter = self.meter
        if meter is not None:
            if self.known is not None:
                self.known.leave()
            meter.end(stamp, clean=False)  # without effect where the reply's own end was judged
            if self.summary is None:
                self.summary = meter.summary()
        self.ending = ending
        self.desk.ended(self)

    def _judge(self, stamp: int, *, clean: bool, why: str) -> Ending:
        """The ending that the reply itself shows, whatever its status line said."""
        if self.status is None:
            return Ending(Reason.STREAM_CUT, why, stage="prefill")
        if self.meter is not None:
            return self._judge_stream(stamp, clean=clean, why=why)
        whole = b"".join(self._body)
        if self.status != 200:
            return self._judge_error(self.status, whole)
        if not clean:
            return Ending(Reason.STREAM_CUT, why)
        if self.target.stream and self.target.dialect.read_body(whole).fault is None:
            kind = self.content_type or "no content type"
            return Ending(Reason.PROTOCOL_ERROR, f"asked for a stream, answered with {kind}")
        return self._judge_whole(whole, stamp)

    def _judge_error(self, status: int, whole: bytes) -> Ending:
        desk = self.desk
        found = desk.adapter.error(status, whole, path=self.target.path)
        fault = self.target.dialect.read_body(whole).fault
        said = fault.message if fault is not None else whole[:300].decode("utf-8", "replace")
        reason = found.reason
        if 300 <= status < 400:
            # Followed, it would be two requests measured as one.
            where = self.reply_headers.get("location", "elsewhere")
            return Ending(Reason.PROTOCOL_ERROR, f"redirected to {where} ({status})", stage=found.stage)
        return Ending(reason, " ".join(said.split()) or f"status {status}", stage=found.stage)

    def _judge_stream(self, stamp: int, *, clean: bool, why: str) -> Ending:
        meter = self.meter
        assert meter is not None
        meter.end(stamp, clean=clean)
        summary = self.summary = meter.summary()
        found = self.desk.adapter.judge(summary)
        if found.reason is not Reason.STREAM_CUT:
            return Ending(found.reason, _said(summary), stage=found.stage)
        if clean and summary.malformed == summary.events:
            what = "no event of the stream could be read" if summary.events else "the stream ended without an event"
            if (coding := self.reply_headers.get("content-encoding", "identity")) != "identity":
                what = f"the stream is compressed ({coding}), which nobody asked for"
            return Ending(Reason.PROTOCOL_ERROR, what, stage=found.stage)
        why = why or "the stream ended without an end marker and without a finish reason"
        return Ending(Reason.STREAM_CUT, why, stage=found.stage)

    def _judge_whole(self, whole: bytes, stamp: int) -> Ending:
        meaning = self.target.dialect.read_body(whole)
        assert self.sent is not None
        self.summary = summarise_body(meaning, origin_ns=self.sent, now=stamp)
        if meaning.kind is EventKind.OTHER:
            return Ending(Reason.PROTOCOL_ERROR, "the answer is none of this API")
        found = self.desk.adapter.judge(self.summary)
        return Ending(found.reason, _said(self.summary), stage=found.stage)


def _said(summary: StreamSummary) -> str:
    if summary.fault is not None:
        return summary.fault.message
    return summary.protocol_fault
