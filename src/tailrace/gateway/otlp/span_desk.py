"""Where spans arrive, whatever they came by: decoded a few at a time, handed to those who understand them, counted.

Everything is done in the loop that may also relay streams, so a post is worked on in turns of about half a millisecond:
a thread would hold the interpreter for as long, and a stream would wait for it no less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import time_ns
from typing import Any, Final, Protocol

import msgspec

from tailrace.measure.otlp_value import OtlpError
from tailrace.model.span import Span
from tailrace.model.thresholds import S

TURN: Final = 24
"""Spans decoded and read in one turn of the loop: at some 20 µs each, half a millisecond."""
AT_ONCE: Final = 4
"""Posts here at once, while they are read and worked on: they bound the memory. The next one is told to come again, as
exporters do by themselves."""
LATE_NS: Final = 60 * S
"""A span that ended so long before it came is counted as late: its record may have been looked at without it."""


class SpanTaker(Protocol):
    """Somebody who understands some spans."""

    def take(self, spans: Sequence[Span], received_unix_ns: int) -> int:
        """Take them, or look away; returns how many were understood. Never waits; a trace may come in several calls."""


class SpanCounters(msgspec.Struct):
    """What came and what became of it, since the start."""

    posts: int = 0
    received: int = 0
    understood: int = 0
    malformed: int = 0
    late: int = 0
    refused_posts: int = 0
    """Too large, too many at once, or no OTLP: nothing is known of the spans in them."""


class Reception(msgspec.Struct, frozen=True):
    """What a post's sender is told."""

    rejected: int = 0
    why: str = ""


class BusyError(Exception):
    """There is no place for one more post now."""


class SpanDesk:
    """One for a process; `takers` may be added to until the first post."""

    def __init__(self, *takers: SpanTaker) -> None:
        self.takers: list[SpanTaker] = list(takers)
        self.counters = SpanCounters()
        self._working = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of the places, for as long as a post is held. BusyError where all are taken."""
        if self._working >= AT_ONCE:
            self.counters.refused_posts += 1
            raise BusyError
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1

    async def work(self, spans: Iterator[Span | OtlpError | None]) -> Reception:
        """Take a post's spans. `OtlpError` where the post is none; the spans before that place were taken."""
        try:
            return await self._work(spans)
        except OtlpError:
            self.counters.refused_posts += 1
            raise

    async def _work(self, spans: Iterator[Span | OtlpError | None]) -> Reception:
        counters = self.counters
        counters.posts += 1
        received = time_ns()
        rejected, why = 0, ""
        batch: list[Span] = []
        turn = 0
        for span in spans:
            turn += 1
            if isinstance(span, OtlpError):
                rejected += 1
                why = why or str(span)
            elif span is not None:
                batch.append(span)
            if turn == TURN:
                if batch:
                    self._hand_on(batch, received)
                batch, turn = [], 0
                await asyncio.sleep(0)
        if batch:
            self._hand_on(batch, received)
        counters.received += rejected
        counters.malformed += rejected
        return Reception(rejected, why)

    def _hand_on(self, spans: list[Span], received: int) -> None:
        counters = self.counters
        counters.received += len(spans)
        counters.late += sum(1 for span in spans if received - span.end_unix_ns > LATE_NS)
        understood = sum(taker.take(spans, received) for taker in self.takers)
        counters.understood += min(understood, len(spans))

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        counters = self.counters
        read = counters.received - counters.malformed
        return {**msgspec.structs.asdict(counters), "not_understood": max(0, read - counters.understood)}
