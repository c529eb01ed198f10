"""A request of a cached route: it leads the work that others follow, follows another's, or is given a kept answer.

While it leads it is any other request, but that what it relays is taken down. Its client may leave without taking the
answer from those who follow: then its record is made, and it goes on without a client until nobody follows any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from tailrace.gateway.exchange import GatewayExchange
from tailrace.gateway.head import deadline_of
from tailrace.gateway.recorded_answer import GivenAnswer, KeptAnswer, KeptHead, RecordedAnswer
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.transit import Transit
from tailrace.gateway.verdict import COMPLETED, Phase, Verdict
from tailrace.govern.cache_key import Question
from tailrace.govern.single_flight import Flight
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import Timeline

if TYPE_CHECKING:
    from tailrace.gateway.cache_desk import CacheDesk
    from tailrace.gateway.server import ClientConnection

_AT_ONCE: Final = 64 * 1024
"""Bytes written to a client in one go; the next follow when the kernel has taken them."""
_TURNS: Final = 2
"""How often a request follows another before it goes on its own."""


class GivenTransit(Transit):
    """Stands where an engine's answer would pass: nothing comes from an engine."""

    __slots__ = ("given",)

    given: StreamSummary | None

    def settle(self, verdict: Verdict) -> tuple[StreamSummary | None, Verdict]:
        """What is known of the answer from the request that got it."""
        super().settle(verdict)
        return self.given, verdict

    def timeline(self) -> Timeline | None:
        """None: its events are another request's."""
        return None


class _Nobody:
    """Where the client of a request was that goes on for others."""

    transport = None
    blocked_since: int | None = None
    pipeline: Sequence[Any] = deque()

    def abort(self) -> None:
        """It is gone already."""

    def answered(self, exchange: object, *, keep_alive: bool, now: int) -> None:
        """Nobody waits for it."""


class CachedExchange(GatewayExchange):
    """One request of a cached route."""

    desk: CacheDesk
    asked: Question | None = None
    position = 0
    """Pieces of the answer that its client has got, where it is another's or was kept."""
    age_s: int | None = None
    turns = 0
    recorded = False
    """Its client has left, its record is made; it goes on for those who follow."""
    _flight: Flight[KeptHead] | None = None
    """That it leads."""
    _other: Flight[KeptHead] | None = None
    """That it follows, or has followed to its end."""
    _given: KeptAnswer | None = None
    _begun = False
    """Something of another's answer has left for its client."""
    _token_at: int | None = None
    _asking = False
    """It waits to hear what its question means."""

    # -- the way in

    def _enter_lane(self, body: bytes, now: int) -> None:
        desk = self.gateway.cache
        self.asked = None if desk is None or self.upload is not None else desk.question(self, body)
        if desk is None or self.asked is None:
            super()._enter_lane(body, now)
            return
        self.desk = desk
        self._body = body
        self.clock.deadline_at = deadline_of(self.head.named, self.received)
        desk.serve(self, self.asked, now)

    def go_on(self, now: int) -> None:
        """No answer is here: to the engine, as any other request."""
        self._asking = False
        self.phase = Phase.UPLOAD
        body, self._body = self._body, b""
        super()._enter_lane(body, now)
        self.speech = None  # comments about our place in the line would be in every copy

    # -- leading

    @property
    def leads(self) -> Flight[KeptHead] | None:
        """The flight whose answer is ours."""
        return self._flight

    def lead(self, flight: Flight[KeptHead]) -> None:
        """What we relay is taken down, and told to whoever follows."""
        self._flight = flight
        self.ledger.cache = "miss"
        transport = self.connection.transport
        assert transport is not None
        answer = RecordedAnswer(flight, transport, head_only=False, version=self.head.version)
        answer.keep_alive = self.keep_alive
        self.answer = answer
        self.transit = Transit(self, answer)

    def wonder(self) -> None:
        """It waits to hear what its question means; its client's patience and its total budget go on."""
        self._asking = True
        self.phase = Phase.QUEUED
        self.next_check = self.clock.total_at()

    @property
    def wonders(self) -> bool:
        """Whether it still waits for that."""
        return self._asking and self.phase is not Phase.DONE

    def start_over(self) -> None:
        """As any request; what was taken down of the first attempt is no part of the next."""
        if self._flight is not None and self.answer.holding:
            self._lose_flight()
        super().start_over()

    def first_token(self, now: int, written: int | None) -> None:
        """As any request; those who follow have theirs with it."""
        super().first_token(now, written)
        if self._flight is not None:
            self._flight.mark_token()

    def client_is_slow(self) -> None:
        """As any request; but while others follow, what waits for a slow client is bounded like what is kept."""
        if self._flight is None or not self._flight.wanted or self._lags():
            super().client_is_slow()

    def followed(self) -> None:
        """Somebody follows: a slow client of ours holds up nobody else."""
        if self._upstream_paused and self._upstream is not None and not self._lags():
            self._upstream_paused = False
            self._upstream.resume()

    def _lags(self) -> bool:
        transport = self.connection.transport
        return transport is not None and transport.get_write_buffer_size() > self.desk.entry_bytes

    def _lose_flight(self) -> None:
        """There will be no whole answer to share or to keep."""
        flight, self._flight = self._flight, None
        if flight is not None:
            cast("RecordedAnswer", self.answer).flight = None
            self.desk.cache.counters.not_whole += 1
            flight.fail()

    def _leave_to_followers(self, flight: Flight[KeptHead], now: int, *, write_failed: bool) -> None:
        reason = Reason.CLIENT_WRITE_FAILED if write_failed else Reason.CLIENT_DISCONNECT
        verdict = Verdict(OutcomeKind.CANCELLED, reason, stage=self.stage(now))
        answer, meter = self.answer, self.transit.meter
        ledger = msgspec.structs.replace(
            self.ledger,
            blocked=list(self.ledger.blocked),
            passages=list(self.ledger.passages),
            client_first_write=answer.first_write_ns,
            client_last_write=answer.last_write_ns,
            http_status=answer.status,
            gateway_overhead_ns=self.transit.overhead_ns if answer.head_sent else None,
            loop_lag_ns=self.loop_lag_ns,
        )
        if self.connection.blocked_since is not None:
            ledger.client_blocked(self.connection.blocked_since, now)
        self.gateway.finished(ledger, None if meter is None else meter.summary(timeline=False), verdict, now)
        self.gateway.in_flight[ledger.request_id] = self  # it goes on
        self.recorded = True
        self.connection = cast("ClientConnection", _Nobody())
        cast("RecordedAnswer", answer).abandon()
        flight.leader = self
        if self._upstream_paused and self._upstream is not None:
            self._upstream_paused = False
            self._upstream.resume()

    def flight_unwanted(self) -> None:
        """Nobody follows any more, and our client is gone: the engine need not go on."""
        now = monotonic_ns()
        if self.phase is Phase.DONE or (self.phase is Phase.STREAMING and self.transit.left_after_end(now)):
            return
        self._close(now, Verdict(OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, stage=self.stage(now)))

    # -- following, and what was kept

    def follow(self, flight: Flight[KeptHead]) -> None:
        """The answer comes from another request. It has joined already."""
        self._other = flight
        self.turns += 1
        self._asking = False
        self.phase = Phase.QUEUED
        self.next_check = self.clock.total_at()
        self._serve_from("shared")
        if flight.released:
            self.flight_moved()

    def give(self, kept: KeptAnswer, how: str, age_s: int, now: int) -> None:
        """The answer was kept."""
        flight, self._flight = self._flight, None
        self._asking = False
        self.age_s = age_s
        self._serve_from(how)
        self._given = kept
        if flight is not None:  # those who follow get it too
            flight.begin(kept.head)
            flight.release()
            for piece in kept.pieces:
                flight.push(piece)
            flight.land()
        self._begin(kept.head, now)
        self._pump()

    def _serve_from(self, how: str) -> None:
        ledger = self.ledger
        ledger.cache, ledger.backend = how, ""
        transport = self.connection.transport
        assert transport is not None
        answer = GivenAnswer(transport, head_only=False, version=self.head.version)
        answer.keep_alive = self.keep_alive
        self.answer = answer
        self.transit = given = GivenTransit(self, answer)
        given.given = None

    def _begin(self, head: KeptHead, now: int) -> None:
        self._begun = True
        self.phase = Phase.STREAMING
        # A hit waited for nobody: what it took to find it is part of reading the request.
        self.ledger.admitted = self.ledger.parsed if self.ledger.cache == "hit" else now
        self.answer.ours = self.our_headers(now)
        self.answer.begin(head.kind, head.headers, sse=head.sse)

    def flight_moved(self) -> None:
        """There is more of it."""
        flight = self._other
        if flight is None or flight.head is None or self.phase is Phase.DONE:
            return
        if not flight.head.sse:
            return  # an answer in one piece leaves in one piece, with its length
        if not self._begun:
            self._begin(flight.head, monotonic_ns())
        self._pump()

    def flight_landed(self) -> None:
        """It is whole."""
        flight = self._other
        if flight is None or flight.head is None or self.phase is Phase.DONE:
            return
        if not self._begun:
            self._begin(flight.head, monotonic_ns())
        self._pump()

    def flight_failed(self) -> None:
        """It will not be whole. Who has got nothing of it yet goes on by itself; the others hear that it was cut."""
        if self.phase is Phase.DONE:
            return
        self._other = None
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._again)
            return
        now = monotonic_ns()
        error = "the request whose answer this one shared has failed"
        self._tell(Refusal(status=502, message=error, reason=Reason.STREAM_CUT, stage="decode"))
        self.ends(now, Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, "decode", error))

    def flight_lost(self) -> None:
        """It is too large to be held for a client that lags so far behind."""
        if self._begun:
            now = monotonic_ns()
            self._other = None
            self._drop_client()
            text = "it lagged further behind a shared answer than is kept of one"
            self.ends(now, Verdict(OutcomeKind.CANCELLED, Reason.CLIENT_WRITE_FAILED, "response", text))
        else:
            self.flight_failed()

    def _again(self) -> None:
        if self.phase is Phase.DONE or self.asked is None:
            return
        self.ledger.cache, self.ledger.backend = "", self.gateway.backends.sole_name
        self.desk.serve(self, self.asked, monotonic_ns(), alone=self.turns >= _TURNS)

    def _pump(self) -> None:
        """Give the client what is here, as fast as it takes it."""
        answer = cast("GivenAnswer", self.answer)
        while self.connection.blocked_since is None and self.phase is Phase.STREAMING:
            pieces = self._next_pieces()
            if not pieces:
                break
            if answer.sse:
                answer.pieces(pieces)
                self._note_token()
            else:
                answer.whole(pieces)
        self._note_token()
        if answer.sse and answer.holding and self._given is None:
            answer.release()  # the other's head has left, and no event has come yet
        if self.phase is Phase.STREAMING and self._has_all:
            answer.end()
            self._finish(monotonic_ns())

    def _next_pieces(self) -> list[bytes]:
        most = _AT_ONCE if self.answer.sse else 1 << 62
        given = self._given
        if given is None:
            return [] if self._other is None else self._other.take(self, most)
        taken: list[bytes] = []
        size = 0
        while self.position < len(given.pieces) and (not taken or size + len(given.pieces[self.position]) <= most):
            taken.append(given.pieces[self.position])
            size += len(taken[-1])
            self.position += 1
        return taken

    @property
    def _has_all(self) -> bool:
        given, other = self._given, self._other
        if given is not None:
            return self.position == len(given.pieces)
        return other is not None and other.landed and self.position == other.end

    def _note_token(self) -> None:
        """When the first token was with the client."""
        if self._token_at is None and self.answer.sse:
            at = 1 if self._given is not None else None if self._other is None else self._other.token_at
            if at is not None and self.position >= at:
                self._token_at = self.ledger.client_first_token = self.answer.last_write_ns

    def _finish(self, now: int) -> None:
        head = self._given.head if self._given is not None else None if self._other is None else self._other.head
        self._account(None if head is None else head.summary, now)
        self.ends(now, COMPLETED)

    def _account(self, summary: StreamSummary | None, now: int) -> None:
        """What the record says of the answer: its tokens are those of the request that got it, its times our own."""
        if summary is None:
            return
        first = self._token_at
        cast("GivenTransit", self.transit).given = StreamSummary(
            origin_at=self.received,
            first_token_at=first,
            last_token_at=None if first is None else now,
            ended_at=now,
            clean=True,
            done=summary.done,
            finish_reason=summary.finish_reason,
            ttft_ns=None if first is None else first - self.received,
            events=summary.events,
            token_events=summary.token_events,
            output_tokens=summary.output_tokens,
            output_tokens_source=summary.output_tokens_source,
            prompt_tokens=summary.prompt_tokens,
            reasoning_tokens=summary.reasoning_tokens,
            response_id=summary.response_id,
        )

    # -- what any request does, and what it means for the others

    def our_headers(self, now: int) -> list[bytes]:
        """Those of any answer, and what the cache did."""
        said = self.ledger.cache
        if not said:
            return super().our_headers(now)
        age = "" if self.age_s is None else f"; age={self.age_s}"
        return [*super().our_headers(now), f"x-tailrace-cache: {said}{age}\r\n".encode()]

    def write_unblocked(self, since: int, now: int) -> None:
        """The client takes more."""
        super().write_unblocked(since, now)
        if self._begun and self.phase is Phase.STREAMING:
            self._pump()

    def client_gone(self, now: int, *, write_failed: bool = False) -> None:
        """The client left: what is done for others goes on."""
        if self.phase is Phase.DONE or self.recorded:
            return
        took_all = not write_failed and self.connection.blocked_since is None
        if self._other is not None and self._begun and took_all and self._said_all(now):
            return
        flight = self._flight
        if flight is not None and flight.wanted and not self._asking:
            if self.phase is Phase.STREAMING and took_all and self.transit.left_after_end(now):
                return
            self._leave_to_followers(flight, now, write_failed=write_failed)
            return
        super().client_gone(now, write_failed=write_failed)

    def _said_all(self, now: int) -> bool:
        """The end marker was here, and our client hung up at it: the request ends as the other's will."""
        other = self._other
        assert other is not None
        leader = self.desk.leader_of(other)
        meter = None if leader is None else leader.transit.meter
        if meter is None or not meter.done or self.position != other.end:
            return False
        self._account(meter.summary(timeline=False), now)
        self.ends(now, COMPLETED)
        return True

    def _tell(self, refusal: Refusal) -> None:
        self._lose_flight()
        super()._tell(refusal)

    def ends(self, now: int, verdict: Verdict) -> None:
        """It has ended: its answer is kept and shared, if it is whole."""
        flight = self._flight
        if flight is not None and self.phase is not Phase.DONE:
            if verdict.outcome is OutcomeKind.COMPLETED:
                self._flight = None
                cast("RecordedAnswer", self.answer).flight = None
                self.desk.landed(self, flight, now)
            else:
                self._lose_flight()
        super().ends(now, verdict)

    def _let_go(self, now: int) -> None:
        other, self._other = self._other, None
        if other is not None:
            other.leave(self)
        super()._let_go(now)

    def _close(self, now: int, verdict: Verdict) -> None:
        if self.phase is Phase.DONE:
            return
        self._lose_flight()
        self._given = None
        if not self.recorded:
            super()._close(now, verdict)
            return
        self._let_go(now)
        self.phase = Phase.DONE
        self.dispatch.close(verdict, now)
        self.transit.stop(now)
        self.transit.settle(verdict)
        self._body = b""
        self.gateway.in_flight.pop(self.ledger.request_id, None)
