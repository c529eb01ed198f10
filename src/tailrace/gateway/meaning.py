"""What questions mean: vectors from the operator's own embedding server, asked over the same kind of connections.

A question waits for its vector only as long as the configuration says; whatever goes wrong, it is a miss.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from tailrace.gateway.address import read_address
from tailrace.gateway.cache_keys import EmbeddingConfig
from tailrace.gateway.config_sections import EngineTlsConfig
from tailrace.gateway.head import Header
from tailrace.gateway.pool import UpstreamPool
from tailrace.gateway.tls import engine_context
from tailrace.govern.cache_key import EMBEDDINGS, Question
from tailrace.govern.semantic_index import Match, SemanticIndex, Vector
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.thresholds import S

if TYPE_CHECKING:
    from tailrace.gateway.upstream import Reads, UpstreamConnection


class Told(Protocol):
    """Who waits for a question's vector."""

    def __call__(self, *, known: bool) -> None:
        """Whether it is known now."""


_KEEP_ALIVE_NS: Final = 4 * S
_LARGEST_ANSWER: Final = 1024 * 1024
_REMEMBERED_NS: Final = 600 * S
"""How long a vector is held for a question whose answer has not come yet: longer than any budget."""
_MOST_REMEMBERED: Final = 4096


class _Datum(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Datum] = []


class MeaningCounters(msgspec.Struct):
    """What became of the questions asked."""

    asked: int = 0
    answered: int = 0
    late: int = 0
    failed: int = 0
    busy: int = 0
    """Not asked: too many were under way."""


class _Inquiry:
    """One question on its way; a seeker of a connection and a receiver of its answer."""

    def __init__(self, owner: Meanings, question: Question, told: Told) -> None:
        self._owner = owner
        self._question = question
        self._told: Told | None = told
        self._connection: UpstreamConnection | None = None
        self._status = 0
        self._body: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ask, and wait no longer than one may."""
        pool = self._owner.pool
        self._timer = asyncio.get_running_loop().call_later(self._owner.timeout_s, self._late)
        connection = pool.take(monotonic_ns())
        if connection is not None:
            self._send(connection)
        elif pool.full():
            pool.stand_in_line(self)
        else:
            pool.connect(self)

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        connection.send(self, self._owner.request(self._question.text), without_body=False)

    # -- the pool

    def upstream_connected(self, connection: UpstreamConnection, started: int, now: int) -> None:  # noqa: ARG002
        """A connection is there."""
        self._send(connection)

    def upstream_free(self, connection: UpstreamConnection, now: int) -> None:  # noqa: ARG002
        """Another question has given its connection back."""
        self._send(connection)

    def upstream_unreachable(self, error: str, now: int) -> None:  # noqa: ARG002
        """Nobody is there."""
        self._end(None)

    # -- the connection

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:  # noqa: ARG002
        """The status line."""
        self._status = status

    def upstream_body(self, data: bytes, now: int) -> None:  # noqa: ARG002
        """A piece of the answer."""
        self._size += len(data)
        if self._size <= _LARGEST_ANSWER:
            self._body.append(data)

    def steady(self) -> Reads | None:
        """It is no stream."""
        return None

    def upstream_complete(self, now: int) -> None:  # noqa: ARG002
        """The answer is whole; its connection is with the pool again."""
        self._connection = None
        vector: Vector | None = None
        if self._status == 200 and self._size <= _LARGEST_ANSWER:
            try:
                data = msgspec.json.decode(b"".join(self._body), type=_Embeddings).data
                vector = np.array(data[0].embedding, dtype=np.float32) if data else None
            except UNREADABLE:
                vector = None
        self._end(vector)

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:  # noqa: ARG002
        """The server hung up."""
        self._connection = None
        self._end(None)

    def upstream_broken(self, now: int) -> None:  # noqa: ARG002
        """Its answer could not be read."""
        self._connection = None
        self._end(None)

    # -- ends

    def _late(self) -> None:
        self._owner.counters.late += 1
        self._owner.counters.failed -= 1  # `_end` counts it there
        self._end(None)

    def give_up(self) -> None:
        """There will be no answer."""
        self._end(None)

    def _end(self, vector: Vector | None) -> None:
        told, self._told = self._told, None
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._owner.pool.forget(self)
        self._owner.ended(self, self._question, vector)
        if told is not None:
            told(known=vector is not None)


class Meanings:
    """Asks for vectors, and finds the nearest question."""

    def __init__(self, config: EmbeddingConfig) -> None:
        address = read_address(config.url)
        self.pool = UpstreamPool(
            address,
            connect_timeout_ns=int(config.timeout),
            keep_alive_ns=_KEEP_ALIVE_NS,
            tls=engine_context(EngineTlsConfig(), "cache.embedding") if address.tls else None,
            limit=config.at_once,
        )
        self.timeout_s = config.timeout / 1e9
        self.counters = MeaningCounters()
        self._model = config.model
        self._at_once = config.at_once
        self._index = SemanticIndex()
        self._open: dict[_Inquiry, None] = {}
        self._vectors: dict[bytes, tuple[Vector, int]] = {}
        """Key -> vector of a question whose answer is on its way, and when it was known."""
        key = f"authorization: Bearer {config.api_key}\r\n" if config.api_key else ""
        self._head = (
            f"POST {address.prefix}{EMBEDDINGS} HTTP/1.1\r\nhost: {address.authority}\r\n"
            f"content-type: application/json\r\nuser-agent: tailrace-cache\r\n{key}"
        ).encode("latin-1")

    def ask(self, question: Question, told: Told) -> None:
        """Ask what a question means; `told` is called once, at the latest when the time is over."""
        if question.key in self._vectors:
            told(known=True)
            return
        if len(self._open) >= self._at_once:
            self.counters.busy += 1
            told(known=False)
            return
        self.counters.asked += 1
        inquiry = _Inquiry(self, question, told)
        self._open[inquiry] = None
        inquiry.start()

    def request(self, text: str) -> bytes:
        """The whole request for one text."""
        body = msgspec.json.encode({"model": self._model, "input": text, "encoding_format": "float"})
        return b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)

    def ended(self, inquiry: _Inquiry, question: Question, vector: Vector | None) -> None:
        """An inquiry has its answer, or none."""
        self._open.pop(inquiry, None)
        if vector is None:
            self.counters.failed += 1
        else:
            self.counters.answered += 1
            self._vectors[question.key] = (vector, monotonic_ns())
            if len(self._vectors) > _MOST_REMEMBERED:
                del self._vectors[next(iter(self._vectors))]

    def nearest(self, question: Question, threshold: float) -> Match | None:
        """The nearest question whose answer is kept."""
        known = self._vectors.get(question.key)
        return None if known is None else self._index.nearest(question.partition, known[0], threshold)

    def keep(self, question: Question) -> None:
        """The question's answer is kept: it may be found from now on."""
        known = self._vectors.pop(question.key, None)
        if known is not None:
            self._index.add(question.partition, question.key, known[0])

    def forget(self, key: bytes) -> None:
        """The question needs no answer of its own."""
        self._vectors.pop(key, None)

    def drop(self, key: bytes) -> None:
        """An answer is gone."""
        self._index.drop(key)

    def sweep(self, now: int) -> None:
        """Forget the vectors of questions whose answers never came, and connections that were idle too long."""
        self.pool.sweep(now)
        old = [key for key, (_, since) in self._vectors.items() if now - since > _REMEMBERED_NS]
        for key in old:
            del self._vectors[key]

    def view(self) -> dict[str, Any]:
        """Counters, and what is held."""
        return {
            **msgspec.to_builtins(self.counters),
            "asking": len(self._open),
            "vectors": len(self._index),
            "vector_bytes": self._index.vector_bytes,
        }

    def let_go(self) -> None:
        """Nobody wants to know any more: whoever waits is told so, and the connections are closed."""
        for inquiry in list(self._open):
            inquiry.give_up()
        for connection in list(self.pool.open):
            connection.abort()

    async def close(self) -> None:
        """As `let_go`, and wait for the connections."""
        self.let_go()
        await self.pool.close()
