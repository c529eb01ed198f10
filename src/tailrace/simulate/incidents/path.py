"""The way of an answer from the engine's core to the client: what each part does to the times of its chunks.

A chunk is one event of the stream. Some parts only delay events (several then arrive at one time), others make one
event of several. No part ever changes the order or passes something on before it has it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.thresholds import MS, S
from tailrace.simulate.incidents.site import ClientSide, FrontEnd, Hop

Stamps = NDArray[np.int64]
EVENT_BYTES: Final = 250
"""A chunk of an OpenAI stream: some 240 bytes of JSON around a token's text."""
TEXT_BYTES: Final = 4
HEAD_BYTES: Final = 400


class Chunks(NamedTuple):
    """Events with the tokens in each, in order (ns)."""

    at: Stamps
    tokens: Stamps

    @property
    def bytes(self) -> Stamps:
        """Size of each event on the wire."""
        return EVENT_BYTES + TEXT_BYTES * self.tokens


def merged(chunks: Chunks) -> Chunks:
    """Events of one time made one: what an engine's output collector does while its reader is late."""
    at = chunks.at
    if at.size < 2:
        return chunks
    first = np.concatenate([[True], at[1:] != at[:-1]])
    if first.all():
        return chunks
    places = np.flatnonzero(first)
    return Chunks(at[places], np.add.reduceat(chunks.tokens, places))


def held_by_parser(chunks: Chunks, front: FrontEnd) -> Chunks:
    """A tool call's arguments come out when they are complete."""
    low, high = front.hold_at, front.hold_at + front.hold_tokens
    if high <= low or chunks.at.size <= low:
        return chunks
    high = min(high, chunks.at.size)
    at = chunks.at.copy()
    at[low:high] = at[high - 1]
    return merged(Chunks(at, chunks.tokens))


def through_proxy(chunks: Chunks, hop: Hop, *, hold: bool) -> Chunks:
    """The proxy between engine and gateway: its hold, its timer, its buffer."""
    if hold and hop.hold_ms:
        chunks = Chunks(np.maximum(chunks.at, chunks.at[0] + round(hop.hold_ms * MS)), chunks.tokens)
    if hop.coalesce_ms:
        chunks = _coalesced(chunks, round(hop.coalesce_ms * MS))
    if hop.buffer_bytes:
        chunks = _buffered(chunks, hop.buffer_bytes)
    return chunks


def _coalesced(chunks: Chunks, window: int) -> Chunks:
    at, last = chunks.at, int(chunks.at[-1])
    starts, out = [], []
    i = 0
    while i < at.size:
        flush = int(at[i]) + window
        starts.append(i)
        # The end of the answer flushes at once.
        out.append(min(flush, last))
        i = int(np.searchsorted(at, flush, side="right"))
    return Chunks(
        np.maximum(np.array(out, dtype=np.int64), at[np.array(starts)]), np.add.reduceat(chunks.tokens, starts)
    )


def _buffered(chunks: Chunks, size: int) -> Chunks:
    total = HEAD_BYTES + np.cumsum(chunks.bytes)
    buffer = total // size
    full = np.searchsorted(total, (buffer + 1) * size, side="left")
    return Chunks(chunks.at[np.minimum(full, chunks.at.size - 1)], chunks.tokens)


def over_network(chunks: Chunks, hop: Hop, rng: np.random.Generator) -> tuple[Chunks, int]:
    """The network from the engine to the gateway; also how many packets had to be sent again."""
    at = chunks.at + round(hop.latency_ms * MS)
    if hop.jitter_ms:
        at = at + (rng.exponential(hop.jitter_ms * MS, at.size)).astype(np.int64)
    lost = 0
    if hop.loss:
        # Events of one time share a packet.
        again = rng.random(at.size) < hop.loss
        lost = int(again.sum())
        at = at + np.where(again, round(hop.rto_ms * MS), 0)
    return Chunks(np.maximum.accumulate(at), chunks.tokens), lost


class Delivered(NamedTuple):
    """What a client took: when each event was read from the engine, when written, and when the client held us up."""

    read: Stamps
    written: Stamps
    blocked: list[tuple[int, int]]


def to_reader(chunks: Chunks, client: ClientSide, *, slow: bool) -> Delivered:
    """A reader that keeps up takes every event as it comes; a slow one fills the buffers and stops the relay."""
    at = chunks.at
    if not slow or not client.slow_bytes_per_s:
        return Delivered(at, at, [])
    rate = client.slow_bytes_per_s / S
    sizes = chunks.bytes.tolist()
    total = np.cumsum(chunks.bytes).tolist()
    done: list[float] = []
    read: list[int] = []
    written: list[int] = []
    blocked: list[tuple[int, int]] = []
    free = 0.0
    tail = resumed = 0
    for i, came in enumerate(at.tolist()):
        here = max(came, resumed)
        # The buffers hold what the reader has not taken: the event goes in when enough of it is gone.
        while tail < i - 1 and total[i] - total[tail] > client.window_bytes:
            tail += 1
        goes = max(here, math.ceil(done[tail])) if i and total[i] > client.window_bytes else here
        if goes > here:
            blocked.append((here, goes))
            resumed = goes
        read.append(here)
        written.append(goes)
        free = max(free, goes) + sizes[i] / rate
        done.append(free)
    return Delivered(np.array(read, dtype=np.int64), np.array(written, dtype=np.int64), blocked)
