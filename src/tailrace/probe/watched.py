"""Watched exchanges: those of which more is wanted than times, or whose client leaves by plan.

A class of its own, so that plain requests pay nothing for it on any read.
"""

from __future__ import annotations

import asyncio
import hashlib
from time import monotonic_ns

from tailrace.measure.answer_text import body_text, stream_text
from tailrace.model.outcome import Reason
from tailrace.probe.connection import Connection
from tailrace.probe.exchange import MAX_BODY, Desk, Ending, Exchange
from tailrace.probe.target import Target
from tailrace.workload.plan import PlannedRequest


class WatchedExchange(Exchange):
    """An exchange that keeps the answer's text until it was used, and leaves when its plan says so."""

    __slots__ = ("_keeps", "_kept", "_kept_size", "_timer")

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
        keeps_text: bool,
    ) -> None:
        super().__init__(
            desk,
            planned,
            target=target,
            request_id=request_id,
            payload=payload,
            prompt_bytes=prompt_bytes,
            measured=measured,
        )
        self._keeps = keeps_text
        self._kept: list[bytes] = []
        self._kept_size = 0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, connection: Connection) -> None:
        """Send, and set the time to leave."""
        super().send(connection)
        leave = self.planned.leave
        if leave is not None and leave.after_ns is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(leave.after_ns / 1e9, self._leave)

    def _begin_stream(self) -> None:
        super()._begin_stream()
        # Every read has to come here: known events are otherwise taken where they are stamped.
        self.known = None

    def on_body(self, data: bytes, stamp: int) -> None:
        """Feed the meter; then see whether that was enough."""
        super().on_body(data, stamp)
        if self._keeps and self._kept_size <= MAX_BODY:
            self._kept.append(data)
            self._kept_size += len(data)
        leave, meter = self.planned.leave, self.meter
        if (
            leave is not None
            and leave.tokens is not None
            and meter is not None
            and meter.token_events >= leave.tokens
            # Whole already: there is nothing to leave.
            and not meter.done
            and not meter.finish_reason
        ):
            self._leave()

    def _leave(self) -> None:
        meter = self.meter
        if self.ending is None and not (meter is not None and meter.done):
            self.stop(monotonic_ns(), Ending(Reason.LEFT_AS_PLANNED))

    def _close(self, stamp: int, ending: Ending) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super()._close(stamp, ending)

    def take_text(self) -> str:
        """The answer's text, as far as it came; what was kept for it is let go."""
        kept, self._kept, self._keeps = b"".join(self._kept), [], False
        if self.status != 200:
            return ""
        return body_text(kept) if self.meter is None else stream_text(kept)


def text_hash(text: str) -> str:
    """64 bits that tell texts apart, in hexadecimal."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
