"""Comments to a stream that waits in its lane: where it stands, and how long it is likely to be.

An SSE comment is a line that begins with a colon; every reader of event streams skips it. The first one sends the head:
from then on the answer is a 200 and an event stream, whatever the engine says later. So an engine's error status, or an
answer that is no stream, becomes an error event (`Transit`), and a budget that runs out does too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.gateway.engine_head import EngineHead
from tailrace.gateway.verdict import Phase

if TYPE_CHECKING:
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.head import Header

_HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would keep the comments back until its buffer is full.
    (b"x-accel-buffering", b"no"),
]
_HEAD: Final = EngineHead(200, _HEADERS)


class QueueSpeech:
    """Of one request that waits."""

    __slots__ = ("_every_ns", "next_at")

    def __init__(self, every_ns: int, now: int) -> None:
        self._every_ns = every_ns
        self.next_at = now + every_ns
        """When the next comment is due. The first comes after one interval: a short wait costs nobody its status."""

    def say(self, exchange: GatewayExchange, now: int) -> None:
        """Write a comment if one is due. Nothing is written to a client that takes nothing."""
        if now < self.next_at or exchange.phase is not Phase.QUEUED:
            return
        self.next_at = now + self._every_ns
        if exchange.connection.blocked_since is not None:
            return
        answer = exchange.answer
        if not answer.head_sent:
            answer.ours = exchange.our_headers(now)
            answer.begin(_HEAD, _HEADERS, sse=True)
            answer.release()
        answer.body(comment(*exchange.gateway.lanes.standing(exchange.ledger.request_id, now)))


def comment(position: int | None, predicted_wait_ns: int | None) -> bytes:
    """One comment; what is not known is left out."""
    words = [b": queued"]
    if position is not None:
        words.append(b"position=%d" % position)
    if predicted_wait_ns is not None:
        words.append(b"predicted_wait_ms=%d" % max(0, round(predicted_wait_ns / 1e6)))
    return b" ".join(words) + b"\n\n"
