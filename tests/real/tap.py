"""A recording tap: a raw TCP proxy that stamps every read, to stand between the gateway and a real engine.

It shares no code with what it checks: requests are told apart by turns of direction, heads by blank lines, tokens by a
pattern over the raw bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

TOKEN = re.compile(rb'"(?:content|text)":"(?!")')
"""A delta with text. Roles come as `"content":null`, empty ones as `"content":""`."""


@dataclass
class Exchange:
    """One request and its answer, as the wire showed them; monotonic nanoseconds."""

    request: bytes = b""
    request_ns: int = 0
    """The last bytes of the request had been read and passed on."""
    answer: bytes = b""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(stamp, bytes of the answer so far) of every read."""

    @property
    def request_id(self) -> str:
        found = re.search(rb"\r\nx-request-id: *([^\r]+)\r\n", self.request, re.IGNORECASE)
        return found[1].decode() if found else ""

    def _when(self, position: int) -> int:
        return next(stamp for stamp, size in self.reads if size >= position)

    @property
    def headers_ns(self) -> int:
        """Request passed on -> the status line had been read."""
        return self._when(self.answer.index(b"\r\n\r\n") + 4) - self.request_ns

    @property
    def first_token_ns(self) -> int:
        """Request passed on -> the read that completed the first event with text."""
        found = TOKEN.search(self.answer)
        assert found, self.answer[:2000]
        return self._when(self.answer.index(b"\n\n", found.end()) + 2) - self.request_ns

    @property
    def timings(self) -> dict[str, float]:
        """llama.cpp's own timings, from the last frame that has them."""
        found = re.findall(rb'"timings":(\{[^}]*\})', self.answer)
        return dict(json.loads(found[-1])) if found else {}


class Tap:
    """Listens on a loopback port and forwards to one address, in a thread with its own loop."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.host, self.target_port = parts.hostname or "127.0.0.1", parts.port or 80
        self.exchanges: list[Exchange] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        self._sides: set[_Side] = set()
        return await asyncio.get_running_loop().create_server(lambda: _Client(self), "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for side in list(self._sides):
            side.transport.abort()
        await asyncio.sleep(0.05)

    def by_id(self) -> dict[str, Exchange]:
        return {exchange.request_id: exchange for exchange in self.exchanges if exchange.request_id}


class _Side(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.peer: _Side | None = None

    def connection_made(self, transport):
        self.transport = transport
        self.tap._sides.add(self)

    def connection_lost(self, exc):
        self.tap._sides.discard(self)
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.close()

    def pause_writing(self):
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self):
        if self.peer is not None:
            self.peer.transport.resume_reading()


class _Client(_Side):
    """The gateway's side. A request after an answer begins a new exchange: the gateway does not pipeline."""

    def __init__(self, tap: Tap) -> None:
        super().__init__(tap)
        self.exchange: Exchange | None = None

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.pause_reading()
        self.connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self):
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(lambda: _Engine(self), self.tap.host, self.tap.target_port)
        except OSError:
            self.transport.abort()
            return
        self.peer = peer
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data):
        if self.exchange is None or self.exchange.answer:
            self.exchange = Exchange()
            self.tap.exchanges.append(self.exchange)
        self.exchange.request += data
        self.peer.transport.write(data)
        self.exchange.request_ns = time.monotonic_ns()


class _Engine(_Side):
    """The engine's side."""

    def __init__(self, client: _Client) -> None:
        super().__init__(client.tap)
        self.peer = client

    def data_received(self, data):
        stamp = time.monotonic_ns()
        self.peer.transport.write(data)
        exchange = self.peer.exchange
        if exchange is not None:
            exchange.answer += data
            exchange.reads.append((stamp, len(exchange.answer)))
